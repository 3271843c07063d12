# SPDX-License-Identifier: Apache-2.0
"""All methods of one job: their predictions, at which rates they win, and which cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from hopsum.codec import Codec, CodecError, make_codec
from hopsum.plan import (
    CodecChoice,
    Costs,
    PlannedJob,
    Prediction,
    codec_choices,
    predict_ring,
    predict_summed,
    predict_two_shot,
    winning_rates,
)
from hopsum.plan.step import RING_BYTES, TWO_SHOT_BITS

CODECS: Final = ("thc", "thc:result_bits=6", "thc:bits=2", "uhc", "fixed", "lossless")
"""Those that are predicted where none is asked for, with options."""

Predict = Callable[[PlannedJob], Prediction]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one job."""

    job: PlannedJob
    costs: Costs
    predictions: list[Prediction]
    """The predictions, those without an aggregator first."""
    wins: dict[str, dict[str, list[tuple[float, float]]]]
    """The ranges of link rates at which a method's all-reduce is shorter than a ring's, bits/s, by method and ring."""
    refused: dict[str, str]
    """Codecs that no job of so many workers can have, and why."""
    choices: list[CodecChoice]
    """The choices of codec thc for so many workers."""

    def step_s(self, method: str) -> float:
        """Return a method's step."""
        return next(each.step_s for each in self.predictions if each.method == method)


def forecast(job: PlannedJob, costs: Costs, codecs: Sequence[str], aggregators: Sequence[str]) -> Forecast:
    """Predict all methods. Raises PlanError."""
    refused = refusals(job.workers, codecs)
    rings = ring_methods(costs)
    summed = summed_methods(costs, [name for name in codecs if name not in refused], aggregators)
    made = {name: predict(job) for name, predict in (rings | two_shot_methods(costs) | summed).items()}
    wins = {
        name: {ring: winning_rates(job, predict, theirs) for ring, theirs in rings.items()}
        for name, predict in summed.items()
    }
    return Forecast(job, costs, list(made.values()), wins, refused, codec_choices(job.workers)[0])


def ring_methods(costs: Costs) -> dict[str, Predict]:
    """Return what predicts each ring, by the name of the method."""
    return {f"ring {name}": _ring(costs, name) for name in RING_BYTES}


def two_shot_methods(costs: Costs) -> dict[str, Predict]:
    """Return what predicts each two-shot all-reduce, by the name of the method."""
    return {f"two-shot {bits} bits": _two_shot(costs, bits) for bits in TWO_SHOT_BITS}


def summed_methods(costs: Costs, codecs: Sequence[str], aggregators: Sequence[str]) -> dict[str, Predict]:
    """Return what predicts each codec at each aggregator, by the name of the method."""
    return {
        f"{aggregator} {codec}": _summed(costs, codec, aggregator) for aggregator in aggregators for codec in codecs
    }


def refusals(workers: int, codecs: Sequence[str]) -> dict[str, str]:
    """Return the codecs that a job of so many workers cannot have, and why."""
    found = {}
    for name in codecs:
        try:
            codec_of(name, workers)
        except (CodecError, TypeError) as error:  # a TypeError names an option that the codec has not
            found[name] = str(error)
    return found


@cache
def codec_of(name: str, workers: int) -> Codec:
    """Return a codec by its name, with options if there are any, for its sizes. Raises CodecError."""
    return make_codec(name, workers=workers, backend="numpy")


def _ring(costs: Costs, precision: str) -> Predict:
    return lambda job: predict_ring(job, costs, precision)


def _two_shot(costs: Costs, bits: int) -> Predict:
    return lambda job: predict_two_shot(job, costs, bits)


def _summed(costs: Costs, codec: str, aggregator: str) -> Predict:
    return lambda job: predict_summed(job, costs, codec_of(codec, job.workers), aggregator, codec)


def with_workers(job: PlannedJob, workers: int) -> PlannedJob:
    """Return the job with other workers, in as many racks where they can stand in them, else in one."""
    return replace(job, workers=workers, racks=1 if workers % job.racks else job.racks)
