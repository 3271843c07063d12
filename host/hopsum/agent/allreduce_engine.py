# SPDX-License-Identifier: Apache-2.0
"""The engine of an agent: schedules codec work and network, and ends all-reduces after a failure.

The driving thread (driver.py) encodes and decodes while other chunks are in flight, and serves the network in between.
It blocks only if there is no codec work. `phase_order` determines the next phase.

    an all-reduce       input                            next       also
    QUEUED              its turn in the stream (order)   SHARING    codec.start; first phase to the network
    SHARING             results, another phase left      SHARING    encoded now, to the network in its turn
    SHARING             results, none left               DONE       its future has the mean
    SHARING             CollectiveError                  DONE       its future has the error, on all ranks
    SHARING             MismatchError                    FAILED     on all ranks, by the signature (signature.py)
    QUEUED, SHARING     WorkersReplacedError             DONE       on all ranks; its error feedback has the vector
    QUEUED, SHARING     any other failure                FAILED     the agent fails too, see below
    any                 close                            DONE       CommunicatorClosedError

When one all-reduce fails, no further phase enters the stream. Earlier all-reduces with all phases in the stream
(`fully_submitted`) complete. Then the others end in the order of submission: the failed one with its error, the rest
with GenerationEndedError. In this order each all-reduce returns its vector to an error feedback that no other
all-reduce uses.

The transport and the driver have the sockets, locks and clocks of the protocol; none may be in this file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Literal, NamedTuple

from hopsum.agent.agent_failure import AgentFailure
from hopsum.agent.allreduce_record import AllReduceRecord
from hopsum.agent.allreduce_results import CommunicatorClosedError, CommunicatorStatistics, Span
from hopsum.agent.driver import Driver
from hopsum.agent.phase_codec import PhaseCodec
from hopsum.agent.phase_order import PhaseOrder, ResumeCommand, Submitted
from hopsum.agent.phases_in_flight import PhasesInFlight
from hopsum.agent.progress import Progress
from hopsum.agent.signature import Signer
from hopsum.agent.task import Task
from hopsum.agent.task_ends import TaskEnds
from hopsum.codec import Codec, CollectiveError, ReductionContext
from hopsum.errors import HopsumError, WorkersReplacedError
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed
from hopsum.transport.shard import ShardContinuation
from hopsum.transport.transport import Transport
from hopsum_wire.generations import Sealed

CLOSE: Final = None
"""The message of `close`."""
RESUMED: Final = "resumed"
"""The message of a new generation."""
# Limited, so that a missing wake-up delays an all-reduce and does not hang it.
_WAIT_S: Final = 1.0
"""The longest wait for a datagram. New messages end the wait."""
# A step of the network costs some 0.1 ms, and a window of datagrams is in flight for longer than this.
LOOK_EVERY_S: Final = 0.001


class Ended(NamedTuple):
    """The message that no more results will arrive."""

    error: BaseException


Message = Submitted | Ended | Literal["resumed"] | None


class AllReduceEngine:
    """Runs all-reduces until CLOSE. Only `driver`, `seal`, `resume` and `wake` are for any thread.

    Args:
        context: its step is not used.
        transport: used until `driver.run` returns. The caller closes it.
        follow_s: the longest wait of an all-reduce with `more` for the next one.
        trace: called with every span of time, in the driving thread.
        on_failure: called once, before any future has the error.
        on_stall: called in the driving thread while no datagram arrives.
        counted: counts all-reduces, without traffic, in the driving thread.
        begun: the number of the job's all-reduces before this agent's first.
    """

    def __init__(
        self,
        codec: Codec,
        context: ReductionContext,
        transport: Transport,
        *,
        generation: int,
        overlap: bool,
        follow_s: float,
        trace: Callable[[Span], None] | None,
        on_failure: Callable[[BaseException], None],
        on_stall: Callable[[], None] = lambda: None,
        counted: CommunicatorStatistics,
        begun: int = 0,
    ) -> None:
        self.driver: Final[Driver[Message]] = Driver(self)
        self.transport: Final = transport
        self.progress: Final = Progress(transport.shards, on_stall)
        self.generation = generation
        """The generation that messages name."""
        self.is_closed = False
        self._rank = context.rank
        self._failure = AgentFailure(context.rank, on_failure)
        self._order = PhaseOrder(overlap=overlap, follow_s=follow_s, rank=context.rank)
        self._in_flight = PhasesInFlight(transport, Signer(codec, context, overlap=overlap), begun)
        self._record = AllReduceRecord(counted, [shard.statistics for shard in transport.shards], trace)
        self._codec = PhaseCodec(codec, context, self._order, self._in_flight, transport, self._record)
        self._ends = TaskEnds(self._order, self._record)
        self._made = False
        """Whether a phase was added or filled since the last step of the network."""
        self._moved_at = 0.0

    @property
    def failure(self) -> BaseException | None:
        """Return the error that ended the agent before `close`, or None."""
        return self._failure.error

    def closing_error(self) -> HopsumError:
        """Return the error of an all-reduce that is submitted after a failure or the generation's end."""
        return self._failure.closing_error(self.generation)

    # ---- generations, in any thread -------------------------------------------------------------------

    def seal(self) -> tuple[Sealed, int]:
        """Seal this generation. Return the results held, and the number of the job's all-reduces begun.

        Raises TypeError for a transport without peers.
        """
        return self.transport.seal(), self._in_flight.begun

    def resume(self, generation: int, continuations: Sequence[ShardContinuation]) -> None:
        """Continue in another generation, after `seal`, with a continuation for each shard."""
        self.progress.begin()
        self.transport.resume(generation, continuations)
        self.generation = generation
        self.driver.put(RESUMED)

    # ---- for the driver -------------------------------------------------------------------------------

    def wake(self) -> None:
        """End the network's wait at once. Any thread."""
        self.transport.wake()

    def is_left(self) -> bool:
        """Say whether anything in progress can advance."""
        # Phases of a sealed generation cannot advance before RESUMED, which wakes the driver.
        moves = self._in_flight.handles and not self.transport.is_sealed
        return bool(self.is_closed or self._order.tasks or moves)

    def note_break(self, error: BaseException) -> None:
        """Close the engine after an error at an unknown point, after which the state of the tasks is undefined.

        The error becomes `failure`, unless there is one.
        """
        self.is_closed = True
        self._failure.note(error)

    def drive(self, until: Future[Any] | None) -> None:
        """Encode, send, receive and decode until a future is done; without one, while a task is in progress.

        Returns earlier when the engine is closed or a signal handler has raised an error.
        """
        driver, order, failure = self.driver, self._order, self._failure
        while True:
            if driver.inbox:
                self._listen()
            if self.is_closed or driver.interrupt is not None or (until is not None and until.done()):
                return
            busy = self._work() if failure.error is None else self._end_failed()
            if busy and not self._is_network_due():
                continue
            if self._in_flight.handles and not self.transport.is_sealed:
                self._move(0.0 if busy else _WAIT_S)
            elif not busy:
                if until is None and not self._order.tasks:
                    return
                driver.wait_for_message(order.follower_wait_s(None))
            if busy or failure.error is not None:
                continue
            # The inbox last: the follower may come meanwhile.
            if (error := order.follower_error()) is not None and not driver.inbox:
                self._fail(self._order.tasks[-1], error)

    def end(self) -> None:
        """End all remaining tasks, also those in the inbox, in the order of submission.

        A task gets its own error if it has one, else CommunicatorClosedError, or `closing_error` after a failure.
        """
        self._listen()
        self._order.accept_all_held()
        while self._order.tasks:
            task = self._order.tasks[0]
            when = "in the middle of" if task.begun else "before"
            closed = CommunicatorClosedError(f"agent of rank {self._rank} was closed {when} this all-reduce")
            self._ends.fail(task, task.error or (closed if self.failure is None else self.closing_error()))

    def _listen(self) -> None:
        """Process all messages in the inbox."""
        # Before the next codec work, which takes milliseconds: the order of phases needs all messages. A message is
        # removed after it was processed, so that a signal handler that raises in between loses none.
        while self.driver.inbox:
            self._note(self.driver.inbox[0])
            self.driver.inbox.popleft()

    def _note(self, message: Message) -> None:
        if message is CLOSE:
            self.is_closed = True
        elif isinstance(message, Ended):
            self._end_generation(message.error)
        elif message != RESUMED:  # it only ends a wait
            self._order.note(message)

    # ---- the network ----------------------------------------------------------------------------------

    def _is_network_due(self) -> bool:
        """Say whether a step of the network comes before the next codec work."""
        if self._made:
            # A single all-reduce has no other codec work: the network's step is next anyway.
            return len(self._order.tasks) != 1
        return time.monotonic() - self._moved_at >= LOOK_EVERY_S

    def _move(self, wait_s: float) -> None:
        """Let the network send and receive, and process the events of phases."""
        driver, self._made = self.driver, False
        try:
            driver.in_network = wait_s > 0
            # Read after `in_network` is set: a later message wakes the network.
            if driver.inbox:
                wait_s = 0.0
            events = self.transport.step(self._order.follower_wait_s(wait_s) or 0.0)
            self.progress.look()
        except Exception as error:
            self._end_generation(error)
            return
        finally:
            driver.in_network = False
        self._moved_at = time.monotonic()
        driver.interrupt, self.transport.interrupt = self.transport.interrupt, None
        for event in events:
            for task, end in self._in_flight.on_event(event):
                if isinstance(end, AllReduceDone):
                    self._note_done(task, end)
                else:
                    self._note_failed(task, end.error)

    def _note_done(self, task: Task, done: AllReduceDone) -> None:
        """Process the results of a task's phase."""
        # `_resume` has ended it without its results, these are of zeros, or another shard refused a part of its phase.
        if task.has_ended or not task.begun:
            return
        assert task.reduction is not None
        phase = task.reduction.phase
        self._record.arrived(task, phase)
        task.arrived = done
        if task.fully_submitted and phase is not None and not phase.last:
            # Its codes follow these ranges in the stream, and may be in flight or complete.
            self._record.sent(task)
            self._take(task)

    def _note_failed(self, task: Task, error: BaseException) -> None:
        """Process the failure of a task's phase."""
        # No rank needs the sums of a skipped task's zeros, and a rank that has finished its program sends none.
        if isinstance(error, WorkersReplacedError) or task.has_ended:
            if task in self._order.tasks:
                self._ends.fail(task, error)
        else:
            self._fail(task, error)

    # ---- codec work -----------------------------------------------------------------------------------

    def _work(self) -> bool:
        """Encode for the network, or decode results. Return whether there was any work."""
        is_network_busy, arrived, with_more = False, list[Task](), list[Task]()
        for task in self._order.tasks:
            if not task.begun:  # and so is none after it
                break
            if task.arrived is None:
                is_network_busy |= task.fully_submitted
                continue
            arrived.append(task)
            if not task.fully_submitted:
                with_more.append(task)
        # Decode a complete vector before encoding while the network is busy with other vectors: it keeps its sums and a
        # second residual buffer in memory.
        if not is_network_busy or len(with_more) == len(arrived):
            if self._send_next():
                return True
            # First a task with more to send.
            arrived = with_more or arrived
        if arrived:
            self._take(arrived[0])
        return bool(arrived)

    def _send_next(self) -> bool:
        """Put the next phase into the stream if its payloads can be made. Return whether there was one."""
        if self.transport.is_sealed:
            return False
        task, resume = self._order.next(), self._order.due_resume
        if resume is not None:
            return self._resume(resume)
        if task is None:
            return False
        try:
            return self._send(task)
        except BaseException as error:
            self._fail(task, error)
        return True

    def _resume(self, resume: ResumeCommand) -> bool:
        """Accept the tasks that were submitted after the program knew of newcomers; end older incomplete ones.

        Return False, and do nothing, while the generation is sealed.
        """
        if not self._in_flight.resume_at(resume):
            return False
        for task in [each for each in self._order.tasks if not each.fully_submitted]:
            self._ends.fail(task, resume.error)
        self._order.accept_held()
        return True

    def _send(self, task: Task) -> bool:
        """Put the next phase of a task into the stream. Return False if it is not ready or the generation is sealed."""
        phase = self._codec.next_phase(task)
        if phase is None:
            if task.waiting:
                return False
            self._ends.finish(task)  # nothing to share
            return True
        if not self._in_flight.handles:
            self.progress.begin()
        try:
            if not self._in_flight.put(task, phase, self._codec.coder(task, phase)):
                return False
        except Exception as error:
            if task.waiting and isinstance(error, WorkersReplacedError):
                # Newcomers begin directly after the ranges, which tell whether all ranks skip.
                task.fully_submitted, task.codes = True, AllReduceFailed(0, error)
            else:
                self._note_failed(task, error)
            return True
        self._made = True
        if task.zeros is not None:
            self._order.tasks.remove(task)
            return True
        # After its last phase is in the stream, later tasks may follow, and a failure no longer has to stop this one.
        task.waiting, task.fully_submitted = True, phase.last
        self._record.sent(task)
        return True

    def _take(self, task: Task) -> None:
        """Pass the sums that arrived to the task's reduction, and end the task if its reduction has ended."""
        try:
            has_ended = self._codec.take(task)
        except CollectiveError as error:
            self._ends.refuse(task, error)
        except BaseException as error:
            self._fail(task, error)
        else:
            if has_ended:
                self._ends.finish(task)

    # ---- failures -----------------------------------------------------------------------------------------

    def _fail(self, task: Task, error: BaseException) -> None:
        """Record the failure of a task, and of the agent."""
        if error is self.failure:  # the worker reports it for each phase in progress
            error = self.closing_error()
        task.error = task.error or error
        self._failure.note(error)

    def _end_generation(self, error: BaseException) -> None:
        """Record that no more results will arrive."""
        self._in_flight.handles.clear()
        if self._order.tasks:
            self._fail(self._order.tasks[0], error)
        else:
            self._failure.note(error)

    def _end_failed(self) -> bool:
        """After a failure: let the oldest task complete, or end it. Return whether there was any work."""
        self._order.accept_all_held()
        if not self._order.tasks:
            self._in_flight.handles.clear()
            return False
        oldest = self._order.tasks[0]
        if oldest.error is None and oldest.fully_submitted:
            if oldest.arrived is not None:
                self._take(oldest)
                return True
            if self._in_flight.handles:
                return False
        # Codes of later tasks may wait for this task's codes: no more results are awaited.
        self._in_flight.handles.clear()
        self._ends.fail(oldest, oldest.error or self.closing_error())
        return True
