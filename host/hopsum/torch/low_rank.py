# SPDX-License-Identifier: Apache-2.0
"""Gradients as factors of low rank that the network sums: the order of the sums of a step.

Ranks hand the communicator one sequence of vectors, whatever their timing. The vectors P of buckets 0 to n - 1 come
first, each as its bucket arrives. With the last of them a place in the order is reserved (`sum_order.py`), in which the
vectors Q of buckets 0 to n - 1 follow, in this order:

    state of a bucket    event                                                    next
    FIRST                its P has a mean: Q_i is made                            READY
    FIRST                its P has none: no rank has one                          OVER
    READY                the place is open, no bucket before is FIRST or READY    SECOND, Q_i is submitted
    SECOND               its Q has a mean, or none                                OVER

Whether a bucket has a Q depends on its own P alone, so the sequence is the same on all ranks. The vectors P are one
group of the communicator, and the vectors Q another: a group's last vector waits for the group's end, and no Q is there
before its P is. Two numbers of all-reduces belong to each bucket, also where it has no Q.

A step may be given up after its last bucket, as that of a DiLoCo which is made anew. Ranks are at different sums of it
then. The place stays, and zeros are sent in it for each Q that is not submitted yet: other ranks may have submitted
theirs.

One thread makes Q_i and means, one after the other. The communicator's thread serves the network meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from hopsum.agent import AllReduceResult, Communicator, MismatchError
from hopsum.codec.interface import CollectiveError, NonFiniteError, OnNonfinite, feeds_back
from hopsum.torch.device_codec import DeviceCodecs
from hopsum.torch.low_rank_factors import (
    PAYS_BY,
    DevicePortion,
    Factors,
    HostPortion,
    LowRankPortion,
    MatrixLayout,
    MatrixShape,
    largest_rank,
    shape_of,
)
from hopsum.torch.residuals import Residuals
from hopsum.torch.step import Step
from hopsum.torch.step_times import Tally
from hopsum.torch.sum_order import SumOrder

DENSE_STEPS: Final = 10
"""Steps at the start that the codec carries whole: the first gradients have no few directions, and Q is random."""
_CPU: Final = torch.device("cpu")
_log: Final = logging.getLogger(__name__)


def require_low_rank(low_rank: Any, low_rank_start: Any, *, error_feedback: bool) -> None:
    """Raise ValueError unless the options are whole numbers in their range and there is error feedback.

    A `low_rank` of None, no factors, needs no error feedback.
    """
    if type(low_rank_start) is not int or low_rank_start < 0:
        raise ValueError(f"low_rank_start={low_rank_start!r}: a whole number of steps, 0 or more")
    if low_rank is None:
        return
    if type(low_rank) is not int or low_rank < 1:
        raise ValueError(f"low_rank={low_rank!r}: a whole number, 1 or more, such as 8; None leaves it out")
    if not error_feedback:
        raise ValueError(
            f"low_rank={low_rank} with error_feedback=False: a matrix of low rank is never the whole gradient, and "
            "what it lacks would be lost; leave error_feedback out"
        )


def usual_rank(parameters: Iterable[torch.Tensor]) -> int:
    """Return the rank of factors for a model, 8 if it is a convolutional network, else 32.

    With it such models trained as in fp32. Convolutional networks need fewer directions (docs/performance.md).
    Half of a convolutional network's weight tensors are filters, or a twentieth of its weights are in filters.
    """
    # A small convolutional network has most weights in the matrices behind its filters. A transformer for images has
    # filters too, those of its patches: one tensor among many.
    shapes = [each.shape for each in parameters if each.dim() >= 2]
    filters = [shape for shape in shapes if len(shape) > 2]
    weights, in_filters = (sum(shape.numel() for shape in some) for some in (shapes, filters))
    return 8 if filters and (2 * len(filters) >= len(shapes) or 20 * in_filters > weights) else 32


class Matrices(NamedTuple):
    """The matrices of one state."""

    rank: int
    """Of their factors."""
    shapes: Mapping[str, MatrixShape]
    """Of the parameters that travel as factors, by name."""
    factors: Factors


def matrices_of(
    names: Mapping[torch.Tensor, str], plain: frozenset[str], low_rank: int, codec: Any, factors: Factors
) -> Matrices:
    """Return the parameters that travel as factors, where these have half of the elements or less; prepare `factors`.

    Args:
        names: of all parameters.
        plain: names of parameters that travel whole.
        low_rank: the rank of the factors.
        codec: of the communicator.
        factors: of the state. Their kernels are loaded, see `Factors.prepare`.

    Raises:
        ValueError: there is none; or the codec has no error feedback.
    """
    if not feeds_back(codec):
        raise ValueError(
            f"low_rank={low_rank} with codec {codec.name} without error feedback, which low rank needs: say "
            "error_feedback=true in the codec, as in thc:bits=2,error_feedback=true"
        )
    shapes = {name: shape for each, name in names.items() if name not in plain and (shape := shape_of(each))}
    found = {name: shape for name, shape in shapes.items() if low_rank <= largest_rank(shape)}
    if found:
        factors.prepare()
        return Matrices(low_rank, found, factors)
    if not shapes:
        raise ValueError(
            f"low_rank={low_rank}: no parameter that is compressed has two or more dimensions; leave low_rank out"
        )
    name, best = max(shapes.items(), key=lambda each: largest_rank(each[1]))
    most = largest_rank(best)
    remedy = f"take low_rank={most} or less" if most else "leave low_rank out"
    raise ValueError(
        f"low_rank={low_rank} pays for no parameter: factors of the best one, {name} of {best.rows} x {best.columns}, "
        f"have ({best.rows} + {best.columns}) * {low_rank} = {(best.rows + best.columns) * low_rank} elements, and "
        f"{best.rows * best.columns} / {PAYS_BY} is the most; {remedy}"
    )


class _State(Enum):
    """The state of a bucket: see the module."""

    FIRST = auto()
    READY = auto()
    SECOND = auto()
    OVER = auto()


@dataclass(slots=True)
class _Entry:
    """A bucket in a step."""

    portion: LowRankPortion
    step: Step
    number: int
    """Of the all-reduce of P. That of Q is the next one."""
    state: _State = _State.FIRST


@dataclass
class _StepSums:
    """The sums of one step. The worker's thread changes it; `placed`, and `entries` until then, the program's."""

    entries: list[_Entry] = field(default_factory=list)
    placed: bool = False
    """All P are there, and the place of the vectors Q is reserved."""
    open: bool = False
    """It is their turn."""
    next: int = 0
    """The first entry whose Q is not submitted."""
    grouped: bool = False
    """The group of the vectors Q is open."""
    abandoned: bool = False


class LowRank:
    """The matrices of one state, and the sums of the step in progress.

    Args:
        communicator: sums factors.
        order: of the sums of this communicator.
        matrices: of the state.
        residuals: of the state.
        device_codecs: of the communicator.
        on_nonfinite: as the state's.
        keeps_gradients: buffers have the rank's own gradients until the step has ended.
        times: of the state.
    """

    def __init__(
        self,
        communicator: Communicator,
        order: SumOrder,
        matrices: Matrices,
        residuals: Residuals,
        device_codecs: DeviceCodecs,
        *,
        on_nonfinite: OnNonfinite,
        keeps_gradients: bool,
        times: Tally,
    ) -> None:
        self.matrices = matrices
        self._communicator, self._order = communicator, order
        self._residuals, self._device_codecs = residuals, device_codecs
        self._on_nonfinite, self._keeps_gradients, self._times = on_nonfinite, keeps_gradients, times
        self.spared_elements = 0
        """Elements of gradients less those of their factors, over all sums so far."""
        self.measures_delivered = False
        """Whether the step in progress measures `delivered`. It takes two more passes over the matrices."""
        self._energy = [0.0, 0.0]
        """Of the step in progress: of gradient and residual, and of what its sums leave to the next step."""
        # A new thread asks for torch's number of threads first. Until then its matrix products take all processors,
        # also where the program has called set_num_threads(1).
        self._thread = ThreadPoolExecutor(1, "hopsum-low-rank", torch.get_num_threads)
        self._sums: _StepSums | None = None

    def begin_step(self) -> None:
        """Begin a step. If the step before has not ended, it is given up, and residuals are as before it."""
        before, self._sums = self._sums, _StepSums()
        if before is not None and not all(each.step.over.done() for each in before.entries):
            # In the thread that uses the residuals: they are free when this returns.
            self._thread.submit(self._abandon, before).result()
        self._energy = [0.0, 0.0]

    def layout(self, names: list[str], places: list[slice], elements: int) -> MatrixLayout:
        """Return the layout of matrices of a bucket."""
        shapes = [self.matrices.shapes[each] for each in names]
        return MatrixLayout(names, places, elements, shapes, self.matrices.rank)

    def portion(self, buffer: torch.Tensor, layout: MatrixLayout) -> LowRankPortion:
        """Make a bucket's portion, on the buffer's device if that has a codec, else on the host. No sum begins.

        The first call for a device compiles its codec, which takes seconds. Raises CodecError where the device has none
        and `codec_on` is "device".
        """
        place = self._device_codecs.codec_for(buffer.device)
        given, copies = (buffer, layout, self.matrices.factors, self._residuals), self._keeps_gradients
        if place is None:
            return HostPortion(*given, copies=copies, device=_CPU)
        return DevicePortion(*given, copies=copies, place=place)

    def send(self, portion: LowRankPortion, step: Step, number: int) -> None:
        """Begin the sums of a portion, for which `step.begin` was called. They call `step.end`, also where they fail.

        Args:
            number: of the all-reduce of P. The next one is that of Q.
        """
        sums = self._sums
        assert sums is not None
        portion.start()
        entry = _Entry(portion, step, number)
        sums.entries.append(entry)
        self._order.submit(
            partial(self._submit, entry),
            partial(self._hear, self._turn, sums, entry, 0),
            lambda error: self._thread.submit(self._refuse, sums, entry, error),
        )

    def complete(self) -> None:
        """Let the sums of Q follow: the last bucket of the step was submitted, and the group of its vectors ended."""
        sums = self._sums
        if sums is not None and sums.entries and not sums.placed:
            sums.placed = True
            self._order.reserve(partial(self._thread.submit, self._open, sums))

    def _submit(self, entry: _Entry) -> Future[AllReduceResult]:
        """Hand P, or Q in the state SECOND, to the communicator."""
        portion, second = entry.portion, entry.state is _State.SECOND
        tensors = [*(portion.right_tensors if second else portion.left_tensors), *portion.told]
        call: dict[str, Any] = {"step": entry.number + second, "tensors": tensors, "on_nonfinite": self._on_nonfinite}
        if second and not portion.has_right_factor:
            zeros = np.zeros(sum(portion.layout.right), np.float32)
            return self._communicator.submit(zeros, out=zeros, **call)
        return portion.submit(self._communicator, call)

    # ---- in the communicator's thread --------------------------------------------------------------------

    def _hear(
        self,
        then: Callable[[_StepSums, _Entry, Future[AllReduceResult]], None],
        sums: _StepSums,
        entry: _Entry,
        elements: int,
        done: Future[AllReduceResult],
    ) -> None:
        """Count an all-reduce, and let the worker continue with its result."""
        if done.exception() is None:
            self._times.end_allreduce(done.result(), elements)
        self._thread.submit(then, sums, entry, done)

    # ---- in the worker's thread ----------------------------------------------------------------------------

    def _refuse(self, sums: _StepSums, entry: _Entry, error: BaseException) -> None:
        """Hear that the communicator took no P."""
        entry.state = _State.OVER
        self._advance(sums)
        self._end(sums, entry, failure=error)

    def _turn(self, sums: _StepSums, entry: _Entry, done: Future[AllReduceResult]) -> None:
        """Take the sum of P."""
        failure: BaseException | None = None
        try:
            entry.state = _State.OVER if done.result().skipped else _State.READY
            if entry.state is _State.READY and not sums.abandoned:
                with torch.no_grad():
                    entry.portion.make_right_factor()
        except BaseException as error:
            entry.state, failure = _State.OVER, self._in_words(entry, error)
        over = entry.state is _State.OVER
        self._advance(sums)
        if over:
            self._end(sums, entry, failure=failure, dropped=failure is None)

    def _open(self, sums: _StepSums) -> None:
        sums.open = True
        self._advance(sums)

    def _advance(self, sums: _StepSums) -> None:
        """Submit every Q whose turn it is. Leave the place behind the last one."""
        if not sums.open:
            return
        failed = []
        while sums.next < len(sums.entries):
            entry = sums.entries[sums.next]
            if entry.state is _State.FIRST:
                return
            sums.next += 1
            if entry.state is _State.READY and (error := self._begin_second(sums, entry)) is not None:
                failed.append((entry, error))
        sums.open = False
        if sums.grouped:
            self._communicator.group_end()
        self._order.close_place()
        for entry, error in failed:
            self._end(sums, entry, failure=error)

    def _begin_second(self, sums: _StepSums, entry: _Entry) -> BaseException | None:
        """Submit Q. Return the error with which the communicator refuses it."""
        if not sums.grouped:
            self._communicator.group_start()
            sums.grouped = True
        try:
            entry.state = _State.SECOND
            future = self._submit(entry)
        except BaseException as error:
            return error
        future.add_done_callback(partial(self._hear, self._finish, sums, entry, sum(entry.portion.layout.sizes)))
        return None

    def _finish(self, sums: _StepSums, entry: _Entry, done: Future[AllReduceResult]) -> None:
        """Take the sum of Q."""
        try:
            skipped = sums.abandoned or done.result().skipped
            if not skipped:
                with torch.no_grad():
                    self._finish_portion(entry.portion)
        except BaseException as error:
            self._end(sums, entry, failure=self._in_words(entry, error))
            return
        if not skipped:
            layout = entry.portion.layout
            self.spared_elements += sum(layout.sizes) - sum(layout.left) - sum(layout.right)
        self._end(sums, entry, dropped=skipped)

    def _finish_portion(self, portion: LowRankPortion) -> None:
        if not self.measures_delivered:
            portion.finish()
            return
        self._energy[0] += portion.energy
        portion.finish()
        self._energy[1] += portion.energy

    @property
    def delivered(self) -> float:
        """Return the share of the energy of gradients and residuals that the last step delivered, 1 if not measured.

        1 - |residual after|^2 / |gradient + residual before|^2: the delta of a contraction.
        """
        all_of_it, left = self._energy
        return 1.0 - left / all_of_it if all_of_it else 1.0

    def _end(
        self, sums: _StepSums, entry: _Entry, *, failure: BaseException | None = None, dropped: bool = False
    ) -> None:
        entry.state = _State.OVER
        # An abandoned step has no end: nobody waits for it, and it must not change anything.
        if sums.abandoned:
            return
        try:
            entry.portion.withdraw()
            if dropped or isinstance(failure, NonFiniteError):
                entry.portion.drop_huge_residuals(self._communicator.rank)
        finally:
            # Nobody hears an error here: all go into the step.
            entry.step.end(entry.portion, failure=failure, dropped=dropped)

    def _in_words(self, entry: _Entry, error: BaseException) -> BaseException:
        """Return the error of a sum of factors in words of the matrices. Its type, which all ranks have, stays."""
        if isinstance(error, MismatchError):
            told: BaseException = error if entry.portion.has_right_factor else entry.portion.mismatch_error(error)
        elif isinstance(error, CollectiveError):
            told = entry.portion.overflow_error(error, self._communicator.rank)
        else:
            return error
        if told is not error:
            told.__cause__ = error
        return told

    def _abandon(self, sums: _StepSums) -> None:
        sums.abandoned = True
        for entry in sums.entries:
            # What has its mean takes it back. What has none yet continues without an effect.
            entry.portion.on_failed_step()
            entry.portion.withdraw()
