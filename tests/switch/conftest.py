# SPDX-License-Identifier: Apache-2.0
"""Sockets, switches and clients of a test, which end with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
