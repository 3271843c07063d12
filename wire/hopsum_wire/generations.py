# SPDX-License-Identifier: Apache-2.0
"""The messages of a change from one generation of a job to the next: a worker's `Sealed`, the controller's `Resume`.

A job over several shards has a stream for each shard. The first shard's message has those of the others in
`further_shards`, in the order of the shards.

Positions are those of the job's stream (stream.py), which continue from generation to generation. Runs of them are
first .. end - 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MAX_SHARDS: Final = 64
"""Shards of one job."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """The results that a worker holds of a generation that it has sealed: it takes no more packets of it (E2)."""

    generation: int
    delivered_to: int
    """The results of all positions before this one are delivered to this worker's program."""
    submitted_to: int
    """The first position that this worker has not submitted."""
    held: tuple[tuple[int, int], ...]
    """Runs (first, end) of submitted positions whose results are here or are kept for peers, sorted and disjoint."""
    further_shards: tuple[Sealed, ...] = field(default=(), kw_only=True)
    """The reports of this worker on the job's further shards."""


@dataclass(frozen=True, slots=True)
class Decided:
    """Results that stay: a run of positions, and some of the workers that hold all of it (E3)."""

    first: int
    end: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """The continuation of the stream in a new generation, the same on all ranks.

    The controller makes it of all `Sealed`.
    """

    base: int
    """The position of slot 0, round 1: a multiple of the slots."""
    start: int | None
    """The position at which newcomers begin. Positions before it that are not decided are void. None: nobody is new."""
    start_generation: int
    """The generation whose newcomers begin at `start`: this one, or one that nobody got to use, or 0 without `start`.
    """
    allreduces: int | None
    """Number of the first all-reduce at `start`, or None without `start`."""
    replaced: tuple[int, ...]
    """Ranks of the newcomers."""
    decided: tuple[Decided, ...]
    """Results that stay, from `base` on, sorted, disjoint and none empty."""
    further_shards: tuple[Resume, ...] = ()
    """The continuations of the streams of the job's further shards."""
