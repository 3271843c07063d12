# SPDX-License-Identifier: Apache-2.0
"""A small program as JSON, to which each test adds what it tests.

Frame: header `h` (fields of the test's choice), then payload. The parser extracts `h`; ingress runs one keyless table
whose action holds the primitives under test and ends by sending the frame to port 1; the deparser emits `h` and
`extra`, a header of one 16-bit field that starts invalid.
"""

from __future__ import annotations

import json
from typing import Any

from hopsum_switch.engine import Engine
from hopsum_switch.program import ProgramIR, load_program

STANDARD_WIDTHS = (
    "ingress_port 9, egress_spec 9, egress_port 9, instance_type 32, packet_length 32, enq_timestamp 32, "
    "enq_qdepth 19, deq_timedelta 32, deq_qdepth 19, ingress_global_timestamp 48, egress_global_timestamp 48, "
    "mcast_grp 16, egress_rid 16, checksum_error 1, parser_error 32, priority 3, _padding 3"
)
STANDARD_FIELDS = [[name, int(bits), False] for name, bits in map(str.split, STANDARD_WIDTHS.split(", "))]
INTRINSIC = "ingress_global_timestamp egress_global_timestamp mcast_grp egress_rid priority"
ALIASES = {
    "queueing_metadata": ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth"),
    "intrinsic_metadata": tuple(INTRINSIC.split()),
}
ERRORS = ["NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort", "ParserTimeout"]
SOURCE = {"filename": "test.p4", "line": 42, "column": 8, "source_fragment": "the construct"}

Json = dict[str, Any]


def field(header: str, name: str) -> Json:
    return {"type": "field", "value": [header, name]}


def hexstr(value: int) -> Json:
    return {"type": "hexstr", "value": hex(value)}


def expression(op: str, left: Json | None, right: Json | None, cond: Json | None = None) -> Json:
    inner: Json = {"op": op, "left": left, "right": right}
    if cond is not None:
        inner["cond"] = cond
    return {"type": "expression", "value": inner}


def primitive(op: str, *parameters: Json) -> Json:
    return {"op": op, "parameters": list(parameters), "source_info": SOURCE}


def assign(target: Json, value: Json) -> Json:
    return primitive("assign", target, value)


class ProgramBuilder:
    """The JSON under construction; `data` may be edited freely."""

    def __init__(self, fields: list[list[Any]]) -> None:
        self.primitives: list[Json] = []
        self.egress_primitives: list[Json] = []
        self.data: Json = {
            "program": "test.p4",
            "__meta__": {"version": [2, 23]},
            "header_types": [
                {"name": "h_t", "id": 0, "fields": fields},
                {"name": "extra_t", "id": 1, "fields": [["x", 16, False]]},
                {"name": "standard_metadata", "id": 2, "fields": STANDARD_FIELDS},
                {"name": "scalars_t", "id": 3, "fields": [["m", 64, False], ["n", 64, True]]},
            ],
            "headers": [
                {"name": "h", "id": 0, "header_type": "h_t", "metadata": False},
                {"name": "g", "id": 1, "header_type": "h_t", "metadata": False},
                {"name": "extra", "id": 2, "header_type": "extra_t", "metadata": False},
                {"name": "standard_metadata", "id": 3, "header_type": "standard_metadata", "metadata": True},
                {"name": "scalars", "id": 4, "header_type": "scalars_t", "metadata": True},
            ],
            "errors": [*([name, number] for number, name in enumerate(ERRORS)), ["ParserInvalidArgument", 6]],
            "parsers": [{"name": "parser", "id": 0, "init_state": "start", "parse_states": [self.state("start")]}],
            "deparsers": [{"name": "deparser", "id": 0, "order": ["h", "g", "extra"]}],
            "counter_arrays": [{"name": "c", "id": 0, "size": 4, "is_direct": False, "source_info": SOURCE}],
            "register_arrays": [{"name": "r", "id": 0, "size": 4, "bitwidth": 12, "source_info": SOURCE}],
            "calculations": [],
            "checksums": [],
            "actions": [
                {"name": "act", "id": 0, "runtime_data": [], "primitives": self.primitives},
                {"name": "egress_act", "id": 1, "runtime_data": [], "primitives": self.egress_primitives},
            ],
            "pipelines": [
                {"name": "ingress", "id": 0, "init_table": "tbl_in", "tables": [self.table("tbl_in", 0, "act")]},
                {"name": "egress", "id": 1, "init_table": "tbl_eg", "tables": [self.table("tbl_eg", 1, "egress_act")]},
            ],
            "field_aliases": [
                [f"{group}.{name}", ["standard_metadata", name]] for group, names in ALIASES.items() for name in names
            ],
        }

    @staticmethod
    def state(name: str, extract: str | None = "h", following: str | None = None) -> Json:
        ops = [{"op": "extract", "parameters": [{"type": "regular", "value": extract}]}] if extract else []
        transitions = [{"type": "default", "value": None, "mask": None, "next_state": following}]
        return {"name": name, "id": 0, "parser_ops": ops, "transition_key": [], "transitions": transitions}

    @staticmethod
    def table(name: str, number: int, action: str) -> Json:
        """A keyless table that runs one action; table and action have the same number."""
        return {
            "name": name,
            "id": number,
            "type": "simple",
            "match_type": "exact",
            "max_size": 16,
            "with_counters": False,
            "support_timeout": False,
            "direct_meters": None,
            "key": [],
            "action_ids": [number],
            "actions": [action],
            "base_default_next": None,
            "next_tables": {action: None},
            "default_entry": {"action_id": number, "action_const": True, "action_data": [], "action_entry_const": True},
            "source_info": SOURCE,
        }

    @property
    def states(self) -> list[Json]:
        states: list[Json] = self.data["parsers"][0]["parse_states"]
        return states

    @property
    def ingress(self) -> Json:
        pipeline: Json = self.data["pipelines"][0]
        return pipeline

    def text(self) -> str:
        return json.dumps(self.data)

    def load(self) -> ProgramIR:
        return load_program(self.text())

    def engine(self, **options: Any) -> Engine:
        self.primitives.append(assign(field("standard_metadata", "egress_spec"), hexstr(1)))
        return Engine(self.load(), **options)

    def run(self, frame: bytes) -> bytes:
        """Return the one frame that comes out of port 1."""
        outputs = self.engine().process(5, frame)
        assert [output.port for output in outputs] == [1]
        return outputs[0].frame


def build(*fields: tuple[str, int] | tuple[str, int, bool]) -> ProgramBuilder:
    """Fields of `h` as (name, bits) or (name, bits, signed)."""
    return ProgramBuilder([[f[0], f[1], len(f) > 2 and f[2]] for f in fields or (("a", 8), ("b", 8))])
