# SPDX-License-Identifier: Apache-2.0
"""Every state within the bounds, with every rule: no violation, and as many states as an independent model has.

TEST_SCALE above 1 (make test SCALE=2) adds the large searches: 1.8 million states, some minutes.
"""

from __future__ import annotations

import os

import pytest

from .cases import WHOLE, Whole
from .search import explore

SCALE = int(os.environ.get("TEST_SCALE", "1"))
CASES = [case for case in WHOLE if SCALE > 1 or not case.large]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.modes}-n{case.config.n}-{case.states}")
def test_every_state(case: Whole) -> None:
    found = explore(case.config)
    assert found.violation is None, f"{found.violation}: {found.trace}"
    assert (found.states, found.transitions) == (case.states, case.transitions)
