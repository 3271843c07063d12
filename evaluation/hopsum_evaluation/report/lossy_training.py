# SPDX-License-Identifier: Apache-2.0
"""Training in memory over links that lose packets, with every worker's parameters of its own, as in a real job.

                          hopsum                                          published
an UPDATE is missing      the sum is divided by its contributors; the     zero in its place, divided by all workers; the
                          sender's error feedback takes it back           sender believes that it was delivered
a RESULT is missing       sent again, until it arrives                    its mean is zero at that worker, whose
                                                                          parameters differ from then on

The published behaviour is that of the authors' prototype, as far as its code says: it sends nothing again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.interface import blocks_of, feeds_back
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import CODE_BITS, LookupTableCodec
from hopsum_evaluation.baselines import thc_published
from hopsum_evaluation.experiment import NotRunError, Settings
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES

Floats = NDArray[np.float32]
PIXELS: Final = 64
HIDDEN: Final = 128
DIGITS: Final = 10
PARAMETERS: Final = PIXELS * HIDDEN + HIDDEN + HIDDEN * DIGITS + DIGITS
"""Elements of the flat vector of parameters: both layers' weights and biases."""
_TEST_SHARE: Final = 5
"""Every fifth image is kept for the test."""


class Learner:
    """A network of one hidden layer for scikit-learn's digits, in numpy: images, gradients, accuracy.

    Parameters are the caller's, one flat vector for each worker. Raises NotRunError without scikit-learn.
    """

    def __init__(self) -> None:
        try:
            from sklearn.datasets import load_digits
        except ModuleNotFoundError as error:
            raise NotRunError("the digits come with scikit-learn: pip install scikit-learn") from error
        data = load_digits()
        pixels, labels = (data.data / 16).astype(np.float32), data.target.astype(np.int64)
        test = np.arange(len(labels)) % _TEST_SHARE == 0
        self.x, self.y = pixels[~test], labels[~test]
        self.test_x, self.test_y = pixels[test], labels[test]

    def draw_parameters(self, rng: np.random.Generator) -> Floats:
        """Draw first parameters, float32[PARAMETERS]."""
        first = rng.standard_normal(PIXELS * HIDDEN) * (2 / PIXELS) ** 0.5
        second = rng.standard_normal(HIDDEN * DIGITS) * (2 / HIDDEN) ** 0.5
        return np.concatenate([first, np.zeros(HIDDEN), second, np.zeros(DIGITS)]).astype(np.float32)

    def gradient(self, parameters: Floats, batch: NDArray[np.int64]) -> Floats:
        """Compute the gradient of the mean cross entropy of a batch, float32[PARAMETERS], a new array.

        batch: places of the images among those for training.
        """
        x, y = self.x[batch], self.y[batch]
        first, bias, second, last = _parts(parameters)
        hidden = np.maximum(x @ first + bias, 0)
        off = _softmax(hidden @ second + last)
        # Softmax less one-hot labels: the gradient of cross entropy by the logits.
        off[np.arange(len(y)), y] -= 1
        off /= len(y)
        back = (off @ second.T) * (hidden > 0)
        return np.concatenate([(x.T @ back).ravel(), back.sum(0), (hidden.T @ off).ravel(), off.sum(0)])

    def loss(self, parameters: Floats, batch: NDArray[np.int64]) -> float:
        """Compute the mean cross entropy of a batch, in nats."""
        odds = _softmax(self._logits(parameters, self.x[batch]))
        return float(-np.log(odds[np.arange(len(batch)), self.y[batch]]).mean())

    def accuracy(self, parameters: Floats) -> float:
        """Return the share of test images, 0 to 1, that are named right."""
        return float((self._logits(parameters, self.test_x).argmax(1) == self.test_y).mean())

    def _logits(self, parameters: Floats, x: Floats) -> Floats:
        first, bias, second, last = _parts(parameters)
        return np.asarray(np.maximum(x @ first + bias, 0) @ second + last)


def _parts(parameters: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    first, bias, second, last = np.split(parameters, np.cumsum([PIXELS * HIDDEN, HIDDEN, HIDDEN * DIGITS]))
    return first.reshape(PIXELS, HIDDEN), bias, second.reshape(HIDDEN, DIGITS), last


def _softmax(logits: Floats) -> Floats:
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(odds / odds.sum(1, keepdims=True))


Mask = NDArray[np.bool_]


class Deliveries(NamedTuple):
    """Packets of one all-reduce, bool[workers, chunks] each.

    present: contributions that arrived in time, at least one for every chunk.
    lost: results that did not reach a worker.
    """

    present: Mask
    lost: Mask


def draw_deliveries(rng: np.random.Generator, workers: int, chunks: int, loss: float, stragglers: int) -> Deliveries:
    """Draw from `rng` which packets of one all-reduce arrive.

    Each packet is lost with probability `loss`, independently, in both directions. All contributions of `stragglers`
    random workers are late. Each chunk keeps at least one contribution: `stragglers` must be less than `workers`.
    """
    present = rng.random((workers, chunks)) >= loss
    lost = rng.random((workers, chunks)) < loss
    late = rng.permutation(workers)[:stragglers]
    present[late] = False
    # A chunk without any contribution would have no result: one worker that is in time contributes.
    empty = np.flatnonzero(~present.any(axis=0))
    in_time = np.setdiff1d(np.arange(workers), late)
    present[rng.choice(in_time, empty.size), empty] = True
    return Deliveries(present, lost)


def allreduce(
    codec: LookupTableCodec,
    vectors: Sequence[NDArray[np.float32]],
    context: tuple[int, int],
    feedback: Sequence[ErrorFeedback | None],
    deliveries: Deliveries | None,
    *,
    published: bool,
) -> list[NDArray[np.float32]]:
    """Do one all-reduce with lost packets and late workers. Return the mean that each worker ends with.

    Args:
        codec: codec of all workers. Its granularity is even if `published`, so that half of it stands for zero.
        vectors: one per worker, float32[n].
        context: seed and step.
        feedback: one per worker, without an all-reduce in progress, which gets the new residual. None: the codec has
            none.
        deliveries: lost packets. None: nothing is missing.
        published: True for the behaviour of the published scheme, False for hopsum's.
    """
    reductions = [codec.start(x, ReductionContext(*context, rank), feedback[rank]) for rank, x in enumerate(vectors)]
    while (phase := reductions[0].phase) is not None:
        payloads = [each.phase.payloads for each in reductions if each.phase is not None]
        # Only packets with codes are lost: `Deliveries` counts chunks of codes, and ranges have no error feedback to
        # go back to.
        sums = phase.op != Op.MAX32
        present = deliveries.present if deliveries is not None and sums else None
        results, contributors = simulate_switch(phase.op, payloads, codec.lookup, present)
        if published and present is not None:
            results, contributors = fill_missing_with_zeros(codec, results, present)
        for reduction in reductions:
            reduction.on_results(results, contributors)
    means = [each.mean for each in reductions if each.mean is not None]
    if published and deliveries is not None:
        # A chunk is a block, and blocks are rotated by themselves: without its result the mean is 0 there, and nowhere
        # else. The error feedback took all chunks as delivered.
        for mean, gone in zip(means, deliveries.lost, strict=True):
            mean[gone.repeat(codec.block_elements)[: mean.size]] = 0
    return means


def fill_missing_with_zeros(
    codec: LookupTableCodec, results: NDArray[np.uint8], present: Mask
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Return results as if missing workers had sent zeros, and bitmaps with all workers as contributors.

    Zero is half the granularity. `results` stays as it is.
    """
    lanes = results.view(_lane_type(codec)) + (~present).sum(axis=0)[:, None] * (codec.granularity // 2)
    everybody = np.full(len(results), (1 << len(present)) - 1, np.uint64)
    return np.ascontiguousarray(lanes.astype(_lane_type(codec))).view(np.uint8), everybody


def _lane_type(codec: LookupTableCodec) -> np.dtype[Any]:
    return np.dtype(SHAPES[codec.op].lane_dtype)


BATCH: Final = 16
"""Images of a worker in a step."""
RATE: Final = 0.1
MOMENTUM: Final = 0.9
LANE_BITS: Final = 16


@dataclass(frozen=True, slots=True)
class LossCase:
    """A training of the loss section."""

    scheme: str
    """"fp32": exact means. "ours" and "published": as the table of this module has it."""
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
    """Figures of a training."""

    accuracy: float
    """The accuracy on the test images, mean over the workers."""
    apart: float
    """Largest distance of a worker's parameters from their mean, over the norm of the mean."""
    residual: list[float]
    """Norm of the error feedback of worker 0, over that of its gradient then on average, per tenth of the training: 0
    where the codec has no error feedback."""


def make_case_codec(case: LossCase) -> LookupTableCodec:
    """Make the codec of a case of scheme "published", THC with lanes of 16 bits, or "ours", codec thc of its bits."""
    if case.scheme == "published":
        made = make_codec(thc_published.NAME, workers=case.workers, lane_bits=LANE_BITS)
    else:
        made = make_codec("thc" if case.bits == CODE_BITS else f"thc:bits={case.bits}", workers=case.workers)
    assert isinstance(made, LookupTableCodec)
    return made


def train(learner: Learner, case: LossCase, settings: Settings, repeat: int) -> TrainingOutcome:
    """Train once in memory. Return the figures. First parameters and batches are the same for all schemes.

    They follow from settings and `repeat`, batches from the number of workers too.
    """
    workers = range(case.workers)
    first = learner.draw_parameters(settings.rng("data", "parameters", repeat))
    parameters, speed = [first.copy() for _ in workers], [np.zeros_like(first) for _ in workers]
    # Streams by repeat and number of workers, not by scheme: all schemes meet the same batches.
    batches, losses = settings.rng("batch", repeat, case.workers), settings.rng("loss", repeat, case.workers)
    codec = None if case.scheme == "fp32" else make_case_codec(case)
    keeps = codec is not None and feeds_back(codec)
    feedback = [ErrorFeedback(PARAMETERS) if keeps else None for _ in workers]
    residual, size = [], []
    # Steps in which all workers together see every training image once.
    pass_steps = max(1, len(learner.y) // (BATCH * case.workers))
    for step in range(case.steps):
        chosen = batches.integers(0, len(learner.y), (case.workers, BATCH))
        gradients = [learner.gradient(parameters[rank], chosen[rank]) for rank in workers]
        means = _means(case, codec, gradients, (settings.derive_seed("codec", repeat), step + 1), feedback, losses)
        for rank in workers:
            speed[rank] = MOMENTUM * speed[rank] + means[rank]
            parameters[rank] = parameters[rank] - np.float32(RATE) * speed[rank]
        if case.sync and (step + 1) % pass_steps == 0:
            # What the published scheme proposes against drift: parameters are averaged in full precision.
            together = np.mean(parameters, axis=0)
            parameters = [together.copy() for _ in workers]
        residual.append(0.0 if feedback[0] is None else float(np.linalg.norm(feedback[0].residual)))
        size.append(float(np.linalg.norm(gradients[0])))
    return TrainingOutcome(float(np.mean([learner.accuracy(each) for each in parameters])), _apart(parameters),
                   _per_tenth(residual, size))  # fmt: skip


def _means(
    case: LossCase,
    codec: LookupTableCodec | None,
    gradients: list[Floats],
    context: tuple[int, int],
    feedback: list[ErrorFeedback | None],
    losses: np.random.Generator,
) -> list[Floats]:
    if codec is None:
        return [np.mean(gradients, axis=0)] * case.workers
    deliveries = None
    if case.loss or case.stragglers:
        deliveries = draw_deliveries(
            losses, case.workers, blocks_of(PARAMETERS, codec.block_elements), case.loss, case.stragglers
        )
    return allreduce(codec, gradients, context, feedback, deliveries, published=case.scheme == "published")


def _apart(parameters: list[Floats]) -> float:
    middle = np.mean(parameters, axis=0)
    return max(float(np.linalg.norm(each - middle)) for each in parameters) / float(np.linalg.norm(middle))


def _per_tenth(residual: list[float], size: list[float]) -> list[float]:
    above, below = ([float(part.mean()) for part in np.array_split(np.array(each), 10)] for each in (residual, size))
    return [one / other if other else 0.0 for one, other in zip(above, below, strict=True)]
