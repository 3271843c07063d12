# SPDX-License-Identifier: Apache-2.0
"""The order of phases in a job's stream: a function of what was submitted, never of when.

r, c are the first phase of an all-reduce and the others (ranges and codes of most codecs). 0, 1, 2 are all-reduces in
the order of submission. Those submitted with `more` promise that another one follows. Every rank's program says the
same. A promise may be taken back: after the end of a group it is as if the last one had been without `more`.

    submitted                  stream
    0, 1, 2                    r0 c0 r1 c1 r2 c2
    0 more, 1 more, 2          r0 r1 c0 r2 c1 c2
    0 more, 1, 2               r0 r1 c0 c1 r2 c2
    0 more, end of group, 1    r0 c0 r1 c1

So with `more` the codes of one vector are encoded while those of the one before are on their way. Without it only its
ranges are found meanwhile, since codes need the ranges of all ranks, which stand behind those codes in the stream.

Rules
    O1  The first phase of k + 1 comes directly before the second of k, if k has `more`, else after the last of k.
    O2  The phases of one all-reduce keep their order, and so do second phases of different ones.
    O3  Where the next phase is not there yet, nothing overtakes it.
    O4  An error feedback serves one all-reduce at a time: the next with it begins when that one is over.
    O5  Where all ranks skip after the ranges, the codes' phase is in the stream all the same, with zeros: a rank with
        nothing else to do puts codes into the stream before their ranges are summed.

When workers are replaced, all-reduces already submitted either complete (their result was decided) or fail with
WorkersReplacedError. The network decides which. All-reduces that the program submits after it knows of the newcomers
(after ResumeCommand) wait until the earlier ones are sealed or over.

Nothing here touches the network, a codec or a lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from hopsum.agent.task import Task
from hopsum.errors import HopsumError
from hopsum.notice import WaitMonitor

END_GROUP: Final = "end of group"
"""The message that `group_end` puts into the inbox."""


class ResumeCommand(NamedTuple):
    """The program knows that workers were replaced: the stream goes on where the newcomers begin."""

    newcomers: Mapping[int, int]
    """The generation in which each newcomer begins, by rank."""
    start_generation: int
    starts: tuple[int, ...]
    """The position of the newcomers' first phase, by shard."""
    allreduces: int
    """Begun before."""
    error: BaseException
    """The error of all-reduces that cannot go on."""


Submitted = Task | ResumeCommand | Literal["end of group"]
_log: Final = logging.getLogger(__name__)


class PhaseOrder:
    """The all-reduces of one agent that are not over, and which phase is next. For the thread that drives.

    Args:
        overlap: else one all-reduce is over before the next one begins, and `more` means nothing.
        follow_s: how long an all-reduce with `more` waits for the one that was promised.
        rank: of the agent, for the log.
    """

    def __init__(self, *, overlap: bool, follow_s: float, rank: int) -> None:
        self.overlap: Final = overlap
        self.tasks: Final[list[Task]] = []
        """All that are not over, in the order of submission."""
        self.resume: ResumeCommand | None = None
        """The program's word that it knows of newcomers, until the stream goes on with them."""
        # All-reduces that the program submitted after it knew of the newcomers. They belong behind ResumeCommand.
        self._behind: list[Submitted] = []
        self._follow_s = follow_s
        self._monitor = WaitMonitor(_log, f"rank {rank}")
        self._alone_since: float | None = None
        """The time since which an all-reduce waits for the one that was promised to follow."""

    @property
    def is_alone(self) -> bool:
        """Say whether the next phase is missing because a promised all-reduce was not submitted."""
        return self._alone_since is not None

    def note(self, message: Submitted) -> None:
        """Take what the program submitted."""
        if self.resume is not None:
            self._behind.append(message)
        elif isinstance(message, Task):
            # It is the last already where a signal handler raised before it left the inbox.
            if not self.tasks or self.tasks[-1] is not message:
                append(self.tasks, message)
        elif isinstance(message, ResumeCommand):
            self.resume = message
        else:
            end_group(self.tasks)

    def next(self) -> Task | None:
        """Return the task whose phase is the next in the stream, None while it is not there yet."""
        task, is_alone = next_in_stream(self.tasks, overlap=self.overlap)
        if not is_alone:
            if self._alone_since is not None:
                self._monitor.over()
            self._alone_since = None
        elif self._alone_since is None:
            self._monitor.over()
            self._alone_since = time.monotonic()
        return task

    @property
    def may_resume(self) -> bool:
        """Say whether a ResumeCommand is here, and nothing submitted before it may still enter the stream by itself."""
        return self.resume is not None and (self.is_alone or all(each.fully_submitted for each in self.tasks))

    def accept_held(self) -> None:
        """Take what was submitted after the ResumeCommand, which is done, up to the next one."""
        behind, self._behind, self.resume = self._behind, [], None
        for message in behind:
            self.note(message)

    def accept_all_held(self) -> None:
        """Take all that was submitted, whatever it waits for: the agent has failed or is closed."""
        while self.resume is not None:
            self.accept_held()

    def alone_left_s(self, wait_s: float | None) -> float | None:
        """Return the shorter of `wait_s` and the time until an all-reduce without its follower says so, or fails.

        A promised follower that never comes must fail on this rank in time, since all other ranks wait for it in the
        stream.
        """
        if self._alone_since is None:
            return wait_s
        left_s = max(0.0, self._alone_since + self._follow_s - time.monotonic())
        return min(each for each in (wait_s, left_s, self._monitor.say_in_s) if each is not None)

    def why_alone(self) -> HopsumError | None:
        """Return the error of an all-reduce that nothing followed in time, else None. Write a log line when due."""
        if self._alone_since is None:
            return None
        left_s = self._alone_since + self._follow_s - time.monotonic()
        self._monitor.check(lambda: "another all-reduce of the group, or its end, from the program", left_s)
        if left_s > 0:
            return None
        return HopsumError(
            f"the last all-reduce is in an open group, and none followed within {self._follow_s:.3g} s: its chunks "
            "wait for the ranges of the next one. End the group on all ranks before a result is waited for"
        )


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
        overlap: as in PhaseOrder.
    """
    if not overlap:
        first = tasks[0] if tasks else None
        return (first if first is not None and not first.fully_submitted and not first.waiting else None), False
    # The first task that is not through decides. A task after it may only come before its second phase (O1, O2).
    for index, task in enumerate(tasks):
        if task.fully_submitted:
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
