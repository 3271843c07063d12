# SPDX-License-Identifier: Apache-2.0
"""One switch process for all jobs of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .team import Bench, open_bench


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with open_bench() as opened:
        yield opened
