# SPDX-License-Identifier: Apache-2.0
"""Places of entries, constant entries and multicast groups in the memory of Intel's model."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest

from hopsum_model import groups
from hopsum_model.chip_context import ContextTable, constant_entries, repair_context, without_constants
from hopsum_model.chips import TOFINO, TOFINO2, ModelChip, ModelError
from hopsum_model.model_tables import ModelTables


def _bit(number: int, *sources: tuple[str, str, int], seed: int = 0) -> dict[str, Any]:
    told = [{"field_name": name, "global_name": field, "field_bit": bit} for name, field, bit in sources]
    return {"hash_bit": number, "seed": seed, "bits_to_xor": told}


def _way(function: int, units: list[int]) -> dict[str, Any]:
    """Return a way of one memory with 4 rows, chosen by bits 0 and 1 of a hash function."""
    return {
        "pack_format": [{"entries": [_entry(0)]}],
        "memory_resource_allocation": {
            "hash_function_id": function, "hash_entry_bit_lo": 0, "number_entry_bits": 2, "number_subword_bits": 0,
            "hash_select_bit_lo": 40, "number_select_bits": 0,
            "memory_units_and_vpns": [{"memory_units": [unit], "vpns": [0]} for unit in units],
        },
    }  # fmt: skip


def _entry(number: int) -> dict[str, Any]:
    version = {"source": "version", "lsb_mem_word_idx": 0, "lsb_mem_word_offset": 4 + 8 * number, "field_width": 4}
    return {"entry_number": number, "fields": [version]}


def _context() -> dict[str, Any]:
    """Return a table with two keys in one field, as the assembler names them: the second one's bits as the first's."""
    keys = [
        {"name": "c0", "global_name": "word", "start_bit": 4, "bit_width": 2},
        {"name": "c1", "global_name": "word", "start_bit": 0, "bit_width": 2},
    ]
    functions = [
        {"hash_bits": [_bit(0, ("c0", "word", 0)), _bit(1, ("c0", "word", 1), ("c0", "word", 4))]},
        {"hash_bits": [_bit(0, ("c0", "word", 4), seed=1), _bit(1, ("c0", "word", 5))]},
    ]
    exact = {
        "stage_number": 3, "stage_table_type": "hash_match", "hash_functions": functions,
        "pack_format": [{"entries_per_table_word": 1}], "ways": [_way(0, [14]), _way(1, [19])],
    }  # fmt: skip
    ternary = {
        "stage_number": 5, "stage_table_type": "ternary_match",
        "memory_resource_allocation": {
            "memory_units_and_vpns": [{"memory_units": [7], "vpns": [1]}, {"memory_units": [2], "vpns": [0]}]
        },
    }  # fmt: skip
    return {
        "tables": [
            {"name": "Ingress.pairs", "match_key_fields": keys, "match_attributes": {"stage_tables": [exact]}},
            {
                "name": "Ingress.rare", "match_attributes": {"stage_tables": [ternary]},
                "match_key_fields": [{"name": "key", "global_name": "key", "start_bit": 0, "bit_width": 8}],
            },
        ]
    }  # fmt: skip


def test_a_bit_of_a_field_is_a_bit_of_the_key_that_has_it() -> None:
    stage = repair_context(_context())["tables"][0]["match_attributes"]["stage_tables"][0]
    bits = [bit for function in stage["hash_functions"] for bit in function["hash_bits"]]
    named = [source["field_name"] for bit in bits for source in bit["bits_to_xor"]]
    assert named == ["c1", "c1", "c0", "c0", "c0"]


def test_a_bit_that_no_key_has_is_refused_when_an_entry_comes() -> None:
    context = _context()
    context["tables"][0]["match_key_fields"].pop(0)
    tables = ModelTables(repair_context(context), {})
    with pytest.raises(ModelError, match="c0 is in a hash function, and no key of the table"):
        tables.add("pairs", {"c1": 1}, "set", {})


def test_places_of_an_entry() -> None:
    table = ContextTable(repair_context(_context())["tables"][0])
    slots = list(table.slots(table.shift_keys({"c0": 0b01, "c1": 0b11})))
    # Ways in the harness's order: of columns 2 and 7 (which counts as 10) of their rows of memories, the larger first.
    assert [(slot.address, slot.units, slot.row) for slot in slots] == [(0, (19,), 0b00), (1, (14,), 0b01)]


def test_the_key_is_where_it_is_in_its_field() -> None:
    tables = ModelTables(repair_context(_context()), {"key": 254})
    assert tables.add("pairs", {"c0": 1, "c1": 3}, "set", {"lanes": 258}) == [
        "add Ingress.pairs 0 c0:0x10 c1:0x3 set(lanes:0x102)"
    ]


def _run(commands: list[str], there: dict[tuple[int, int], str]) -> None:
    """Do what the harness and the memory do: an entry is where its way and its hash put it."""
    table = ContextTable(repair_context(_context())["tables"][0])
    for command in commands:
        if found := re.match(r"add Ingress.pairs (\d) c0:(\w+) c1:(\w+)", command):
            slots = list(table.slots({"c0": int(found[2], 16), "c1": int(found[3], 16)}))
            slot = slots[int(found[1])]
            assert (slot.units[0], slot.row) not in there
            there[slot.units[0], slot.row] = command.partition("c0")[2]
        else:
            found = re.fullmatch(r"write_raw_sram 3:(\d+):(\d) 0 & f << 4", command)
            assert found, command
            del there[int(found[1]), int(found[2])]


def test_entries_move_until_the_table_is_full() -> None:
    tables, there = ModelTables(repair_context(_context()), {"key": 254}), {}
    keys = [(c0, c1) for c1 in range(4) for c0 in range(4)][:7]
    for c0, c1 in keys:
        _run(tables.add("pairs", {"c0": c0, "c1": c1}, "set", {}), there)
    assert len(set(there.values())) == len(there) == 7
    _run(tables.delete("pairs", {"c0": 0, "c1": 0}), there)
    assert len(there) == 6


def test_a_table_without_room_says_so() -> None:
    tables = ModelTables(repair_context(_context()), {"key": 254})
    for number in range(8):
        tables.add("pairs", {"c0": number % 4, "c1": number // 4}, "set", {})
    with pytest.raises(ModelError, match=r"Ingress\.pairs: no room for an entry"):
        tables.add("pairs", {"c0": 0, "c1": 2}, "set", {})


def test_rows_of_a_ternary_table() -> None:
    tables = ModelTables(repair_context(_context()), {"key": 254})
    added = [tables.add("rare", {"key": number}, "set", {})[0] for number in range(1024)]
    assert added[0] == "add Ingress.rare 0 key:0x0 set()"
    assert added[-1] == "add Ingress.rare 1023 key:0x3ff set()"
    assert tables.delete("rare", {"key": 3}) == ["add Ingress.rare 3 key:0xfe set()"]
    assert tables.delete("rare", {"key": 600}) == ["add Ingress.rare 600 key:0xfe set()"]
    assert tables.add("rare", {"key": 5000}, "set", {}) == ["add Ingress.rare 600 key:0x1388 set()"]
    tables.add("rare", {"key": 3}, "set", {})
    with pytest.raises(ModelError, match="no room for an entry, 1024 are there"):
        tables.add("rare", {"key": 600}, "set", {})
    with pytest.raises(ModelError, match="names"):
        tables.add("other", {}, "set", {})


def test_an_entry_stays_where_no_key_has_a_value_of_no_packet() -> None:
    tables = ModelTables(repair_context(_context()), {"other": 1})
    tables.add("rare", {"key": 3}, "set", {})
    with pytest.raises(ModelError, match="no entry can go"):
        tables.delete("rare", {"key": 3})


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


TERNARY = {
    "name": "Ingress.form",
    "match_key_fields": [
        {"name": "flags", "start_bit": 0, "bit_width": 8},
        {"name": "length", "start_bit": 0, "bit_width": 4},
    ],
    "match_attributes": {
        "stage_tables": [
            {"stage_number": 0, "stage_table_type": "ternary_match", "size": 512, "memory_resource_allocation": None}
        ]
    },
    "actions": [{"handle": 7, "name": "Ingress.reject"}],
    "static_entries": [
        {
            "priority": 1,
            "match_key_fields_values": [
                {"field_name": "flags", "value": "0x0", "mask": "0xfe"},
                {"field_name": "length", "value": "0x5", "mask": "0xf"},
            ],
            "action_handle": 7,
            "action_parameters_values": [{"parameter_name": "reason", "value": "0x3"}],
        }
    ],
}
EXACT = {
    "name": "Ingress.loop",
    "match_attributes": {"stage_tables": [{"stage_table_type": "hash_match", "size": 64}]},
    "static_entries": [{"priority": 0}],
}


def test_a_masked_zero_keeps_its_zeros() -> None:
    """Written without them, 0 &&& 0xfe is any value to the harness."""
    context = {"tables": [TERNARY, EXACT, {"name": "Ingress.count"}]}
    assert list(constant_entries(context)) == [
        "add Ingress.form 510 flags:0b0000000* length:0b0101 Ingress.reject(reason:0x3)"
    ]


def test_the_harness_gets_a_context_without_them() -> None:
    context = {"tables": [TERNARY, EXACT, {"name": "Ingress.count"}]}
    form, loop, count = without_constants(context)["tables"]
    assert form == {**TERNARY, "static_entries": []}
    assert (loop, count) == (EXACT, {"name": "Ingress.count"})
    assert TERNARY["static_entries"], "the context that was given stays as it is"
