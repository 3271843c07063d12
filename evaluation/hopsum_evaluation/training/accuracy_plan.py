# SPDX-License-Identifier: Apache-2.0
"""Models, courses and messages of trainings over shaped links, without torch: the parent process needs none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from hopsum.agent import TIMING
from hopsum.codec.registry import CODECS, is_codec
from hopsum.protocol.worker import Timing


@dataclass(frozen=True, slots=True)
class AccuracyModel:
    """A model and the target of its training. `accuracy_models` has the network and its data.

    words: name of the model, for pages.
    measure: name of the measure, which is taken on data kept for the test.
    target: value of the measure to reach.
    rises: True where training raises the measure, False where training lowers it.
    percent: True where the measure is a share.
    """

    words: str
    measure: str
    target: float
    rises: bool
    percent: bool = False

    def is_reached(self, value: float) -> bool:
        """Return True if a measured value is at the target or beyond. NaN never is."""
        # Comparisons with not-a-number are false, so a training that diverged never reaches its target.
        return value >= self.target if self.rises else value <= self.target

    @property
    def goal(self) -> str:
        """The target in words."""
        return f"{self.target:.0%} {self.measure}" if self.percent else f"{self.measure} {self.target:g}"


MODELS: Final = {
    "cnn": AccuracyModel("convolutional network", "test accuracy", 0.9, rises=True, percent=True),
    "transformer": AccuracyModel("character-level transformer", "test perplexity", 7.0, rises=False),
    "cnn-10m": AccuracyModel("wide convolutional network", "test accuracy", 0.8, rises=True, percent=True),
    "transformer-10m": AccuracyModel("wide character-level transformer", "test perplexity", 9.0, rises=False),
}


THC_PS: Final = "thc-ps"
"""Codec thc over gloo. THC's authors call it colocated: every worker is also the server of its share of the chunks."""
AUTO: Final = "auto"
"""DDP's hook with method="auto": codec thc, low rank by it or torch's process group, as its trial decides."""
UNSHAPED: Final = "unshaped"
"""The rate of links that are not shaped."""
TIMED: Final = {"vgg16": (4, 32), "resnet50": (8, 64), "bert-base": (4, 64), "gpt2-small": (4, 64)}
"""Models whose steps are timed on random data: samples of a worker in a step, on the CPU and on a GPU."""
WINDOW: Final = 128
"""Symbols of a window that a timed text model is given."""


_LOW_RANK: Final = re.compile(r"low-rank-([1-9]\d{0,3})(?=$|:)")
_DILOCO: Final = re.compile(r"diloco-([1-9]\d{0,3})(?=$|:)")
_DILOCO_FP32: Final = re.compile(r"diloco-fp32-([1-9]\d{0,3})$")


def low_rank_of(scheme: str) -> int | None:
    """Return R of a scheme `low-rank-R` or `low-rank-R:OPTIONS`, options of codec thc; None for any other scheme."""
    found = _LOW_RANK.match(scheme)
    return int(found[1]) if found else None


class RareSync(NamedTuple):
    """DiLoCo of a scheme: steps between two synchronisations, 0 for any other scheme, and whether they are in fp32."""

    every: int
    in_fp32: bool


def diloco_of(scheme: str) -> RareSync:
    """Read a scheme `diloco-H` or `diloco-H:OPTIONS`, options of codec thc, or `diloco-fp32-H`."""
    for form, in_fp32 in ((_DILOCO, False), (_DILOCO_FP32, True)):
        if found := form.match(scheme):
            return RareSync(int(found[1]), in_fp32)
    return RareSync(0, False)


def codec_of(scheme: str) -> str:
    """Return the spelling of the codec of a scheme that switches sum. Any other scheme is returned as it is."""
    return "thc" if scheme == AUTO else _DILOCO.sub("thc", _LOW_RANK.sub("thc", scheme))


def ranks_codec_of(scheme: str) -> str | None:
    """Return the spelling of the codec of a scheme that ranks sum over gloo; None for any other scheme."""
    if scheme == THC_PS:
        return "thc"
    name = scheme.partition(":")[0]
    # An attribute that codecs of other packages need not have.
    return scheme if is_codec(name) and getattr(CODECS[name], "ranks_add", False) else None


@dataclass(frozen=True, slots=True)
class Course:
    """Trainings of one model, by rates and schemes.

    steps: the most of a training, which ends at its target. 0: as many as take `seconds`.
    batch: images or windows of a worker in a step.
    every: steps between two measurements on the test data.
    rates: number of seeds at each rate, which is in tc's words or UNSHAPED.
    seconds: time of the counted steps, where `steps` is 0.
    """

    model: str
    steps: int
    batch: int
    every: int
    rates: Mapping[str, int]
    schemes: Sequence[str]
    seconds: float = 0.0


class CourseLength(NamedTuple):
    """The full length of a training: steps, batch and every are as in Course."""

    steps: int
    batch: int
    every: int


FULL: Final = {
    "cnn": CourseLength(64, 32, 4),
    "transformer": CourseLength(400, 8, 10),
    "cnn-10m": CourseLength(150, 32, 10),
    "transformer-10m": CourseLength(200, 8, 10),
}
"""The full courses by model. `every` is as in Course.

Those of 10 M parameters were chosen by trainings in fp32 in one process, before any training to a target over links:
fp32 reaches the target after about 100 steps. By its bytes, fp32 needs 6 to 8 minutes over links of 200 Mbit/s.
Over links fp32 takes 140 steps of transformer-10m. With 200 steps a scheme misses the target if it takes 1.4 times as
many as fp32.
"""


@dataclass(frozen=True, slots=True)
class AccuracyPlan:
    """Settings that all workers of one pool have in common."""

    workers: int
    model: str
    codecs: tuple[str, ...]
    """The schemes of the jobs at the switch. `codec_of` tells the codec of each.

    A second job of a codec is for agents that encode, send and decode one after the other: where these overlap, spans
    do not tell them apart.
    """
    folder: Path
    by_ranks: tuple[str, ...] = ()
    """The schemes that ranks sum. `ranks_codec_of` tells the codec of each."""
    services: tuple[tuple[str, int], ...] = ()
    """The addresses that workers send to, by shard."""
    timing: Timing = TIMING
    """The timing of hopsum's workers."""
    device: str = "cpu"
    """The kind of the devices that compute, "cpu" or "cuda". Workers share GPUs where there are fewer."""
    threads: int = 1
    """torch's threads of a worker."""
    compute_s: float = 0.0
    """The seconds that a step waits in place of computing. 0: it computes."""


class TrainingOrder(NamedTuple):
    """Message to the workers: do this training. Fields are as in Course."""

    scheme: str
    seed: int
    steps: int
    batch: int
    every: int
    seconds: float


class TrainingRun(NamedTuple):
    """Figures of one training on one rank."""

    points: list[tuple[int, float, float]]
    """Steps, seconds of training so far, the model's measure, of rank 0."""
    step_s: float
    """Mean of the steps after the first, or of those that are counted by their time."""
    compute_s: float
    """The seconds of a step without its all-reduce, all workers at the same time, as the median."""
    reduce_s: float | None
    """The seconds of the all-reduce alone, as the median.

    None for PowerSGD and low rank, whose all-reduces have no form of their own, and where steps are counted by their
    time.
    """
    step_cpu_s: float
    """The processor time of rank 0's process in a step, all threads, mean of the same steps."""
    bytes_per_step: float
    """The bytes at rank 0's interface in the busier direction, mean of all steps.

    A veth counts large segments whole, without the headers of the frames inside.
    """
    encode_s: float | None = None
    """The seconds in which rank 0 encodes in a step without overlap of codec and network. None: not timed."""
    decode_s: float | None = None
    """The same for decoding."""
    retransmits: float = 0.0
    """The datagrams that rank 0 sent again in a step, mean of all steps."""
    method: str | None = None
    """The name of the method that the trial of scheme `auto` chose."""

    def undilated(self, factor: float) -> TrainingRun:
        """Return the figures with times divided by a factor of time dilation. Processor time is the same."""
        fields = self._asdict().items()
        times = {name: s / factor for name, s in fields if name.endswith("_s") and "cpu" not in name and s is not None}
        return self._replace(points=[(step, s / factor, value) for step, s, value in self.points], **times)
