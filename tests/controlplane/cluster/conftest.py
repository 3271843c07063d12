# SPDX-License-Identifier: Apache-2.0
"""Clusters in memory, which end with their tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane.cluster import SwitchConfig
from hopsum_controlplane.cluster.cluster_config import LinkConfig
from hopsum_ptf.fake_device import FakeDevice

from .world import Cluster, noted_tree, switch_config

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    made: list[Cluster] = []

    def make(*switches: SwitchConfig, links: tuple[LinkConfig, ...] = (), **options: Any) -> Cluster:
        configured = switches or (switch_config(),)
        cluster = Cluster(tmp_path, configured, {switch.name: FakeDevice() for switch in configured}, links)
        made.append(cluster)
        cluster.start(**options)
        return cluster

    yield make
    for cluster in made:
        cluster.stop()


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Cluster]:
    cluster = noted_tree(tmp_path)
    cluster.start()
    yield cluster
    cluster.stop()
