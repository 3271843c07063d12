# SPDX-License-Identifier: Apache-2.0
"""Multicast groups in the memory of the model's replication engine, and binary blocks for its harness."""

from __future__ import annotations

import struct

import pytest

from hopsum_model import groups
from hopsum_model.chips import TOFINO, TOFINO2, ModelChip, ModelError

BOTH = pytest.mark.parametrize("chip", [TOFINO, TOFINO2], ids=lambda chip: chip.name)


def _blocks(data: bytes) -> list[tuple[str, int, list[int]]]:
    """Return kind, address and values of every block, as the harness reads them."""
    found, at = [], 0
    while at < len(data):
        kind = chr(data[at + 3])
        assert data[at : at + 3] == bytes(3)
        if kind == "r":
            address, value = struct.unpack_from("<II", data, at + 4)
            found.append((kind, address, [value]))
            at += 12
        else:
            address, width, count = struct.unpack_from("<QII", data, at + 4)
            assert (kind, width) == ("d", 128)
            at += 20
            rows = [data[start : start + 16] for start in range(at, at + 16 * count, 16)]
            found.append((kind, address, [int.from_bytes(row, "little") for row in rows]))
            at += 16 * count
    return found


def _walk(chip: ModelChip, group: int, written: dict[int, int]) -> list[tuple[int, int]]:
    """Return the copies that the engine would make: it follows pointers, which count half rows, until 0."""
    pointer = written[chip.group_table + group // 4] >> 20 * (group % 4) & 0xFFFFF
    copies = []
    while pointer:
        node = written[chip.nodes + pointer // 2]
        assert (node & 0xF, pointer % 2) == (1, 0)
        leaf = written[chip.nodes + (node >> 24 & 0xFFFFF) // 2]
        assert (leaf & 0xF, leaf >> 4 & 3, leaf >> 7 & 1) == (9, 0, 1)
        ports = leaf >> 8 & (1 << 64) - 1
        copies += [(port, node >> 48 & 0xFFFF) for port in range(64) if ports >> port & 1]
        pointer = node >> 4 & 0xFFFFF
    return copies


@BOTH
def test_the_engine_finds_every_replica(chip: ModelChip) -> None:
    told = {1: [(3, 0), (3, 1), (7, 63)], 2: [(0, 5)], 65: [(port, 0) for port in range(8)]}
    written = {}
    for group in told:
        for kind, address, values in _blocks(groups.group_blocks(chip, group, told)):
            written.update({address + number: value for number, value in enumerate(values)} if kind == "d" else {})
    assert {group: _walk(chip, group, written) for group in told} == told


def test_the_deparser_knows_the_pipe_of_groups_that_there_are() -> None:
    told = {1: [(3, 0)], 2: [], 9: [(1, 0)]}
    for group, word, pipes in ((1, 0, 1 << 4), (2, 0, 1 << 4), (9, 1, 1 << 4)):
        registers = [block for block in _blocks(groups.group_blocks(TOFINO, group, told)) if block[0] == "r"]
        assert registers == [("r", 0x27F0000 + pipe * 0x800000 + 4 * word, [pipes]) for pipe in range(4)]
    for group, word, pipes in ((1, 0, 1 << 5), (2, 0, 1 << 5), (9, 2, 1 << 5)):
        registers = [block for block in _blocks(groups.group_blocks(TOFINO2, group, told)) if block[0] == "r"]
        assert registers == [("r", 0x4D00000 + pipe * 0x1000000 + 4 * word, [pipes]) for pipe in range(4)]


@BOTH
def test_a_group_that_ends_has_no_pointer(chip: ModelChip) -> None:
    _, address, (pointers,) = _blocks(groups.group_blocks(chip, 1, {1: (), 3: [(1, 1)]}))[0]
    assert (address, pointers & 0xFFFFF << 20, pointers >> 60 != 0) == (chip.group_table, 0, True)


@pytest.mark.parametrize("replicas", [[(1, rank) for rank in range(65)], [(64, 0)]])
def test_what_does_not_fit_is_refused(replicas: list[tuple[int, int]]) -> None:
    with pytest.raises(ModelError, match="group 3 has"):
        groups.group_rows(3, replicas)
