# SPDX-License-Identifier: Apache-2.0
"""A program for the embedded switch that has the tables, counters and registers of any P4Info, and does nothing.

With it the embedded switch's P4Runtime server holds and checks entries of programs that it cannot run.
"""

from __future__ import annotations

import json
from typing import Any

from hopsum_wire.p4runtime import p4info_pb2

_KINDS = {
    p4info_pb2.MatchField.EXACT: "exact",
    p4info_pb2.MatchField.LPM: "lpm",
    p4info_pb2.MatchField.TERNARY: "ternary",
}


def idle_program(p4info: p4info_pb2.P4Info) -> bytes:
    """Return the JSON of a program whose tables are never applied."""
    actions = {action.preamble.id: number for number, action in enumerate(p4info.actions)}
    widths = sorted({field.bitwidth for table in p4info.tables for field in table.match_fields})
    document = {
        "header_types": [
            {"name": "scalars_0", "id": 0, "fields": [[f"bits{width}", width, False] for width in widths]},
            {"name": "standard_metadata", "id": 1, "fields": _STANDARD},
        ],
        "headers": [
            {"name": "scalars", "id": 0, "header_type": "scalars_0", "metadata": True, "pi_omit": True},
            {
                "name": "standard_metadata",
                "id": 1,
                "header_type": "standard_metadata",
                "metadata": True,
                "pi_omit": True,
            },
        ],
        "parsers": [{"name": "parser", "id": 0, "init_state": "start", "parse_states": [_START]}],
        "deparsers": [{"name": "deparser", "id": 0, "order": [], "primitives": []}],
        "counter_arrays": [
            {"name": counter.preamble.name, "id": number, "size": counter.size, "is_direct": False}
            for number, counter in enumerate(p4info.counters)
        ],
        "register_arrays": [
            {"name": each.preamble.name, "id": number, "size": each.size, "bitwidth": _register_bits(each)}
            for number, each in enumerate(p4info.registers)
        ],
        "actions": [
            {
                "name": action.preamble.name,
                "id": number,
                "runtime_data": [{"name": param.name, "bitwidth": param.bitwidth} for param in action.params],
                "primitives": [],
            }
            for number, action in enumerate(p4info.actions)
        ],
        "pipelines": [
            {"name": name, "id": number, "init_table": None, "tables": tables, "conditionals": []}
            for number, (name, tables) in enumerate(
                [("ingress", [_table(p4info, actions, *each) for each in enumerate(p4info.tables)]), ("egress", [])]
            )
        ],
        **{name: [] for name in _EMPTY},
        "program": "idle.p4",
        "__meta__": {"version": [2, 23], "compiler": "https://github.com/p4lang/p4c"},
    }
    return json.dumps(document).encode()


def _table(p4info: p4info_pb2.P4Info, actions: dict[int, int], number: int, table: p4info_pb2.Table) -> dict[str, Any]:
    names = {action.preamble.id: action.preamble.name for action in p4info.actions}
    called = [ref.id for ref in table.action_refs]
    kinds = {_KINDS[field.match_type] for field in table.match_fields}
    kind = "ternary" if "ternary" in kinds else "lpm" if "lpm" in kinds else "exact"
    default = table.const_default_action_id or called[0]
    arguments = {action.preamble.id: len(action.params) for action in p4info.actions}
    return {
        "name": table.preamble.name,
        "id": number,
        "key": [
            {
                "match_type": _KINDS[field.match_type],
                "name": field.name,
                "target": ["scalars", f"bits{field.bitwidth}"],
                "mask": None,
            }
            for field in table.match_fields
        ],
        "match_type": kind,
        "type": "simple",
        "max_size": table.size,
        "with_counters": False,
        "support_timeout": False,
        "direct_meters": None,
        "action_ids": [actions[each] for each in called],
        "actions": [names[each] for each in called],
        "base_default_next": None,
        "next_tables": dict.fromkeys((names[each] for each in called), None),
        "default_entry": {
            "action_id": actions[default],
            "action_const": False,
            "action_data": ["0x0"] * arguments[default],
            "action_entry_const": False,
        },
    }


def _register_bits(register: p4info_pb2.Register) -> int:
    bits = register.type_spec.bitstring
    return bits.bit.bitwidth or bits.int.bitwidth or 64


_START = {
    "name": "start",
    "id": 0,
    "parser_ops": [],
    "transitions": [{"type": "default", "value": None, "mask": None, "next_state": None}],
    "transition_key": [],
}
_EMPTY = (
    "header_stacks", "header_union_types", "header_unions", "header_union_stacks", "field_lists", "errors", "enums",
    "parse_vsets", "meter_arrays", "calculations", "learn_lists", "checksums", "force_arith", "extern_instances",
    "field_aliases",
)  # fmt: skip
_STANDARD = [
    ["ingress_port", 9, False], ["egress_spec", 9, False], ["egress_port", 9, False], ["instance_type", 32, False],
    ["packet_length", 32, False], ["mcast_grp", 16, False], ["egress_rid", 16, False], ["checksum_error", 1, False],
    ["parser_error", 32, False], ["_padding", 4, False],
]  # fmt: skip
