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
        An all-reduce that turns out to have one phase only (all ranks skip) changes nothing for the others.
    O2  The phases of one all-reduce keep their order, and so do second phases of different ones.
    O3  Where the next phase is not there yet, nothing overtakes it.
    O4  An error feedback serves one all-reduce at a time: the next with it begins when that one is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from hopsum.communicator.task import Task


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

    The second value says that one is missing because of `more`: nothing was submitted behind it yet.

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
            if not task.follower.begun:
                return (None if _is_busy(task.follower, tasks[: index + 1]) else task.follower), False
        return (None if task.waiting else task), False
    return None, False


def _is_busy(task: Task, earlier: Sequence[Task]) -> bool:
    """Say whether an all-reduce before it has its error feedback (O4)."""
    return task.feedback is not None and any(other.feedback is task.feedback for other in earlier)
