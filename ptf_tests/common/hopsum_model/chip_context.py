# SPDX-License-Identifier: Apache-2.0
"""The parts of the assembler's context.json that placing an entry needs: hash functions, ways, memories, fields.

The harness reads the same file, and computes the row of an entry by the hash functions in it. It looks for a bit's key
by `field_name`. Where two keys of a table are parts of one field (c0 and c1 of the lookup tables), that is the first
one's, and `global_name` with the bit's number tells which is meant. `repair_context` puts the right key there.

The harness adds constant entries too. It writes a ternary value without leading zeros and takes a leading `*` for all
higher bits, so that 0 &&& 0xfe becomes any value. `without_constants` and `constant_entries` do without it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from hopsum_model.chips import ModelError

Json = dict[str, Any]
TCAM_ROWS: Final = 512
# A row of a stage has twelve memories, six on each side.
_RAMS_IN_A_ROW, _RAMS_OF_A_SIDE = 12, 6


@dataclass(frozen=True)
class Slot:
    """The place of one entry in an exact table."""

    stage: int
    row: int
    entry: int
    """The number among the entries that share the row."""
    address: int
    """The number that the harness takes as the way. All rows of a way have the same."""
    units: tuple[int, ...]
    """The memories of the row, least significant word first."""


class HashWay:
    """One way of an exact table: a row of one of its memories, by hash."""

    def __init__(self, allocation: Json, functions: Sequence[Json]) -> None:
        low, bits = allocation["hash_entry_bit_lo"], allocation["number_entry_bits"]
        select, selects = allocation["hash_select_bit_lo"], allocation["number_select_bits"]
        mask = allocation.get("hash_select_bit_mask", (1 << selects) - 1)
        if allocation.get("number_subword_bits"):
            raise ModelError("a way with several entries in one row by hash: the adapter knows none")
        matrix = {bit["hash_bit"]: bit for bit in functions[allocation["hash_function_id"]]["hash_bits"]}
        self._row_bits = [_sum_bits(matrix.get(low + number)) for number in range(bits)]
        chosen = [number for number in range(selects) if mask >> number & 1]
        self._memory_bits = [_sum_bits(matrix.get(select + number)) for number in chosen]
        self.memories = [tuple(each["memory_units"][::-1]) for each in allocation["memory_units_and_vpns"]]

    @property
    def order(self) -> int:
        """Return the number by which the harness sorts ways, the largest first."""
        column = int(self.memories[0][0]) % _RAMS_IN_A_ROW
        return column if column < _RAMS_OF_A_SIDE else _RAMS_IN_A_ROW + _RAMS_OF_A_SIDE - 1 - column

    def place(self, match: Mapping[str, int]) -> tuple[tuple[int, ...], int]:
        """Return memories and row of an entry. `match` comes from `ContextTable.shift_keys`. Raises ModelError."""
        return self.memories[_hash(self._memory_bits, match)], _hash(self._row_bits, match)


class StageTable:
    """The part of a table in one stage, of exact or ternary entries. Raises ModelError for a part of another kind."""

    def __init__(self, told: Json) -> None:
        self.stage = int(told["stage_number"])
        self.exact = told["stage_table_type"] == "hash_match"
        if not (self.exact or told["stage_table_type"] == "ternary_match"):
            raise ModelError(f"{told['stage_table_type']}: the adapter places no entries there")
        self._told = told

    @cached_property
    def ways(self) -> list[HashWay]:
        """Return the ways in the harness's order."""
        functions = self._told["hash_functions"]
        ways = [HashWay(way["memory_resource_allocation"], functions) for way in self._told["ways"]]
        return sorted(ways, key=lambda way: -way.order)

    @cached_property
    def entries(self) -> list[Json]:
        """Return the formats of the entries that share a row, by number."""
        (form,) = self._told["ways"][0]["pack_format"]
        return sorted(form["entries"], key=lambda entry: int(entry["entry_number"]))

    @property
    def tcam_rows(self) -> int:
        """Return the number of entries that the part of a ternary table has room for. Not for an exact table."""
        return TCAM_ROWS * len(self._told["memory_resource_allocation"]["memory_units_and_vpns"])

    def version_bits(self, entry: int) -> tuple[int, int, int]:
        """Return word, lowest bit and width of the field that marks an entry (by number in its row) as valid."""
        for field in self.entries[entry]["fields"]:
            if field["source"] == "version":
                return field["lsb_mem_word_idx"], field["lsb_mem_word_offset"], field["field_width"]
        raise ModelError(f"stage {self.stage}: an entry without a version")


class ContextTable:
    """A table that a controller writes."""

    def __init__(self, told: Json) -> None:
        self.name = str(told["name"])
        self.low_bits = {str(key["name"]): int(key["start_bit"]) for key in told["match_key_fields"]}
        """The lowest bit of each key in its field. The harness takes a key's value in the place that it has there."""
        self.stages = [StageTable(stage) for stage in told["match_attributes"]["stage_tables"]]
        self.exact = self.stages[0].exact

    def shift_keys(self, match: Mapping[str, int]) -> dict[str, int]:
        """Return the keys with their values shifted to their fields' lowest bits, as the harness takes them."""
        return {name: value << self.low_bits.get(name, 0) for name, value in match.items()}

    def slots(self, match: Mapping[str, int]) -> Iterator[Slot]:
        """Yield the places that an entry of an exact table may have. `match` is what `shift_keys` returns."""
        first = 0
        for stage in reversed(self.stages):
            share = len(stage.entries)
            for number, way in enumerate(stage.ways):
                units, row = way.place(match)
                for entry in range(share):
                    yield Slot(stage.stage, row, entry, first + number * share + entry, units)
            first += len(stage.ways) * share

    def stage(self, number: int) -> StageTable:
        """Return the part of the table in a stage."""
        return next(stage for stage in self.stages if stage.stage == number)

    def tcam_rows(self) -> int:
        """Return the number of entries that a ternary table has room for."""
        return sum(stage.tcam_rows for stage in self.stages)


def repair_context(context: Json) -> Json:
    """Return a copy of a context, whose hash functions name the right keys. The module says why."""
    fixed = copy.deepcopy(context)
    for table in fixed["tables"]:
        keys = table.get("match_key_fields", [])
        # Tables without keys, such as those of actions only, have neither match attributes nor hash functions.
        for stage in table.get("match_attributes", {}).get("stage_tables", []):
            for function in stage.get("hash_functions", []):
                for bit in function["hash_bits"]:
                    for source in bit["bits_to_xor"]:
                        source.update(_right_key(keys, source))
    return fixed


def without_constants(context: Json) -> Json:
    """Return a context without the constant entries of ternary tables."""
    kept = [{**told, "static_entries": []} if _is_ternary(told) else told for told in context["tables"]]
    return {**context, "tables": kept}


def constant_entries(context: Json) -> Iterator[str]:
    """Yield the commands that add the constant entries of ternary tables."""
    for told in filter(_is_ternary, context["tables"]):
        widths = {str(key["name"]): int(key["bit_width"]) for key in told["match_key_fields"]}
        actions = {action["handle"]: action["name"] for action in told["actions"]}
        # As the harness counts: some of these tables have no memory in context.json.
        rows = sum(stage["size"] for stage in told["match_attributes"]["stage_tables"])
        for entry in told.get("static_entries") or ():
            keys = " ".join(
                f"{each['field_name']}:{_ternary_text(each, widths[each['field_name']])}"
                for each in entry["match_key_fields_values"]
            )
            values = ", ".join(f"{one['parameter_name']}:{one['value']}" for one in entry["action_parameters_values"])
            # Priority 0 is the highest, and the highest row wins.
            row = rows - 1 - int(entry["priority"])
            yield f"add {told['name']} {row} {keys} {actions[entry['action_handle']]}({values})"


def find_table(context: Json, name: str) -> Json:
    """Return the only table whose name ends with this one. Raises ModelError."""
    told: list[Json] = [each for each in context["tables"] if _ends(each["name"], name)]
    if len(told) != 1:
        raise ModelError(f"{name} names {[each['name'] for each in told]} in context.json, not one table")
    return told[0]


def _is_ternary(told: Json) -> bool:
    stages = told.get("match_attributes", {}).get("stage_tables", [])
    return any(stage["stage_table_type"] == "ternary_match" for stage in stages)


def _ternary_text(told: Json, width: int) -> str:
    value, mask = int(told["value"], 0), int(told["mask"], 0)
    return "0b" + "".join(str(value >> bit & 1) if mask >> bit & 1 else "*" for bit in reversed(range(width)))


def _ends(full: str, name: str) -> bool:
    return full == name or full.endswith("." + name)


def _right_key(keys: Sequence[Json], source: Json) -> Json:
    for key in keys:
        low, field = int(key["start_bit"]), key.get("global_name") or key["name"]
        if field == source["global_name"] and low <= source["field_bit"] < low + int(key["bit_width"]):
            return {"field_name": key["name"]}
    return {}


def _sum_bits(bit: Json | None) -> tuple[int, list[tuple[str, int]]]:
    if bit is None:
        return 0, []
    return int(bit["seed"]), [(source["field_name"], source["field_bit"]) for source in bit["bits_to_xor"]]


def _hash(bits: Sequence[tuple[int, list[tuple[str, int]]]], match: Mapping[str, int]) -> int:
    value = 0
    for number, (seed, sources) in enumerate(bits):
        if missing := [name for name, _ in sources if name not in match]:
            raise ModelError(f"{missing[0]} is in a hash function, and no key of the table")
        ones = sum(match[name] >> bit & 1 for name, bit in sources)
        value |= (seed + ones & 1) << number
    return value
