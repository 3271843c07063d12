# SPDX-License-Identifier: Apache-2.0
"""Residuals stay bounded over thousands of lossy all-reduces; replicas are equal in every one of them.

TEST_SCALE (make test SCALE=...) multiplies the length; `python -m tests.host.agent.long_run` prints the figures.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from .long_run import SPREAD, LongRun, Watching, leftover, make_run
from .team import Bench

pytestmark = pytest.mark.system
ALLREDUCES = 2000 * int(os.environ.get("TEST_SCALE", "1"))


def unbounded(run: LongRun) -> list[str]:
    """Say in which ways residuals are not bounded."""
    # Whoever is left out k times in a row keeps k vectors more. How often that is depends on the machine's load.
    first, second = np.array_split(np.array(run.norms) / run.allow(run.left_out()), 2)
    found = []
    if run.left > SPREAD * leftover(run.codecs[0]):
        found.append(f"an encoding left {run.left:.4f} of the energy, in theory {leftover(run.codecs[0]):.4f}")
    if max(run.norms) > run.allowed:
        found.append(f"a residual of {max(run.norms):.3f}, theory allows {run.allowed:.3f}")
    if second.max() > 1.75 * first.max():
        found.append(f"largest residual, in parts of what may be left, {first.max():.3f}, then {second.max():.3f}")
    if second.mean() > 1.4 * first.mean():
        found.append(f"mean residual, in parts of what may be left, {first.mean():.3f}, then {second.mean():.3f}")
    return found


def test_residuals_stay_bounded(bench: Bench) -> None:
    with ExitStack() as stack:
        run = make_run(stack, bench, seed=3)
        run.run(ALLREDUCES)
        print("\n".join(run.table()))
        assert run.team.books.violations == []
        assert run.team.books.allreduces == ALLREDUCES
        assert unbounded(run) == []
        assert run.team.unproved <= run.team.unproved_max
        assert run.stalls > ALLREDUCES / 100
        assert sum(run.team.statistics(rank).repaired for rank in range(3)) > 0


class Forgetful(Watching):
    """Settles without the codes of block 0: what that delivers counts as not delivered."""

    def subtract_contribution(
        self, x: Any, payloads: Any, shared: Any, context: Any, included: Any = None, *, first_block: int = 0
    ) -> None:
        some = np.ones(len(payloads), np.bool_) if included is None else included.copy()
        some[0] = False
        super().subtract_contribution(x, payloads, shared, context, some, first_block=first_block)


def test_growth_is_seen(bench: Bench) -> None:
    with ExitStack() as stack:
        run = make_run(stack, bench, seed=3, kind=Forgetful)
        run.run(60)
        found = unbounded(run)
        assert any("theory allows" in each for each in found)
        assert any("mean" in each for each in found)
