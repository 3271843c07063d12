# SPDX-License-Identifier: Apache-2.0
"""One switch process for all jobs of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hopsum_topologies.local_cluster import LocalCluster

from .team import WORKERS


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(WORKERS, extra=("--backend", "native")) as opened:
        yield opened
