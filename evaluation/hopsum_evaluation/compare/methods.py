# SPDX-License-Identifier: Apache-2.0
"""Every method behind one interface: the workers' vectors in, the mean that all of them end with and its bits out.

Bits are those of the payloads, per element and worker: ranges, index and other side information included, headers
not, nor lanes that only fill up the last chunk, which vanish in vectors of the usual length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import Codec, CodecError, CollectivePhase, make_codec, parse_codec
from hopsum.codec.backends.kernels import TWO_SHOT_BLOCK
from hopsum.codec.thc import LookupTableCodec
from hopsum.codec.two_shot import TwoShot
from hopsum_evaluation.baselines import thc_published
from hopsum_evaluation.baselines.estimator_interface import Estimator, estimate_mean
from hopsum_evaluation.baselines.estimators import make_estimator
from hopsum_evaluation.baselines.suresh import Sk, Srk, Svk
from hopsum_evaluation.baselines.thc_published import ThcPublished
from hopsum_evaluation.expected_error import expected_nmse_of
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_wire.payload import SHAPES

ROTATIONS = 8
"""Random rotations over which theory's figure and its standard error are taken."""
FLOAT_BITS = 32

Vectors = Sequence[NDArray[np.float32]]


class Bits(NamedTuple):
    """Bits per element and worker."""

    up: float
    down: float


class MethodResult(NamedTuple):
    """Mean and bits of one all-reduce."""

    mean: NDArray[np.float32]
    bits: Bits


class Theory(NamedTuple):
    """Expected NMSE where all workers have the same vector, by a formula, and the standard error of that figure."""

    nmse: float
    se: float


class MeanMethod(Protocol):
    """The interface of every compared method of computing the mean of n vectors: with codecs, estimators, endpoints."""

    def run(self, vectors: Vectors, seed: int, step: int) -> MethodResult:
        """Compute the mean of float32[elements] vectors. All randomness follows from seed and step."""

    def theory(self, x: NDArray[np.float32], workers: int, seed: int) -> Theory | None:
        """Compute by a formula the expected NMSE when all workers hold the same vector x. None: no formula known."""


class MethodCandidate(NamedTuple):
    """A method by name, made for a number of workers."""

    label: str
    make: Callable[[int], MeanMethod]
    """Makes the method for a number of workers. Raises HopsumError or ModuleNotFoundError where that cannot be."""
    family: str = ""
    """Methods of a family differ in a parameter. A line joins them in the plots of error against bits."""


class SwitchMethod:
    """A `MeanMethod` of a codec whose payloads a switch adds."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def run(self, vectors: Vectors, seed: int, step: int) -> MethodResult:
        """See `MeanMethod`: an all-reduce in memory, without error feedback."""
        used: list[CollectivePhase] = []
        means = simulate_allreduce(
            self.codec, vectors, seed=seed, step=step, present=lambda _, phase: used.append(phase)
        )
        assert means is not None
        mean = means[0]
        return MethodResult(mean, count_bits(used, mean.size))

    def theory(self, x: NDArray[np.float32], workers: int, seed: int) -> Theory | None:
        """See `MeanMethod`: known of coded methods."""
        codec = self.codec
        if not isinstance(codec, LookupTableCodec):
            return None
        rng = np.random.default_rng([seed, workers])
        per_block = not isinstance(codec, ThcPublished)
        found = [expected_nmse_of(x, codec, rng, per_block=per_block, rotations=1) for _ in range(ROTATIONS)]
        return Theory(float(np.mean(found)), float(np.std(found) / (ROTATIONS - 1) ** 0.5))


class EstimatorMethod:
    """A `MeanMethod` of an estimator or a baseline: the receiver decodes each message and sends the mean in float32."""

    def __init__(self, estimator: Estimator) -> None:
        self.estimator = estimator

    def run(self, vectors: Vectors, seed: int, step: int) -> MethodResult:
        """See `MeanMethod`. Bits down are those of a mean in float32."""
        found = estimate_mean(self.estimator, vectors, seed, step)
        elements = vectors[0].size
        return MethodResult(found.mean, Bits(found.bits / len(vectors) / elements, FLOAT_BITS))

    def theory(self, x: NDArray[np.float32], workers: int, seed: int) -> Theory | None:
        """See `MeanMethod`. A formula is known for estimators that round elements to levels without a rotation.

        Equal elements are levels themselves: 0.
        """
        wide = x.astype(np.float64)
        energy = float(wide @ wide)
        # `Srk` is an `Sk` too, but rounds the rotated vector, whose extremes x does not tell.
        if isinstance(self.estimator, Sk) and not isinstance(self.estimator, Srk):
            width = float(wide.max() - wide.min())
            levels = self.estimator.levels
        elif isinstance(self.estimator, Svk):
            width = (2 * energy) ** 0.5
            levels = self.estimator.levels_of(x.size)
        else:
            return None
        if not width:
            return Theory(0.0, 0.0)
        place = (wide - wide.min()) / width * (levels - 1)
        odds = place - np.floor(place)
        error = float((odds * (1 - odds)).sum()) * (width / (levels - 1)) ** 2
        return Theory(error / energy / workers, 0.0)


def count_bits(phases: Sequence[CollectivePhase], elements: int) -> Bits:
    """Return the bits of the payloads that one worker sends and receives in some phases, per element of the vector."""
    up = down = 0.0
    for phase in phases:
        shape = SHAPES[phase.op]
        up += 8 * shape.up_bytes * phase.lanes / shape.elements
        down += 8 * shape.down_bytes * phase.lanes / shape.elements
    return Bits(up / elements, down / elements)


class TwoShotMethod:
    """A `MeanMethod` of codec `two-shot`, whose codes the workers add up themselves."""

    def __init__(self, codec: TwoShot) -> None:
        """Raise CodecError unless there are two workers at least."""
        require_two(codec.workers, "two-shot")
        self.codec = codec

    def run(self, vectors: Vectors, seed: int, step: int) -> MethodResult:
        """See `MeanMethod`. Nothing is random. Without error feedback, as all methods here."""
        workers = len(vectors)
        means = simulate_allreduce(self.codec, vectors, seed=seed, step=step)
        assert means is not None
        each = 2 * (workers - 1) / workers * 8 * self.codec.block_bytes / TWO_SHOT_BLOCK
        return MethodResult(means[0], Bits(each, each))

    def theory(self, x: NDArray[np.float32], workers: int, seed: int) -> Theory | None:
        """See `MeanMethod`: none, since equal vectors are rounded alike."""
        return None


class PowerSgdMethod:
    """PowerSGD (Vogels et al., NeurIPS 2019): the vector as a matrix M, its mean as P Q^T of low rank.

    Q is kept from all-reduce to all-reduce, as torch's hook keeps it: repeated on the same vectors, a power iteration.
    Both P and Q are all-reduced in float32, by a ring. A vector of no known shape is a matrix that is nearly square.
    """

    def __init__(self, workers: int, rank: int) -> None:
        """Raise CodecError unless there are two workers at least."""
        require_two(workers, "powersgd")
        self.rank = rank
        self._q: NDArray[np.float32] | None = None

    def run(self, vectors: Vectors, seed: int, step: int) -> MethodResult:
        """See `MeanMethod`. `seed` decides where Q begins."""
        workers, elements = len(vectors), vectors[0].size
        # Nearly square: P and Q together have the fewest elements then.
        columns = 1 << round(np.log2(elements) / 2)
        rows = -(-elements // columns)
        matrices = [np.pad(x, (0, rows * columns - elements)).reshape(rows, columns) for x in vectors]
        if self._q is None or self._q.shape != (columns, self.rank):
            self._q = np.random.default_rng(seed).standard_normal((columns, self.rank), dtype=np.float32)
        # Only P is made orthogonal, as the publication does.
        p = np.linalg.qr(np.mean([matrix @ self._q for matrix in matrices], axis=0))[0]
        self._q = np.mean([matrix.T @ p for matrix in matrices], axis=0)
        mean = (p @ self._q.T).reshape(-1)[:elements].astype(np.float32)
        # A ring carries each element 2 (n - 1) / n times: once to be added, once to be spread.
        each = 2 * (workers - 1) / workers * FLOAT_BITS * self.rank * (rows + columns) / elements
        return MethodResult(mean, Bits(each, each))

    def theory(self, x: NDArray[np.float32], workers: int, seed: int) -> Theory | None:
        """See `MeanMethod`: none."""
        return None


class Int8RingMethod:
    """A ring of bytes, as public stacks for DiLoCo have it: every hop rounds the sum so far to 256 levels.

    Levels divide six standard deviations evenly. A receiver takes, for each level, the mean of what was rounded to it,
    which travels with the bytes. The sum of all is rounded once more, and spread.
    """

    def __init__(self, workers: int) -> None:
        """Raise CodecError unless there are two workers at least."""
        require_two(workers, "int8 ring")

    def run(self, vectors: Vectors, seed: int, step: int) -> MethodResult:
        """See `MeanMethod`. Nothing is random."""
        workers, elements = len(vectors), vectors[0].size
        parts = [np.array_split(x, workers) for x in vectors]
        found = []
        for chunk in range(workers):
            total = parts[chunk][chunk]
            for hop in range(1, workers):
                total = _in_levels(total) + parts[(chunk + hop) % workers][chunk]
            found.append(_in_levels(total / workers))
        each = 2 * (workers - 1) * (8 / workers + FLOAT_BITS * _LEVELS / elements)
        return MethodResult(np.concatenate(found), Bits(each, each))

    def theory(self, x: NDArray[np.float32], workers: int, seed: int) -> Theory | None:
        """See `MeanMethod`: none."""
        return None


_LEVELS: Final = 256


def _in_levels(x: NDArray[Any]) -> NDArray[np.float32]:
    width = 6 * float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))) / _LEVELS
    codes = np.clip(np.rint(x / width if width else x) + _LEVELS // 2, 0, _LEVELS - 1).astype(np.int64)
    sums = np.bincount(codes, x, _LEVELS) / np.maximum(np.bincount(codes, minlength=_LEVELS), 1)
    rounded: NDArray[np.float32] = sums.astype(np.float32)[codes]
    return rounded


def require_two(workers: int, name: str) -> None:
    """Raise CodecError unless there are two workers at least. `name` is that of the method, for the message."""
    if workers < 2:
        raise CodecError(f"{name}: {workers} worker has nobody to exchange with; 2 at least")


def codec_candidate(name: str, family: str = "") -> MethodCandidate:
    """Return the method of a codec. `name` is spelled as `connect(codec=)` takes it, `family` by default the codec's.

    Raises:
        CodecError: no codec, or an option that it does not have. Whether options fit is found when it is made.
    """

    def make(workers: int) -> MeanMethod:
        codec = make_codec(name, workers=workers)
        return TwoShotMethod(codec) if isinstance(codec, TwoShot) else SwitchMethod(codec)

    return MethodCandidate(name, make, family or parse_codec(name).name)


def _estimator(label: str, name: str, family: str = "", **options: Any) -> MethodCandidate:
    return MethodCandidate(label, lambda _: EstimatorMethod(make_estimator(name, **options)), family or name)


def _power_sgd(rank: int) -> MethodCandidate:
    return MethodCandidate(f"powersgd rank {rank}", lambda workers: PowerSgdMethod(workers, rank), "powersgd")


CANDIDATES: Final[tuple[MethodCandidate, ...]] = (
    *(codec_candidate(name) for name in ("thc", "thc:bits=3", "thc:bits=2", "two-shot:bits=4", "two-shot:bits=8")),
    codec_candidate("thc:result_bits=8", "thc sums"),
    codec_candidate("thc:rounding=stochastic", "thc stochastic"),
    codec_candidate("thc:rounding=stochastic,lane_bits=16", "thc stochastic"),
    codec_candidate(thc_published.NAME, "published"),
    *(codec_candidate(name) for name in ("uhc:bits=3", "uhc", "uhc:bits=6", "uhc:bits=8")),
    *(codec_candidate(name) for name in ("fixed", "lossless", "lossless:gamma=0")),
    _estimator("sb", "sb", "sk"),
    *(_estimator(f"sk {levels} levels", "sk", levels=levels) for levels in (4, 16, 256)),
    *(_estimator(f"srk {levels} levels", "srk", levels=levels) for levels in (4, 16, 256)),
    _estimator("svk", "svk"),
    _estimator("svk 4096 levels", "svk", levels=4096),
    _estimator("fp16", "fp16"),
    _estimator("top 1 %", "topk", fraction=0.01),
    _estimator("top 10 %", "topk", fraction=0.1),
    _estimator("terngrad", "terngrad"),
    *(_power_sgd(rank) for rank in (2, 8)),
    MethodCandidate("int8 ring", Int8RingMethod, "int8 ring"),
)
"""Codecs have the names that `connect` takes. Estimators and baselines have a family of their name, but for sb, which
is sk with 2 levels. thc has three families: requantised results, whole sums, and stochastic rounding."""
