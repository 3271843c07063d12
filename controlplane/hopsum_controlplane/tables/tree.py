# SPDX-License-Identifier: Apache-2.0
"""Entries of a switch's neighbours in a tree: sources of PARTIAL, RESULT and STALE here, and addresses of PARTIAL."""

from __future__ import annotations

from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.entries import TableEntry
from hopsum_controlplane.job_spec import Job

LEAVES = "leaves"
PARENTS = "parents"
PARENT_REWRITE = "parent_rewrite"


def leaves(job: Job) -> list[TableEntry]:
    """Build one entry per leaf: its bit, the ranks below it, and the port and address of its packets."""
    return [
        TableEntry(
            LEAVES,
            {"generation": job.generation, "number": leaf.number},
            "leaf",
            {
                "leaf_bit": 1 << leaf.number,
                "members": leaf.bitmap,
                "port": leaf.port,
                "address": ipv4_to_int(leaf.ip),
            },
        )
        for leaf in job.spec.leaves
    ]


def parent(job: Job) -> list[TableEntry]:
    """Build the two entries for packets from and to the parent of a job, none for a job without a parent."""
    above = job.spec.parent
    if above is None:
        return []
    upward = {
        "number": above.number,
        "src_mac": mac_to_int(job.switch.mac),
        "dst_mac": mac_to_int(above.mac),
        "src_ip": ipv4_to_int(job.switch.ip),
        "dst_ip": ipv4_to_int(above.ip),
    }
    return [
        TableEntry(
            PARENTS, {"generation": job.generation}, "parent", {"port": above.port, "address": ipv4_to_int(above.ip)}
        ),
        TableEntry(PARENT_REWRITE, {"generation": job.generation}, "to_parent", upward),
    ]
