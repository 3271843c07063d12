# SPDX-License-Identifier: Apache-2.0
"""Training in memory over links that lose packets: every worker has parameters of its own, as in a real job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hopsum.codec import ErrorFeedback, best_table, make_codec
from hopsum.codec.interface import blocks_of
from hopsum.codec.thc import LookupTableCodec
from hopsum_evaluation.baselines import thc_published
from hopsum_evaluation.report.learner import PARAMETERS, Floats, Learner
from hopsum_evaluation.report.lossy import allreduce, draw_fate
from hopsum_evaluation.report.settings import Settings

BATCH: Final = 16
RATE: Final = 0.1
MOMENTUM: Final = 0.9
LANE_BITS: Final = 16


@dataclass(frozen=True, slots=True)
class Case:
    """One training."""

    scheme: str
    """fp32: exact means. `ours` and `published`: see `lossy`."""
    workers: int
    steps: int
    bits: int = 4
    loss: float = 0.0
    """The share of packets that is lost, each way."""
    stragglers: int = 0
    """Workers, others in every step, that are late."""
    sync: bool = False
    """True where parameters are averaged over the workers after every pass through the images."""


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """What a training came to."""

    accuracy: float
    """The accuracy on the test images, mean over the workers."""
    apart: float
    """Largest distance of a worker's parameters from their mean, over the norm of the mean."""
    residual: list[float]
    """Norm of the error feedback of worker 0, over that of its gradient then on average, per tenth of the training."""


def make_case_codec(case: Case) -> LookupTableCodec:
    """Return the codec: THC as published, or with the table and the ranges that a job takes."""
    if case.scheme == "published":
        made = make_codec(thc_published.NAME, workers=case.workers, lane_bits=LANE_BITS)
    else:
        table = best_table(case.workers, LANE_BITS, bits=case.bits)
        made = make_codec("thc", workers=case.workers, table=table, lane_bits=LANE_BITS)
    assert isinstance(made, LookupTableCodec)
    return made


def train(learner: Learner, case: Case, settings: Settings, repeat: int) -> TrainingOutcome:
    """Train from the repeat's parameters on its batches. Those streams are the same for all cases."""
    workers = range(case.workers)
    first = learner.start(settings.rng("data", "parameters", repeat))
    parameters, speed = [first.copy() for _ in workers], [np.zeros_like(first) for _ in workers]
    batches, fates = settings.rng("batch", repeat, case.workers), settings.rng("loss", repeat, case.workers)
    codec = None if case.scheme == "fp32" else make_case_codec(case)
    feedback = [ErrorFeedback(PARAMETERS) for _ in workers]
    residual, size = [], []
    pass_steps = max(1, len(learner.y) // (BATCH * case.workers))
    for step in range(case.steps):
        chosen = batches.integers(0, len(learner.y), (case.workers, BATCH))
        gradients = [learner.gradient(parameters[rank], chosen[rank]) for rank in workers]
        means = _means(case, codec, gradients, (settings.stream("codec", repeat), step + 1), feedback, fates)
        for rank in workers:
            speed[rank] = MOMENTUM * speed[rank] + means[rank]
            parameters[rank] = parameters[rank] - np.float32(RATE) * speed[rank]
        if case.sync and (step + 1) % pass_steps == 0:
            together = np.mean(parameters, axis=0)
            parameters = [together.copy() for _ in workers]
        residual.append(float(np.linalg.norm(feedback[0].residual)))
        size.append(float(np.linalg.norm(gradients[0])))
    return TrainingOutcome(float(np.mean([learner.accuracy(each) for each in parameters])), _apart(parameters),
                   _per_tenth(residual, size))  # fmt: skip


def _means(
    case: Case,
    codec: LookupTableCodec | None,
    gradients: list[Floats],
    context: tuple[int, int],
    feedback: list[ErrorFeedback],
    fates: np.random.Generator,
) -> list[Floats]:
    if codec is None:
        return [np.mean(gradients, axis=0)] * case.workers
    fate = None
    if case.loss or case.stragglers:
        fate = draw_fate(fates, case.workers, blocks_of(PARAMETERS, codec.block_elements), case.loss, case.stragglers)
    return allreduce(codec, gradients, context, feedback, fate, published=case.scheme == "published")


def _apart(parameters: list[Floats]) -> float:
    middle = np.mean(parameters, axis=0)
    return max(float(np.linalg.norm(each - middle)) for each in parameters) / float(np.linalg.norm(middle))


def _per_tenth(residual: list[float], size: list[float]) -> list[float]:
    above, below = ([float(part.mean()) for part in np.array_split(np.array(each), 10)] for each in (residual, size))
    return [one / other if other else 0.0 for one, other in zip(above, below, strict=True)]
