# SPDX-License-Identifier: Apache-2.0
"""The networks and processes in which the data plane runs.

description, documents, catalogue      hosts, switches, links and jobs, as text
network, mininet_network, in_process   the running network of a description
control, commands                      the control plane of a network, and programs on its hosts
netns, shaping, native, bmv2, star     namespaces, links and switch processes by themselves
testbed, seat, worker_pool             one running switch with seats for workers around it, and a process in each seat
"""

from __future__ import annotations

from hopsum_topologies.bmv2 import Bmv2Switch, bmv2_unavailable, bmv2_versions
from hopsum_topologies.catalogue import topology
from hopsum_topologies.description import DescriptionError, JobPlan, Link, Topology
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.native import NativeSwitch
from hopsum_topologies.netns import Namespace, VethPair, remove_stale_namespaces
from hopsum_topologies.star import LinkCounts, Star

__all__ = [
    "Bmv2Switch",
    "DescriptionError",
    "JobPlan",
    "Link",
    "LinkCounts",
    "Namespace",
    "NativeSwitch",
    "Star",
    "Topology",
    "TopologyError",
    "VethPair",
    "bmv2_unavailable",
    "bmv2_versions",
    "remove_stale_namespaces",
    "topology",
]
