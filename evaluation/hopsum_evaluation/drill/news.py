# SPDX-License-Identifier: Apache-2.0
"""Times at which the other ranks of a job know that one has gone, and that it is back: from their journals."""

from __future__ import annotations

from typing import Final

from hopsum.rpc.errors import ControllerUnreachableError
from hopsum_evaluation.drill.base import DrillError, await_that
from hopsum_evaluation.drill.testbed import DrillTestbed, first_sign
from hopsum_evaluation.drill.training_job import TrainingJob

_CONTROLLER: Final = "hopsum.rpc"
"""Logs what the controller says."""
MARGIN_S: Final = 2.0
"""The time beyond a lease in which the news has to reach all ranks."""


def others_know(training: TrainingJob, rank: int, at_s: float, within_s: float) -> float:
    """Return the seconds after which the last of the others knew that a rank had gone.

    It knows by what the controller told it, or by an error. A wait for that rank's part of a sum is no knowledge.
    Raises DrillError when they were more than `within_s`.
    """
    took_s = 0.0
    for other in set(range(training.workers)) - {rank}:
        what = f"word of rank {rank} in the journal of rank {other}"
        took_s = max(took_s, hears(training, other, at_s, rf"\branks? (\d+, )*{rank}\b", what, _CONTROLLER) - at_s)
    require_within("all other ranks knew of it", took_s, within_s)
    return took_s


def hears(training: TrainingJob, rank: int, at_s: float, words: str, what: str, logger: str = "") -> float:
    """Return when a rank's log or one of its errors since `at_s` had a pattern. Raises DrillError."""

    def heard() -> float | None:
        entry = training.since(at_s, rank, "log", "void", "failed", words=words, logger=logger)
        return None if entry is None else float(entry["at"])

    return first_sign(heard, what)


def is_back(training: TrainingJob, rank: int, at_s: float) -> float:
    """Return when a rank went on as a newcomer with the state of the others, after `at_s`. Raises DrillError."""

    def back() -> float | None:
        entry = training.since(at_s, rank, "life")
        return float(entry["at"]) if entry is not None and entry["is_newcomer"] else None

    return first_sign(back, f"newcomer on rank {rank}")


def require_within(what: str, took_s: float, bound_s: float) -> None:
    """Raise DrillError where something took longer than it may."""
    if took_s > bound_s:
        raise DrillError(f"{what} after {took_s:.1f} s, {bound_s:g} s are allowed")


def require_no_break(training: TrainingJob) -> None:
    """Raise DrillError unless all steps of all ranks were in one generation, and every all-reduce has a result."""
    ends = [
        entry
        for rank in range(training.workers)
        for kind in ("void", "failed")
        for entry in training.journal(rank, kind)
    ]
    if ends:
        raise DrillError(f"all-reduces without a result: {ends[0]['error']}: {ends[0]['text']}")
    if len(training.generations()) != 1:
        raise DrillError(f"{len(training.generations())} generations: there was no reason to end one")


def keeps_places(testbed: DrillTestbed, training: TrainingJob) -> None:
    """Wait until the controller has heard every member after now. Raises DrillError."""
    with testbed.operator() as operator:
        counted = {rank: training.steps(rank) for rank in range(training.workers)}

        def heard() -> bool:
            try:
                members = operator.job(training.job).members
            except ControllerUnreachableError:  # it may wait for its switch, whose counters it shows
                return False
            return len(members) == training.workers and all(
                member.statistics.get("allreduces", 0) > counted[member.rank] for member in members
            )

        await_that(heard, f"heartbeats of all ranks of {training.job}")
