# SPDX-License-Identifier: Apache-2.0
"""Sockets, switches and clients of a test, which end with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

# First of all: without it protobuf refuses P4Runtime's stubs, which test modules import by their own name.
import hopsum_base.p4runtime  # noqa: F401


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
