# SPDX-License-Identifier: Apache-2.0
"""Places of entries in the model's tables, from a context.json that is small, and the commands for them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hopsum_model.chip_context import ContextTable, repaired
from hopsum_model.chips import ModelError
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
    stage = repaired(_context())["tables"][0]["match_attributes"]["stage_tables"][0]
    bits = [bit for function in stage["hash_functions"] for bit in function["hash_bits"]]
    named = [source["field_name"] for bit in bits for source in bit["bits_to_xor"]]
    assert named == ["c1", "c1", "c0", "c0", "c0"]


def test_a_bit_that_no_key_has_is_refused_when_an_entry_comes() -> None:
    context = _context()
    context["tables"][0]["match_key_fields"].pop(0)
    tables = ModelTables(repaired(context), {})
    with pytest.raises(ModelError, match="c0 is in a hash function, and no key of the table"):
        tables.add("pairs", {"c1": 1}, "set", {})


def test_places_of_an_entry() -> None:
    table = ContextTable(repaired(_context())["tables"][0])
    slots = list(table.slots(table.shifted({"c0": 0b01, "c1": 0b11})))
    # Ways in the harness's order: of columns 2 and 7 (which counts as 10) of their rows of memories, the larger first.
    assert [(slot.address, slot.units, slot.row) for slot in slots] == [(0, (19,), 0b00), (1, (14,), 0b01)]


def test_the_key_is_where_it_is_in_its_field() -> None:
    tables = ModelTables(repaired(_context()), {"key": 254})
    assert tables.add("pairs", {"c0": 1, "c1": 3}, "set", {"lanes": 258}) == [
        "add Ingress.pairs 0 c0:0x10 c1:0x3 set(lanes:0x102)"
    ]


def _run(commands: list[str], there: dict[tuple[int, int], str]) -> None:
    """Do what the harness and the memory do: an entry is where its way and its hash put it."""
    table = ContextTable(repaired(_context())["tables"][0])
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
    tables, there = ModelTables(repaired(_context()), {"key": 254}), {}
    keys = [(c0, c1) for c1 in range(4) for c0 in range(4)][:7]
    for c0, c1 in keys:
        _run(tables.add("pairs", {"c0": c0, "c1": c1}, "set", {}), there)
    assert len(set(there.values())) == len(there) == 7
    _run(tables.delete("pairs", {"c0": 0, "c1": 0}), there)
    assert len(there) == 6


def test_a_table_without_room_says_so() -> None:
    tables = ModelTables(repaired(_context()), {"key": 254})
    for number in range(8):
        tables.add("pairs", {"c0": number % 4, "c1": number // 4}, "set", {})
    with pytest.raises(ModelError, match=r"Ingress\.pairs: no room for an entry"):
        tables.add("pairs", {"c0": 0, "c1": 2}, "set", {})


def test_rows_of_a_ternary_table() -> None:
    tables = ModelTables(repaired(_context()), {"key": 254})
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
    tables = ModelTables(repaired(_context()), {"other": 1})
    tables.add("rare", {"key": 3}, "set", {})
    with pytest.raises(ModelError, match="no entry can go"):
        tables.delete("rare", {"key": 3})
