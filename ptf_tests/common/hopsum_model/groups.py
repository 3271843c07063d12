# SPDX-License-Identifier: Apache-2.0
"""Multicast groups as the memory of the model's replication engine holds them, in the harness's binary form.

A group is a chain of first-level nodes, one for each replica, each with one second-level node:

    group table [group] --> instance ------> instance ------> ...
                               |                |
                               +-> one port     +-> one port

A node's address counts half rows, and 0 is no node. Besides, the ingress deparser has for each group the set of pipes
whose replication engines shall look it up. Without it nobody makes copies.

All replicas are in pipe 0, where the testbed's ports are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hopsum_model.chips import ModelChip, ModelError

_ROW_BYTES = 16
# Row 0 would have the address 0, which ends a chain.
_FIRST_ROW = 1
_MAX_REPLICAS = 64
_ROWS_OF_A_GROUP = 2 * _MAX_REPLICAS
_GROUPS_IN_A_ROW, _POINTER_BITS = 4, 20
_INSTANCE_NODE, _PORTS_NODE = 1, 9
# Ports that a node names in its first word of ports.
_PORTS: Final = 64


def memory_block(address: int, rows: Sequence[int]) -> bytes:
    """Return a block in the assembler's binary form that writes rows of 128 bits, from an address of the chip on."""
    # "d": a block of memory, with address, bits of a row and number of rows.
    head = struct.pack("<IQII", ord("d") << 24, address, 8 * _ROW_BYTES, len(rows))
    return head + b"".join(row.to_bytes(_ROW_BYTES, "little") for row in rows)


def register_block(address: int, value: int) -> bytes:
    """Return a block in the assembler's binary form that writes one register."""
    return struct.pack("<III", ord("r") << 24, address, value)


def group_rows(group: int, replicas: Iterable[tuple[int, int]]) -> list[int]:
    """Return the nodes of a group as rows of 128 bits. `replicas` are (port, rid).

    Raises ModelError for more than 64 replicas, or a port above 63.
    """
    told = list(replicas)
    if len(told) > _MAX_REPLICAS:
        raise ModelError(f"group {group} has {len(told)} replicas, the adapter has room for {_MAX_REPLICAS}")
    rows = []
    for number, (port, instance) in enumerate(told):
        if port >= _PORTS:
            raise ModelError(f"group {group} has port {port}, the adapter knows those below {_PORTS}")
        here = _first_row(group) + 2 * number
        # Addresses count half rows. 0 ends the chain.
        following = 2 * (here + 2) if number + 1 < len(told) else 0
        rows.append(_INSTANCE_NODE | following << 4 | 2 * (here + 1) << 24 | instance << 48)
        rows.append(_PORTS_NODE | 1 << 7 | 1 << 8 + port)
    return rows


def group_blocks(chip: ModelChip, group: int, groups: Mapping[int, Iterable[tuple[int, int]]]) -> bytes:
    """Return the blocks that write one group into memory and registers.

    `groups` has the replicas of all groups: neighbours share words. A group without replicas is removed.
    """
    rows = group_rows(group, groups.get(group, ()))
    row = group - group % _GROUPS_IN_A_ROW
    pointers = sum(
        2 * _first_row(row + number) << _POINTER_BITS * number
        for number in range(_GROUPS_IN_A_ROW)
        if groups.get(row + number)
    )
    word = group - group % chip.groups_in_word
    pipes = sum(1 << chip.pipe_set_bits * number for number in range(chip.groups_in_word) if groups.get(word + number))
    return b"".join((
        memory_block(chip.nodes + _first_row(group), rows) if rows else b"",
        memory_block(chip.group_table + group // _GROUPS_IN_A_ROW, [pointers]),
        *(register_block(first + 4 * (group // chip.groups_in_word), pipes) for first in chip.pipe_sets),
    ))  # fmt: skip


def _first_row(group: int) -> int:
    return _FIRST_ROW + group * _ROWS_OF_A_GROUP
