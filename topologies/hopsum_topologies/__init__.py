# SPDX-License-Identifier: Apache-2.0
"""The networks and processes in which the data plane runs.

description                         hosts, switches, links and jobs as values and as JSON, and networks that have a name
running_network, mininet_network    the running network of a description
network_control, commands           the control plane of a network, and programs on its hosts
netns, shaping, star                namespaces and links
native_process, bmv2_process        switch processes
local_cluster                       running switches, or a running network, with seats for workers at them
local_job, seat, worker_pool        jobs at these switches, the places of workers, and a process in each place
"""

from __future__ import annotations

from hopsum_topologies.bmv2_process import Bmv2Switch, bmv2_unavailable, bmv2_versions
from hopsum_topologies.description import DescriptionError, JobPlan, Link, Topology, topology
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.local_cluster import LocalCluster
from hopsum_topologies.local_job import LocalJob
from hopsum_topologies.native_process import NativeSwitch
from hopsum_topologies.netns import Namespace, VethPair, remove_stale_namespaces
from hopsum_topologies.star import LinkCounts, Star

__all__ = [
    "Bmv2Switch",
    "DescriptionError",
    "JobPlan",
    "Link",
    "LinkCounts",
    "LocalCluster",
    "LocalJob",
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
