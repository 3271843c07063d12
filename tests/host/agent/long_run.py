# SPDX-License-Identifier: Apache-2.0
"""Thousands of all-reduces of one vector with error feedback, at 5 % loss each way, a quorum of all but one, and a
straggler that comes and goes: does what is left behind stay bounded?

python -m tests.host.agent.long_run --allreduces 20000

What theory allows. For one block of the vector, let X be the largest norm of what is given, E the largest residual of
any rank, and delta what one encoding leaves of a block's energy, in parts of the shared range's (`leftover`). A rank
takes part if its codes are in the sum and the shared range holds its block: it does unless the rank's own range came
too late for the quorum and was the largest. Let s be the longest run of all-reduces in which one rank did not.

    taken part     |e'| <= sqrt(delta) (E + X)  since the shared range is that of some rank
    left out       |e'| <= |e| + X              at most s times in a row, beginning behind an encoding
    so             E    <= (s + sqrt(delta)) / (1 - sqrt(delta)) X
"""

from __future__ import annotations

import argparse
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import ReductionContext
from hopsum.codec.interface import includes
from hopsum.codec.range_codec import RangeReduction
from hopsum.codec.thc import Thc
from hopsum.codec.vector_reduction import ReductionState, read_ranges
from hopsum.protocol.worker import Timing

from ..transport.lossy import Mishaps
from .team import WORKERS, Bench, Setting, Team, open_bench

ELEMENTS, BLOCK = 1500, 1024
LOSS = 0.05
TIMING = Timing(retransmit_s=0.005, backoff=1.5, retransmit_max_s=0.05, deadline_s=60.0, retransmit_min_s=0.002)
DRAWN = 61
"""Different vectors of a rank."""
SPREAD = 1.6
"""How far the error of one encoding may be above its expectation: few of 1024 coordinates are truncated, and one that
is 4.5 standard deviations out adds a fourth to it."""


class Watching(Thc):
    """A codec `thc` that notes which blocks of its rank took part in each all-reduce: bool[blocks]."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.took_part: list[NDArray[np.bool_]] = []
        self.left = 0.0
        """The most that an encoding left of a block's energy, in parts of the shared range's."""

    def start(self, x: NDArray[np.float32], context: ReductionContext, *given: Any, **options: Any) -> RangeReduction:
        return _Watched(self, x, context, *given, **options)

    def left_out(self) -> list[int]:
        """Return after each all-reduce how many in a row some block did not take part in, itself included."""
        found, run = [], np.zeros(len(self.took_part[0]), int)
        for row in self.took_part:
            run = np.where(row, 0, run + 1)
            found.append(int(run.max()))
        return found


class _Watched(RangeReduction):
    codec: Watching

    def take(self, results: NDArray[np.uint8], contributors: NDArray[np.uint64], *more: Any) -> None:
        if self.state is ReductionState.RANGES:
            self._ranges = read_ranges(results, self._own.size).values
        super().take(results, contributors, *more)
        if self.state is ReductionState.DONE:
            took_part = (self._own <= self._ranges.view(np.uint32)) & includes(contributors, self.context.rank)
            self.codec.took_part.append(took_part)
            left = _block_norms(self._x) ** 2 / (self._ranges.astype(np.float64) ** 2 * BLOCK)
            self.codec.left = max(self.codec.left, float(left[took_part].max(initial=0.0)))


def leftover(codec: Thc) -> float:
    """Return what an encoding leaves of N(0, rho^2) coordinates, in parts of the range's square; the worst rho <= 1."""
    levels = -codec.bound + 2 * codec.bound * np.array(codec.table.values) / codec.granularity
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(200_000)
    worst = 0.0
    for rho in np.linspace(0.05, 1, 20):
        a = rho * normal
        clipped = np.clip(a, levels[0], levels[-1])
        upper = np.clip(np.searchsorted(levels, clipped), 1, len(levels) - 1)
        error = (levels[upper] - clipped) * (clipped - levels[upper - 1]) + (a - clipped) ** 2
        worst = max(worst, float(error.mean()))
    return worst


@dataclass
class LongRun:
    """The series of a run; norms are of a block's residual in parts of X, the largest over ranks and blocks."""

    team: Team
    codecs: list[Watching]
    seed: int
    norms: list[float] = field(default_factory=list)
    stalls: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        common = rng.standard_normal(ELEMENTS)  # so that what is left out adds up
        self.given = (common + rng.standard_normal((DRAWN, WORKERS, ELEMENTS))).astype(np.float32)
        self.largest = max(float(_block_norms(x).max()) for step in self.given for x in step)

    def run(self, allreduces: int) -> None:
        rng = random.Random(self.seed)
        while (done := self.team.books.allreduces) < allreduces:
            late = rng.randrange(WORKERS) if rng.random() < 0.2 else None
            self.stalls += late is not None
            steps = min(rng.randint(1, 2) if late is not None else rng.randint(1, 12), allreduces - done)
            self.team.run(lambda step, rank: self.given[step % DRAWN, rank], steps, late, watch=self._watch)
        self.team.books.close()

    def _watch(self, residuals: list[NDArray[np.float32]]) -> None:
        self.norms.append(max(float(_block_norms(each).max()) for each in residuals) / self.largest)

    def left_out(self) -> NDArray[np.int64]:
        """Return by all-reduce how many in a row somebody has been left out of."""
        return np.max([codec.left_out() for codec in self.codecs], axis=0)

    def longest_left_out(self) -> int:
        """Return s."""
        return int(self.left_out().max())

    @property
    def left(self) -> float:
        """Return the most that an encoding left, in parts of the shared range's energy."""
        return max(codec.left for codec in self.codecs)

    @property
    def allowed(self) -> float:
        """Return the bound of the module's text, in parts of X."""
        return float(self.allow(np.array(self.longest_left_out())))

    def allow(self, left_out: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what the bound is where a rank is left out so many times in a row, in parts of X."""
        root = (SPREAD * leftover(self.codecs[0])) ** 0.5
        return np.asarray((left_out + root) / (1 - root), np.float64)

    def table(self) -> list[str]:
        """Return the figures by tenths of the run."""
        lines = ["all-reduces      mean residual   largest residual   of X, the largest norm given"]
        for part in np.array_split(np.arange(len(self.norms)), 10):
            here = np.array(self.norms)[part]
            lines.append(f"{part[0]:>6} .. {part[-1]:<6} {here.mean():13.3f} {here.max():18.3f}")
        team = self.team
        statistics = [team.statistics(rank) for rank in range(WORKERS)]
        return [
            *lines,
            f"theory allows {self.allowed:.3f}: a rank is left out at most {self.longest_left_out()} times in a row, "
            f"an encoding leaves {leftover(self.codecs[0]):.4f} of the energy, found at most {self.left:.4f}",
            f"replicas and conservation: {len(team.books.violations)} violations in {team.books.allreduces:,} "
            f"all-reduces, nearest {team.books.closest:.2f} of what rounding may do",
            f"{self.stalls} stalls, {team.books.missed} chunks without somebody, "
            f"{sum(each.retransmits for each in statistics)} datagrams sent again, "
            f"{sum(each.repaired for each in statistics)} results from peers, at most {team.unproved} unproved",
        ]


def make_run(stack: ExitStack, bench: Bench, seed: int, kind: type[Watching] = Watching) -> LongRun:
    codecs = [kind(WORKERS) for _ in range(WORKERS)]
    mishaps = Mishaps(drop=LOSS, duplicate=0.02, reorder=0.02)
    setting = Setting(quorum=WORKERS - 1, mishaps=mishaps, seed=seed, timing=TIMING)
    return LongRun(Team(stack, bench, codecs, ELEMENTS, setting), codecs, seed)


def _block_norms(x: NDArray[np.float32]) -> NDArray[np.float64]:
    squares = np.square(x, dtype=np.float64)
    return np.sqrt(np.add.reduceat(squares, np.arange(0, x.size, BLOCK)))


def main() -> None:
    """Run, and print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.host.agent.long_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--allreduces", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    with open_bench() as bench, ExitStack() as stack:
        run = make_run(stack, bench, options.seed)
        run.run(options.allreduces)
        print("\n".join(run.table()))
    print(f"{time.monotonic() - began:.0f} s, seed {options.seed}")


if __name__ == "__main__":
    main()
