# SPDX-License-Identifier: Apache-2.0
"""Fixtures of several folders: what a test opens and closes, and the requirements of tests over veth pairs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ..topologies.conftest import namespaces

__all__ = ["namespaces"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
