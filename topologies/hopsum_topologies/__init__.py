# SPDX-License-Identifier: Apache-2.0
"""Places where the data plane runs: network namespaces, veth pairs, bmv2 and native switch processes."""

from __future__ import annotations

from hopsum_topologies.bmv2 import Bmv2Switch, bmv2_unavailable, bmv2_versions
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.native import NativeSwitch
from hopsum_topologies.netns import Namespace, VethPair, remove_stale_namespaces
from hopsum_topologies.star import LinkCounts, Star

__all__ = [
    "Bmv2Switch",
    "LinkCounts",
    "Namespace",
    "NativeSwitch",
    "Star",
    "TopologyError",
    "VethPair",
    "bmv2_unavailable",
    "bmv2_versions",
    "remove_stale_namespaces",
]
