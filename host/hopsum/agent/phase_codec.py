# SPDX-License-Identifier: Apache-2.0
"""The codec's part of all-reduces: the payloads of their next phases, and the sums that their reductions take."""

from __future__ import annotations

import time

from hopsum.agent.allreduce_record import AllReduceRecord
from hopsum.agent.phase_order import PhaseOrder
from hopsum.agent.phases_in_flight import PhasesInFlight
from hopsum.agent.task import Task
from hopsum.codec import Codec, CollectiveError, ReductionContext
from hopsum.codec.interface import CollectivePhase, Reduction
from hopsum.transport.sharded_allreduce import part_chunks
from hopsum.transport.transport import Transport
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES


class PhaseCodec:
    """Runs the reductions of an agent's all-reduces. For the thread that drives.

    Args:
        context: its step is not used.
        transport: says whether it has a compiled loop, which may begin a phase.
    """

    def __init__(
        self,
        codec: Codec,
        context: ReductionContext,
        order: PhaseOrder,
        in_flight: PhasesInFlight,
        transport: Transport,
        record: AllReduceRecord,
    ) -> None:
        self._codec, self._context = codec, context
        self._order, self._in_flight, self._transport, self._record = order, in_flight, transport, record

    def next_phase(self, task: Task) -> CollectivePhase | None:
        """Return the phase that a task has for the stream now, with payloads or for a coder. Begin its reduction.

        None: it must wait for its ranges, or nothing is left to share.
        """
        if task.zeros is not None:
            return task.zeros
        reduction = task.reduction or self._start(task)
        return self._second_phase(task, reduction) if task.waiting else reduction.phase

    def coder(self, task: Task, phase: CollectivePhase) -> Reduction | None:
        """Return the reduction if it makes payloads of this phase later, or reads its sums early, else None."""
        reduction = task.reduction
        assert reduction is not None
        # The first phase is signed with its payloads. Zeros are complete.
        if not task.begun or task.zeros is not None:
            return None
        is_streamed = reduction.encoded < len(phase.payloads) or reduction.stream is not None
        # Only a last phase is read early, and only without a follower: the follower would need the sums at once.
        is_read_early = phase.last and self._order.overlap and task.follower is None
        return reduction if is_streamed or is_read_early else None

    def take(self, task: Task) -> bool:
        """Pass the sums that arrived to the task's reduction. Return whether the reduction has ended.

        Raises CollectiveError if there is no mean on any rank, and the codec's other errors.
        """
        reduction, arrived = task.reduction, task.arrived
        assert reduction is not None
        assert arrived is not None
        task.arrived, task.waiting = None, False
        start = time.perf_counter()
        self._record.count_lanes(reduction.phase)
        try:
            reduction.on_results(arrived.results, arrived.contributors)
        except CollectiveError:
            self._leave_out(task, reduction)
            raise
        has_ended = reduction.phase is None
        self._record.span(task, "decode" if has_ended else "encode", start)
        if has_ended:
            self._leave_out(task, reduction)
        return has_ended

    def _start(self, task: Task) -> Reduction:
        """Begin a task's reduction."""
        task.started_s = time.perf_counter()
        vector = task.vector
        context = ReductionContext(self._context.seed, task.step, self._context.rank)
        reduction = vector.start(self._codec, context, tensors=task.tensors, on_nonfinite=task.on_nonfinite)
        if self._order.overlap:
            chunks = vector.elements // SHAPES[Op.LOOKUP_ADD8].elements
            reduction.encode_in_parts(part_chunks(chunks), compiled=self._transport.has_loop)
        task.reduction = reduction
        self._record.span(task, "prepare", task.started_s)
        return reduction

    def _second_phase(self, task: Task, reduction: Reduction) -> CollectivePhase | None:
        """Return the phase of codes whose ranges are in flight, or None if the codes must wait for the ranges."""
        are_here = task.arrived is not None or task.first
        # Vectors that have not begun come first: their ranges are computed while the network is busy.
        if not self._transport.has_loop or are_here or not self._order.tasks[-1].begun:
            return None
        return reduction.begin_second_phase()

    def _leave_out(self, task: Task, reduction: Reduction) -> None:
        """Sum zeros in place of skipped codes, because another rank may have their phase in the stream (O5)."""
        phase = reduction.zero_phase
        if phase is not None and task.fully_submitted:
            self._in_flight.fill(task, phase)
        else:
            task.zeros = phase
