# SPDX-License-Identifier: Apache-2.0
"""The order of phases in a job's stream: a function of the submitted vectors, never of time.

r and c are the first phase of an all-reduce and the others (ranges and codes of most codecs). 0, 1, 2 are all-reduces
in the order of submission. With `more`, another all-reduce follows; `more` is the same on all ranks. The end of a group
removes the `more` of its last all-reduce.

    submitted                  stream
    0, 1, 2                    r0 c0 r1 c1 r2 c2
    0 more, 1 more, 2          r0 r1 c0 r2 c1 c2
    0 more, 1, 2               r0 r1 c0 c1 r2 c2
    0 more, end of group, 1    r0 c0 r1 c1

With `more` the codes of a vector are encoded while those of the previous vector are in flight. Without `more` only the
vector's ranges are computed meanwhile: its codes need the ranges of all ranks, which follow the previous codes in the
stream.

Rules
    O1  The first phase of k + 1 comes directly before the second of k, if k has `more`, else after the last of k.
    O2  The phases of one all-reduce keep their order, and so do second phases of different ones.
    O3  No phase overtakes the next phase of the order, also while that phase is not ready.
    O4  An error feedback serves one all-reduce at a time: the next one with it begins after the end of the first.
    O5  If all ranks skip after the ranges, the codes' phase is still in the stream, with zeros, because an idle rank
        may put codes into the stream before their ranges are summed.

When workers are replaced, all-reduces already submitted either complete (their result was decided) or fail with
WorkersReplacedError, as the network decides. All-reduces that the program submits after it knows of the newcomers
(after ResumeCommand) wait until the earlier ones are fully submitted or done.

No network, codec or lock may be in this file.
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
"""The message of `group_end`."""


class ResumeCommand(NamedTuple):
    """The program's acknowledgement of replaced workers: the stream continues where the newcomers begin."""

    newcomers: Mapping[int, int]
    """The generation in which each newcomer begins, by rank."""
    start_generation: int
    starts: tuple[int, ...]
    """The position of the newcomers' first phase, by shard."""
    allreduces: int
    """The number of the job's all-reduces before the newcomers' first."""
    error: BaseException
    """The error of all-reduces that cannot complete."""


Submitted = Task | ResumeCommand | Literal["end of group"]
_log: Final = logging.getLogger(__name__)


class PhaseOrder:
    """The unfinished all-reduces of one agent, and the next phase. For the driving thread.

    Args:
        overlap: if False, each all-reduce ends before the next one begins, and `more` has no effect.
        follow_s: the longest wait of an all-reduce with `more` for the next one.
        rank: of the agent, for the log.
    """

    def __init__(self, *, overlap: bool, follow_s: float, rank: int) -> None:
        self.overlap: Final = overlap
        self.tasks: Final[list[Task]] = []
        """The unfinished all-reduces, in the order of submission."""
        self._resume: ResumeCommand | None = None
        """The program's acknowledgement of newcomers, until the stream continues with them."""
        # Submitted after ResumeCommand, and so in sums with the newcomers.
        self._behind: list[Submitted] = []
        self._follow_s = follow_s
        self._monitor = WaitMonitor(_log, f"rank {rank}")
        self._alone_since: float | None = None
        """The time since which an all-reduce with `more` waits for the next one."""

    @property
    def waits_for_follower(self) -> bool:
        """Say whether the next phase waits for the all-reduce that `more` announced."""
        return self._alone_since is not None

    def note(self, message: Submitted) -> None:
        """Append a task, end a group, or store a ResumeCommand. While one is stored, later messages are held."""
        if self._resume is not None:
            self._behind.append(message)
        elif isinstance(message, Task):
            # Already the last task if a signal handler raised before the message left the inbox.
            if not self.tasks or self.tasks[-1] is not message:
                append(self.tasks, message)
        elif isinstance(message, ResumeCommand):
            self._resume = message
        else:
            end_group(self.tasks)

    def next(self) -> Task | None:
        """Return the task of the stream's next phase, None while it is not ready. Update `waits_for_follower`."""
        task, waits_for_follower = next_in_stream(self.tasks, overlap=self.overlap)
        if not waits_for_follower:
            if self._alone_since is not None:
                self._monitor.end()
            self._alone_since = None
        elif self._alone_since is None:
            self._monitor.end()
            self._alone_since = time.monotonic()
        return task

    @property
    def due_resume(self) -> ResumeCommand | None:
        """Return the pending ResumeCommand if no earlier task has a phase that can enter the stream, else None."""
        if self._resume is None:
            return None
        is_due = self.waits_for_follower or all(each.fully_submitted for each in self.tasks)
        return self._resume if is_due else None

    def accept_held(self) -> None:
        """Accept the tasks that were submitted after the completed ResumeCommand, up to the next one."""
        behind, self._behind, self._resume = self._behind, [], None
        for message in behind:
            self.note(message)

    def accept_all_held(self) -> None:
        """Accept all tasks that wait behind a ResumeCommand, because the agent has failed or is closed.

        All ResumeCommands are dropped.
        """
        while self._resume is not None:
            self.accept_held()

    def follower_wait_s(self, wait_s: float | None) -> float | None:
        """Return the least of `wait_s` and the times until the log line and the failure of a missing follower.

        If the next all-reduce is never submitted, this rank must fail in time, because all other ranks wait for it.
        """
        if self._alone_since is None:
            return wait_s
        left_s = max(0.0, self._alone_since + self._follow_s - time.monotonic())
        return min(each for each in (wait_s, left_s, self._monitor.log_in_s) if each is not None)

    def follower_error(self) -> HopsumError | None:
        """Return the error if no all-reduce followed in time, else None. Write a log line when due."""
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
    """Append a submitted task to the unfinished ones, as the follower of the last one."""
    if tasks and tasks[-1].follower is None:
        tasks[-1].follower = task
    tasks.append(task)


def end_group(tasks: list[Task]) -> None:
    """Clear `more` of the last all-reduce, unless one was submitted after it: no other of its group follows."""
    if tasks and tasks[-1].follower is None:
        tasks[-1].more = False


def next_in_stream(tasks: Sequence[Task], *, overlap: bool) -> tuple[Task | None, bool]:
    """Return the task of the stream's next phase, None while that phase is not ready (O3).

    The next phase of a task that waits for the sums of its ranges is its codes. The second value says whether the next
    phase belongs to an all-reduce that `more` announced and that was not submitted yet.

    Args:
        tasks: the unfinished ones, in the order of submission.
        overlap: as in PhaseOrder.
    """
    if not overlap:
        tasks = tasks[:1]
    # The first task with phases to submit decides. A later task may only come before its second phase (O1, O2).
    for index, task in enumerate(tasks):
        if task.fully_submitted:
            continue
        if not task.begun:
            return (None if _is_busy(task, tasks[:index]) else task), False
        if task.more and overlap:
            if task.follower is None:  # sending the second phase now would break O1
                return None, True
            # A follower that ended before it began was refused, because newcomers come first.
            if not task.follower.begun and not task.follower.has_ended:
                return (None if _is_busy(task.follower, tasks[: index + 1]) else task.follower), False
        return task, False
    return None, False


def _is_busy(task: Task, earlier: Sequence[Task]) -> bool:
    """Say whether an earlier unfinished all-reduce has the task's error feedback (O4)."""
    feedback = task.feedback
    return feedback is not None and any(other.feedback is feedback and not other.has_ended for other in earlier)
