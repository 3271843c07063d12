# SPDX-License-Identifier: Apache-2.0
"""The phases in the stream, by the transport's handles, and the meaning of their events for an all-reduce.

The first phase of an all-reduce travels in parts, of which the first one carries the signature of the call
(signature.py). Codes may end before their ranges. An all-reduce gets the end of one whole phase after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hopsum.agent.phase_order import ResumeCommand
from hopsum.agent.signature import LANES, MismatchError, Signer, without_signature
from hopsum.agent.task import Task
from hopsum.codec.interface import CollectivePhase, Reduction
from hopsum.errors import WorkersReplacedError
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed
from hopsum.protocol.worker_state import AllReduceEvent
from hopsum.transport.transport import Transport


class PhasesInFlight:
    """The phases whose events are to come. For the thread that drives.

    Args:
        begun: all-reduces that the stream had before.
    """

    def __init__(self, transport: Transport, signer: Signer, begun: int) -> None:
        self._transport, self._signer = transport, signer
        self.begun = begun
        """All-reduces that have a phase in the stream. It does not change while the generation is sealed."""
        self.handles: dict[int, tuple[Task, int]] = {}
        """By handle of the transport, the task of each phase in the stream, and the part of it."""

    def put(self, task: Task, phase: CollectivePhase, coder: Reduction | None) -> bool:
        """Append a task's next phase to the stream. The first one has parts, each with a handle and results of its own.

        No generation ends between them. Return False, and do nothing, while the generation is sealed. Raises the errors
        of `Transport.submit`. Then earlier parts stay in the stream and have their events.

        Args:
            coder: makes missing payloads, and reads sums early, see `Transport.submit`.
        """
        transport, handles = self._transport, list[int]()
        parts = (phase,) if task.begun else self._signer.sign(task, phase)
        # The latest handles of a waiting task are those of its ranges, whose sums the coder needs first.
        ranges = task.handles if task.waiting else ()
        with transport.lock:
            if transport.is_sealed:
                return False
            for number, part in enumerate(parts, task.parts):
                given = (part.op, part.payloads, part.counts())
                handle = transport.submit(*given, coder=coder, ranges=ranges, lanes_before=LANES)
                self.handles[handle] = task, number
                handles.append(handle)
            # The controller asks how many all-reduces have begun: only those in the stream count.
            self.begun = max(self.begun, task.number + 1)
        if not task.begun:
            task.parts = len(parts)
        task.handles, task.begun = handles, True
        return True

    def fill(self, task: Task, phase: CollectivePhase) -> None:
        """Give a task's latest phase all of its payloads, in place of its coder."""
        for handle in task.handles:
            # With a quorum, the phase's results may be here already: then the handle has ended.
            self._transport.fill(handle, phase.payloads)

    def resume_at(self, message: ResumeCommand) -> bool:
        """Put later phases at the newcomers' start, and set `begun`. Return False, and do nothing, while sealed."""
        with self._transport.lock:
            if self._transport.is_sealed:
                return False
            self._transport.resume_at(message.start_generation, message.starts)
            self.begun = message.allreduces
        return True

    def on_event(self, event: AllReduceEvent) -> Iterator[tuple[Task, AllReduceEvent]]:
        """Process an event of the transport. Yield the tasks and ends of the phases that it completes, in stream order.

        Nothing is yielded while a part of the phase is missing. The caller processes each end before it takes the next
        one. An AllReduceDone has the sums without signature. If the ranks' calls differ, the end is an AllReduceFailed
        with MismatchError.
        """
        task, part = self.handles.pop(event.handle)
        is_replaced = isinstance(event, AllReduceFailed) and isinstance(event.error, WorkersReplacedError)
        # Codes may end before their ranges: with a quorum, or void. The ranges say whether all ranks skip.
        if task.parts and part == task.parts and (is_replaced or isinstance(event, AllReduceDone)):
            task.codes = event
            return
        end = event if isinstance(event, AllReduceFailed) or not task.parts else self._joined(task, part, event)
        if end is not None:
            yield task, end
        if task.codes is not None and not task.parts:
            event, task.codes = task.codes, None
            yield task, event

    def _joined(self, task: Task, part: int, event: AllReduceDone) -> AllReduceEvent | None:
        """Return the end of a task's first phase, None while a part of it is missing, or the task has ended."""
        if task.has_ended:
            return None
        task.first[part] = event
        try:
            # MAX32 of equal and of negated facts tells whether all ranks made the same call.
            if part == 0:
                self._signer.compare(task, event.results)
        except MismatchError as error:
            return AllReduceFailed(event.handle, error)
        return _whole(task) if len(task.first) == task.parts else None


def _whole(task: Task) -> AllReduceDone:
    """Return the results of a task's first phase as its reduction takes them, once all parts are here."""
    assert task.reduction is not None
    assert task.reduction.phase is not None
    done = task.first[0]
    results, contributors = done.results, done.contributors
    # The signature's chunk, and the others if there are any (`Signer.sign`).
    if task.parts == 2:
        done = task.first[1]
        results = np.concatenate((results, done.results))
        contributors = np.concatenate((contributors, done.contributors))
    task.first, task.parts = {}, 0
    results, contributors = without_signature(task.reduction.phase, results, contributors)
    return replace(done, results=results, contributors=contributors)
