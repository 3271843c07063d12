# SPDX-License-Identifier: Apache-2.0
"""The engine of an agent: codecs, the order of phases, the network, futures, and what becomes of all in a failure.

One thread at a time drives the engine: the agent's own, or a caller of `allreduce` who finds nothing under way and so
needs nobody to wake up. Whoever drives makes codes and reads sums while others are on their way, and looks after the
network in between; it waits only where nothing else is to be done.

    who drives      input                                     next
    nobody          `put`                                     the agent's thread, which the bell wakes
    nobody          `help` (allreduce)                        the caller, until its own future is done
    a caller        its future is done, something is left     the agent's thread
    the agent's     nothing is in progress                    nobody

    an all-reduce       input                            next       also
    QUEUED              its turn in the stream (order)   SHARING    codec.start; first phase to the network
    SHARING             results, another phase left      SHARING    encoded now, to the network in its turn
    SHARING             results, none left               over       its future has the mean
    SHARING             CollectiveError                  over       its future has the error, on all ranks alike
    SHARING             MismatchError                    FAILED     on all ranks, by the signature (signature.py)
    QUEUED, SHARING     WorkersReplacedError             over       the same; its error feedback has the vector
    QUEUED, SHARING     anything else that fails         FAILED     and the agent with it, see below
    any                 close                            over       CommunicatorClosedError

When workers are replaced, all-reduces already submitted either complete (their result was decided) or fail with
WorkersReplacedError. The network decides which. All-reduces that the program submits after it knows of the
newcomers (after ResumeCommand) wait until the earlier ones are sealed or over.

When one all-reduce fails, no further phase enters the stream. Earlier all-reduces with all phases in the stream
(sealed) run to their own end. Then the others end in the order of submission: the failed one with its error, the rest
with GenerationEndedError. The order lets each all-reduce give its vector back to an error feedback that no other
all-reduce holds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Final, Literal, NamedTuple

import numpy as np

from hopsum.agent.allreduce_results import (
    AllReduceResult,
    CommunicatorClosedError,
    CommunicatorStatistics,
    SocketTraffic,
    Span,
)
from hopsum.agent.network import Network, ResumeCommand
from hopsum.agent.signature import MismatchError, Signer, unsigned
from hopsum.agent.task import Task
from hopsum.codec import Codec, CollectiveError, ReductionContext
from hopsum.codec.interface import CollectivePhase, Reduction
from hopsum.errors import GenerationEndedError, HopsumError, WorkersReplacedError
from hopsum.notice import WaitMonitor
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed
from hopsum.protocol.worker_state import AllReduceEvent
from hopsum.transport.spread import part_chunks
from hopsum.transport.transport import Transport
from hopsum_wire import Op
from hopsum_wire.membership import MembershipError
from hopsum_wire.payload import SHAPES

_log: Final = logging.getLogger(__name__)
CLOSE: Final = None
"""The message that `close` puts into the inbox."""
END_GROUP: Final = "end of group"
"""The message that `group_end` puts into the inbox."""
# A wait that no wake-up ends is a bug, or a network without any datagram: then the driver still looks around.
_WAIT_S: Final = 1.0
"""The longest wait for a datagram. New messages end the wait."""
# A turn of the network costs some 0.1 ms, and a window of datagrams is on the way for longer than this.
LOOK_EVERY_S: Final = 0.001
RESUMED: Final = "resumed"
"""The message that there is another generation."""


class Ended(NamedTuple):
    """The message that no more results come, whatever is in progress."""

    error: BaseException


Message = Task | Ended | ResumeCommand | Literal["end of group", "resumed"] | None


class AllReduceEngine:
    """Serves all-reduces until CLOSE comes. `put`, `help` and `network` are for any thread.

    Args:
        context: its step is not used.
        transport: the engine's until `run` returns. Its owner closes it then.
        follow_s: how long an all-reduce with `more` waits for the one that was promised.
        trace: called with every span of time, by whoever drives.
        on_failure: called once, before any future has the error.
        on_stall: called by whoever drives while nothing comes back.
        counted: gets the counts of all-reduces, but for traffic, from whoever drives.
        begun: all-reduces of the job before this agent's first.
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
        # The only way to whoever drives: callers and the lease put messages here. deque.append is reentrant, so
        # callbacks and signal handlers may use it.
        self._inbox: deque[Message] = deque()
        self._driver = threading.Lock()
        """Held by the thread that drives. All that is not `_inbox`, `_bell` or `network` belongs to that thread."""
        self._driven_by = 0
        """The identity of the thread that drives, 0 for nobody."""
        self._bell: SimpleQueue[None] = SimpleQueue()
        """Wakes the agent's thread while nobody drives."""
        self._in_network = self._waits = False
        """The driver waits for the network, or for a message alone, or is about to."""
        self._came: SimpleQueue[None] = SimpleQueue()
        """Ends the driver's wait for a message alone."""
        self._made = False
        """Something was put into the stream, or filled, since the network had its turn."""
        self._moved_at = 0.0
        self._interrupt: BaseException | None = None
        """The error that a signal handler raised in a wait of the driver."""
        self._counted = counted
        self._codec, self._context = codec, context
        self.network: Final = Network(transport, on_stall=on_stall, on_resumed=lambda: self.put(RESUMED), begun=begun)
        self._has_loop: Final = transport.has_loop
        self._handles: dict[int, tuple[Task, int]] = {}
        """By handle of the transport, the task of each phase in the stream, and the part of it."""
        self.generation = generation
        """The generation that messages name."""
        self._rank = context.rank
        self._signer = Signer(codec, context, overlap=overlap)
        self._overlap = overlap
        self._follow_s = follow_s
        self._trace = trace
        self._on_failure = on_failure
        self._tasks: list[Task] = []
        self._go_on: ResumeCommand | None = None
        # All-reduces that the program submitted after it knew of the newcomers. They belong behind ResumeCommand.
        self._behind: list[Message] = []
        """The messages that came after it."""
        self._failure: BaseException | None = None
        self._closed = False
        self._network_over = False
        self._alone = WaitMonitor(_log, f"rank {context.rank}")
        self._alone_since: float | None = None
        """The time since which an all-reduce waits for the one that was promised to follow."""
        self._traffic = SocketTraffic()
        self._sent_at: dict[int, float] = {}

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the agent before `close`, or None."""
        return self._failure

    @property
    def is_driven_here(self) -> bool:
        """Say whether the calling thread drives: it must not wait for what only the driver can bring."""
        # A later thread may get the identity of one that has ended.
        return self._driven_by == threading.get_ident() and self._driver.locked()

    def put(self, message: Message, *, ring: bool = True) -> None:
        """Let the driver have a message. Without `ring` nobody is woken to drive: the caller calls `help` next."""
        self._inbox.append(message)
        # Read after the message is there: the driver looks into the inbox after it changes these.
        if self._in_network:
            self.network.wake()
        elif self._waits:
            self._came.put(None)
        if ring and not self._driver.locked():
            self._bell.put(None)

    def help(self, task: Task) -> None:
        """Drive until a task's future is done, unless another thread drives, which does it then.

        Raises the error of a signal handler in this thread. The agent's thread then serves the rest of the task.
        """
        if self._driver.locked():
            return
        try:
            # `with` lets go of the lock wherever a signal handler raises. If another thread is faster, this one waits.
            with self._driver:
                interrupt = self._drive_here(task)
        finally:
            self._pass_on()
        if interrupt is not None:
            raise interrupt

    def run(self) -> None:
        """Drive whenever the bell rings and nobody else does, until CLOSE; then end what is left."""
        try:
            while not self._closed:
                self._bell.get()
                # One turn serves all that rang until now.
                while not self._bell.empty():
                    self._bell.get()
                with self._driver:
                    interrupt = self._drive_here(None)
                if interrupt is not None:
                    raise interrupt
                self._pass_on()
        except BaseException as error:  # no codec's and not the network's: those end an all-reduce
            self._break(error)
            raise
        finally:
            with self._driver:
                self._driven_by = threading.get_ident()
                self._end_closed()

    def _drive_here(self, until: Task | None) -> BaseException | None:
        """Drive in this thread, which has the lock. Return the error of a signal handler: no other thread raises it."""
        self._driven_by = threading.get_ident()
        try:
            self._drive(until)
            interrupt, self._interrupt = self._interrupt, None
        except BaseException as error:
            # Somewhere between two statements: nobody knows what is still true of the tasks.
            self._break(error)
            raise
        finally:
            self._driven_by = 0
        return interrupt

    def _pass_on(self) -> None:
        """Let the agent's thread drive if something is left, or came meanwhile without ringing."""
        if self._is_left():
            self._bell.put(None)

    def _is_left(self) -> bool:
        # What is in a sealed generation cannot move: RESUMED rings the bell when it can.
        moves = self._handles and not self.network.is_sealed
        return bool(self._closed or self._tasks or moves or self._inbox)

    def _break(self, error: BaseException) -> None:
        self._closed = True
        if self._failure is None:
            self._failure = error
            self._on_failure(error)

    def _drive(self, until: Task | None) -> None:
        """Encode, send, receive and decode until a task's future is done; without a task, while one is in progress."""
        while True:
            if self._inbox:
                self._listen()
            if self._closed or self._interrupt is not None or (until is not None and until.future.done()):
                return
            busy = self._end_failed() if self._failure is not None else self._work()
            if busy and not self._is_network_due():
                continue
            if self._handles and not self.network.is_sealed:
                self._move(0.0 if busy else _WAIT_S)
            elif not busy:
                if until is None and not self._tasks:
                    return
                self._wait_for_message()
            if not busy and self._alone_since is not None:
                self._check_alone(self._alone_since)

    def _is_network_due(self) -> bool:
        """Say whether the network should get what was made, and give what is here, before the next codec work."""
        if self._made:
            # One all-reduce without codes to make leaves no codec work: the network has the next turn anyway.
            return len(self._tasks) != 1
        return time.monotonic() - self._moved_at >= LOOK_EVERY_S

    def _move(self, wait_s: float) -> None:
        """Let the network send and receive, and take what became of phases."""
        self._made = False
        try:
            self._in_network = wait_s > 0
            # Looked at after `_in_network` is set: a message that comes later wakes the network.
            if self._inbox:
                wait_s = 0.0
            if self._alone_since is not None:
                wait_s = self._alone_left_s(wait_s) or 0.0
            events = self.network.move(wait_s)
        except Exception as error:
            self._end_generation(error)
            return
        finally:
            self._in_network = False
        self._moved_at = time.monotonic()
        self._interrupt = self.network.take_interrupt()
        for event in events:
            self._take_event(event)

    def _take_event(self, event: AllReduceEvent) -> None:
        task, part = self._handles.pop(event.handle)
        is_replaced = isinstance(event, AllReduceFailed) and isinstance(event.error, WorkersReplacedError)
        # Codes may end before their ranges: with a quorum, or void. The ranges say whether all ranks skip.
        if task.parts and part == task.parts and (is_replaced or isinstance(event, AllReduceDone)):
            task.codes = event
            return
        self._note_end(task, part, event)
        if task.codes is not None and not task.parts:
            event, task.codes = task.codes, None
            self._note_end(task, part, event)

    def _note_end(self, task: Task, part: int, event: AllReduceEvent) -> None:
        if isinstance(event, AllReduceFailed):
            self._note_failed(task, event.error)
        else:
            self._arrive(task, event, part)

    def _work(self) -> bool:
        """Encode for the network, or decode results. Say whether anything was done."""
        oldest: Task | None = None
        unsealed: Task | None = None
        is_due = waits = False
        for task in self._tasks:
            if not task.begun:  # and so is none after it
                break
            if task.arrived is None:
                waits |= task.sealed
                continue
            oldest = oldest or task
            is_due |= task.sealed
            if not task.sealed:
                unsealed = unsealed or task
        # Decode before encoding while the network is busy with others: each vector that is not decoded holds its sums
        # and a second residual buffer in memory.
        if not (is_due and waits):
            if self._send_next():
                return True
            # The first one that has more to send.
            oldest = unsealed or oldest
        if oldest is not None:
            self._take(oldest)
        return oldest is not None

    def over(self) -> HopsumError:
        """Make the error of an all-reduce that is submitted after a failure or after the generation's end."""
        kept = type(self._failure) if isinstance(self._failure, GenerationEndedError | MembershipError) else None
        over = (kept or GenerationEndedError)(
            str(self._failure)
            if kept
            else f"rank {self._rank} is no longer in generation {self.generation}, since an all-reduce failed: "
            f"{self._failure}. Make a new agent with a membership of a new generation"
        )
        over.__cause__ = self._failure
        return over

    # ---- messages -------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Take all messages that other threads have put into the engine's inbox."""
        # Drained before the next piece of codec work, which takes milliseconds: orders by priority need all messages.
        # A message is removed when it was taken, so that a signal handler that raises in between loses none.
        while self._inbox and not self._closed:
            self._note(self._inbox[0])
            self._inbox.popleft()

    def _wait_for_message(self) -> None:
        self._waits = True
        try:
            if not self._inbox:
                self._came.get(timeout=self._alone_left_s(None))
        except Empty:
            return
        except BaseException as error:
            self._interrupt = error
        finally:
            self._waits = False

    def _alone_left_s(self, wait_s: float | None) -> float | None:
        """Return the shorter of `wait_s` and the time until an all-reduce without its follower says so, or fails.

        A promised follower that never comes must fail on this rank in time, since all other ranks wait for it in the
        stream.
        """
        if self._alone_since is None:
            return wait_s
        left_s = max(0.0, self._alone_since + self._follow_s - time.monotonic())
        waits = [each for each in (wait_s, left_s, self._alone.say_in_s) if each is not None]
        return min(waits)

    def _check_alone(self, since: float) -> None:
        left_s = since + self._follow_s - time.monotonic()
        self._alone.check(lambda: "another all-reduce of the group, or its end, from the program", left_s)
        if left_s <= 0 and self._failure is None and not self._inbox:
            self._fail(self._tasks[-1], self._nobody_followed())

    def _note(self, message: Message) -> None:
        if message is CLOSE:
            self._closed = True
        elif isinstance(message, Ended):
            self._end_generation(message.error)
        elif message == RESUMED:
            return  # it only ends a wait
        elif self._go_on is not None:
            self._behind.append(message)
        elif isinstance(message, Task):
            # It is the last already where a signal handler raised before it left the inbox.
            if not self._tasks or self._tasks[-1] is not message:
                append(self._tasks, message)
        elif isinstance(message, ResumeCommand):
            self._go_on = message
        else:
            end_group(self._tasks)

    def _note_failed(self, task: Task, error: BaseException) -> None:
        """Take the word of the network that a phase of a task has no results."""
        # Nobody needs the sums of a skipped task's zeros, and a rank that has finished its program sends none.
        if isinstance(error, WorkersReplacedError) or task.is_over:
            if task in self._tasks:
                self._end(task, error)
        else:
            self._fail(task, error)

    def _arrive(self, task: Task, arrived: AllReduceDone, part: int) -> None:
        # The network did not know that the task was ended.
        if task not in self._tasks:  # it was ended without its results, see _let_go_on
            return
        if task.parts:
            task.first[part] = arrived
            try:
                # The first part carries the signature of the call (see signature.py): MAX32 of equal and of negated
                # facts tells whether all ranks made the same call.
                if part == 0:
                    self._signer.compare(task, arrived.results)
            except MismatchError as error:
                self._fail(task, error)
                return
            if len(task.first) < task.parts:
                return
            arrived = _whole(task)
        phase = None if task.reduction is None else task.reduction.phase
        sent_at = self._sent_at.pop(task.number)
        if self._trace is not None:
            stage = f"network {phase.op.name if phase else ''}"
            self._trace(Span(task.number, stage, sent_at, time.perf_counter()))
        task.arrived = arrived
        if task.sealed and phase is not None and not phase.last:
            # Its codes are in the stream with these ranges, and may be on their way, or here, already.
            self._sent_at[task.number] = time.perf_counter()
            self._take(task)

    # ---- the stream -----------------------------------------------------------------------------------

    def _send_next(self) -> bool:
        """Put the next phase into the stream if it is there. Say whether anything was done."""
        if self.network.is_sealed:
            return False
        task, alone = next_in_stream(self._tasks, overlap=self._overlap)
        if self._go_on is not None and (alone or all(each.sealed for each in self._tasks)):
            return self._let_go_on(self._go_on)
        if not alone:
            if self._alone_since is not None:
                self._alone.over()
            self._alone_since = None
        elif self._alone_since is None:
            self._alone.over()
            self._alone_since = time.monotonic()
        if task is None:
            return False
        try:
            return self._send(task)
        except BaseException as error:
            self._fail(task, error)
        return True

    def _let_go_on(self, message: ResumeCommand) -> bool:
        """Take what was submitted after the program knew. An older one that waits for its follower has none now.

        Return False, and do nothing, while the generation is sealed.
        """
        if not self.network.go_on(message):
            return False
        for task in [each for each in self._tasks if not each.sealed]:
            self._end(task, message.error)
        self._take_behind()
        return True

    def _take_behind(self) -> None:
        behind, self._behind, self._go_on = self._behind, [], None
        for message in behind:
            self._note(message)

    def _take_all_behind(self) -> None:
        while self._go_on is not None:
            self._take_behind()

    def _send(self, task: Task) -> bool:
        """Put the next phase of a task into the stream. Return False where it cannot be now, or a seal came first."""
        if task.reduction is None:
            task.started_s = time.perf_counter()
            task.reduction = self._start(task)
            if self._trace is not None:
                self._trace(Span(task.number, "prepare", task.started_s, time.perf_counter()))
        reduction = task.reduction
        phase = self._foreseen(task, reduction) if task.waiting else task.zeros or reduction.phase
        if phase is None:
            if task.waiting:
                return False
            task.begun = task.sealed = True  # nothing to share
            self._finish(task, reduction)
            return True
        parts: tuple[CollectivePhase, ...] = (phase,)
        coder = None
        if not task.begun:
            parts = self._signer.sign(task, phase)
        elif task.zeros is None:
            is_streamed = reduction.encoded < len(phase.payloads) or reduction.stream is not None
            # Only a last phase is read early, and only without a follower: the follower would need the sums at once.
            is_read_early = phase.last and self._overlap and task.follower is None
            coder = reduction if is_streamed or is_read_early else None
        if not self._handles:
            self.network.begin_watch()
        handles: list[int] = []
        try:
            # What a task that waits has in the stream are its ranges.
            ranges = task.handles if task.waiting else ()
            taken = self.network.submit(parts, task.number, handles, coder=coder, ranges=ranges)
        except Exception as error:
            if task.waiting and isinstance(error, WorkersReplacedError):
                # Newcomers begin directly behind the ranges, which say whether all ranks skip.
                task.sealed, task.codes = True, AllReduceFailed(0, error)
            else:
                self._note_failed(task, error)
            return True
        finally:
            # Parts that are in the stream already still have events, also of a task that has failed.
            for part, handle in enumerate(handles, task.parts):
                self._handles[handle] = task, part
        if not taken:
            return False
        self._made, task.handles = True, handles
        if task.zeros is not None:
            self._tasks.remove(task)
            return True
        if not task.begun:
            task.begun, task.parts = True, len(parts)
        # Sealed: the task has put its last phase into the stream, so later tasks may follow and a failure no longer has
        # to stop it.
        task.waiting, task.sealed = True, phase.last
        self._sent_at.setdefault(task.number, time.perf_counter())
        return True

    def _foreseen(self, task: Task, reduction: Reduction) -> CollectivePhase | None:
        """Return the phase of codes whose ranges are on their way, or None where the codes wait for those."""
        are_here = task.arrived is not None or task.first
        # Vectors that have not begun come first: their ranges are found while the network is busy with these.
        if not self._has_loop or are_here or not self._tasks[-1].begun:
            return None
        return reduction.foresee()

    def _leave_out(self, task: Task, reduction: Reduction) -> None:
        """Sum zeros in the place of codes that are not there: another rank may have their phase in the stream (O5)."""
        phase = reduction.left_out
        if phase is None or not task.sealed:
            task.zeros = phase
            return
        # With a quorum, the codes' results may be here already.
        for handle in task.handles:
            if handle in self._handles:
                self.network.fill(handle, phase.payloads)

    def _start(self, task: Task) -> Reduction:
        vector = task.vector
        context = ReductionContext(self._context.seed, task.step, self._context.rank)
        reduction = vector.start(self._codec, context, tensors=task.tensors, on_nonfinite=task.on_nonfinite)
        if self._overlap:
            chunks = vector.elements // SHAPES[Op.LOOKUP_ADD8].elements
            reduction.encode_in_parts(part_chunks(chunks), compiled=self._has_loop)
        return reduction

    def _take(self, task: Task) -> None:
        reduction, arrived = task.reduction, task.arrived
        if reduction is None or arrived is None:
            raise RuntimeError("an all-reduce has results before it began")
        task.arrived, task.waiting = None, False
        start = time.perf_counter()
        if (phase := reduction.phase) is not None:
            self._counted.codes[phase.op] = self._counted.codes.get(phase.op, 0) + phase.lanes
        try:
            reduction.take(arrived.results, arrived.contributors)
        except CollectiveError as error:
            self._leave_out(task, reduction)
            self._count(task, skipped=True)
            self._end(task, error, give_back=False)
        except BaseException as error:
            self._fail(task, error)
        else:
            over = reduction.phase is None
            if self._trace is not None:
                self._trace(Span(task.number, "decode" if over else "encode", start, time.perf_counter()))
            if over:
                self._leave_out(task, reduction)
                self._finish(task, reduction)

    # ---- ends -----------------------------------------------------------------------------------------

    def _finish(self, task: Task, reduction: Reduction) -> None:
        """Give a task's future its result."""
        mean = reduction.mean
        self._leave(task)
        traffic, seconds = self._count(task, skipped=mean is None)
        task.future.set_result(
            AllReduceResult(
                mean=task.vector.all_nan() if mean is None else mean,
                # A copy: a view would keep the payloads of all results as long as the caller keeps this.
                contributors=reduction.contributors.copy(),
                skipped=mean is None,
                traffic=traffic,
                seconds=seconds,
            )
        )

    def _count(self, task: Task, *, skipped: bool) -> tuple[SocketTraffic, float]:
        """Count an all-reduce that ended on all ranks alike. Return the traffic since the one before, and its seconds.

        Its error feedback is committed.
        """
        seconds = time.perf_counter() - task.started_s
        self._counted.count(task.vector.elements, seconds, skipped=skipped)
        if not skipped:
            error, vector = task.vector.squares()
            self._counted.error_squares += error
            self._counted.vector_squares += vector
        before, self._traffic = self._traffic, self.network.traffic
        return self._traffic - before, seconds

    def _end(self, task: Task, error: BaseException, *, give_back: bool = True) -> None:
        """Give a task's future an error, and usually its error feedback the vector."""
        if task.is_over:  # nobody needs its zeros any more
            self._tasks.remove(task)
            return
        self._leave(task)
        if give_back:
            task.give_back(error)
        task.future.set_exception(error)

    def _leave(self, task: Task) -> None:
        """Remove a task that is over, unless its zeros have yet to enter the stream."""
        task.is_over = True
        self._sent_at.pop(task.number, None)
        if task.zeros is None:
            self._tasks.remove(task)

    def _fail(self, task: Task, error: BaseException) -> None:
        """Note that a task failed, and the agent with it."""
        if error is self._failure:  # the worker tells all phases in progress
            error = self.over()
        task.error = task.error or error
        if self._failure is None:
            self._failure = error
            self._on_failure(error)

    def _end_generation(self, error: BaseException) -> None:
        """Note that no more results come, whatever is in progress."""
        self._network_over = True
        self._handles.clear()
        if self._tasks:
            self._fail(self._tasks[0], error)
        elif self._failure is None:
            self._failure = error
            self._on_failure(error)

    def _end_failed(self) -> bool:
        """After a failure: let the oldest task go on or end it. Say whether anything was done."""
        self._take_all_behind()
        if not self._tasks:
            self._handles.clear()
            return False
        oldest = self._tasks[0]
        if oldest.error is None and oldest.sealed:
            if oldest.arrived is not None:
                self._take(oldest)
                return True
            if not self._network_over:
                return False
        # Later ones may have codes in the stream, which wait for those of this one.
        self._network_over = True
        self._end(oldest, oldest.error or self.over())
        return True

    def _end_closed(self) -> None:
        while self._inbox:
            self._note(self._inbox[0])
            self._inbox.popleft()
        self._take_all_behind()
        while self._tasks:
            task = self._tasks[0]
            when = "in the middle of" if task.begun else "before"
            closed = CommunicatorClosedError(f"agent of rank {self._rank} was closed {when} this all-reduce")
            self._end(task, task.error or (closed if self._failure is None else self.over()))

    def _nobody_followed(self) -> HopsumError:
        return HopsumError(
            f"the last all-reduce is in an open group, and none followed within {self._follow_s:.3g} s: its chunks "
            "wait for the ranges of the next one. End the group on all ranks before a result is waited for"
        )


def _whole(task: Task) -> AllReduceDone:
    """Return the results of a task's first phase as its reduction takes them, once all parts are here."""
    if task.reduction is None or task.reduction.phase is None:
        raise RuntimeError("an all-reduce has results of a phase that it did not begin")
    done = task.first[0]
    results, contributors = done.results, done.contributors
    # The signature's chunk, and the others if there are any (`Signer.sign`).
    if task.parts == 2:
        done = task.first[1]
        results = np.concatenate((results, done.results))
        contributors = np.concatenate((contributors, done.contributors))
    task.first, task.parts = {}, 0
    results, contributors = unsigned(task.reduction.phase, results, contributors)
    return replace(done, results=results, contributors=contributors)


# The order of phases in a job's stream: a function of what was submitted, never of when.
#
# r, c are the first phase of an all-reduce and the others (ranges and codes of most codecs). 0, 1, 2 are all-reduces in
# the order of submission. Those submitted with `more` promise that another one follows. Every rank's program says the
# same. A promise may be taken back: after the end of a group it is as if the last one had been without `more`.
#
#     submitted                  stream
#     0, 1, 2                    r0 c0 r1 c1 r2 c2
#     0 more, 1 more, 2          r0 r1 c0 r2 c1 c2
#     0 more, 1, 2               r0 r1 c0 c1 r2 c2
#     0 more, end of group, 1    r0 c0 r1 c1
#
# So with `more` the codes of one vector are encoded while those of the one before are on their way. Without it only its
# ranges are found meanwhile, since codes need the ranges of all ranks, which stand behind those codes in the stream.
#
# Rules
#     O1  The first phase of k + 1 comes directly before the second of k, if k has `more`, else after the last of k.
#     O2  The phases of one all-reduce keep their order, and so do second phases of different ones.
#     O3  Where the next phase is not there yet, nothing overtakes it.
#     O4  An error feedback serves one all-reduce at a time: the next with it begins when that one is over.
#     O5  Where all ranks skip after the ranges, the codes' phase is in the stream all the same, with zeros: a rank with
#         nothing else to do puts codes into the stream before their ranges are summed.


def append(tasks: list[Task], task: Task) -> None:
    """Append what was submitted to the tasks that are not over."""
    if tasks and tasks[-1].follower is None:
        tasks[-1].follower = task
    tasks.append(task)


def end_group(tasks: list[Task]) -> None:
    """Take back the promise that another vector follows the last submitted one, unless one has followed."""
    if tasks and tasks[-1].follower is None:
        tasks[-1].more = False


def next_in_stream(tasks: Sequence[Task], *, overlap: bool) -> tuple[Task | None, bool]:
    """Return the task whose phase is the next in the stream, None while it is not there yet (O3).

    Of a task that waits for the sums of its ranges, the next phase is that of its codes. The second value says that one
    is missing because of `more`: nothing was submitted behind it yet.

    Args:
        tasks: all that are not over, in the order of submission.
        overlap: else one all-reduce is over before the next one begins, and `more` means nothing.
    """
    if not overlap:
        first = tasks[0] if tasks else None
        return (first if first is not None and not first.sealed and not first.waiting else None), False
    # The first task that is not through decides. A task after it may only come before its second phase (O1, O2).
    for index, task in enumerate(tasks):
        if task.sealed:
            continue
        if not task.begun:
            return (None if _is_busy(task, tasks[:index]) else task), False
        if task.more:
            if task.follower is None:  # promised, and not there: to send the second phase now would break O1
                return None, True
            # One that is over and has not begun was refused, since newcomers come first.
            if not task.follower.begun and not task.follower.is_over:
                return (None if _is_busy(task.follower, tasks[: index + 1]) else task.follower), False
        return task, False
    return None, False


def _is_busy(task: Task, earlier: Sequence[Task]) -> bool:
    """Say whether an all-reduce before it has its error feedback (O4)."""
    if not earlier or task.feedback is None:
        return False
    return any(other.feedback is task.feedback for other in earlier if not other.is_over)
