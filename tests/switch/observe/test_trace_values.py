# SPDX-License-Identifier: Apache-2.0
"""Traces on request: assignments, values in conditions; and always: reads of fields of invalid headers."""

from __future__ import annotations

from typing import Any

import pytest

from hopsum_switch.cli import main
from hopsum_switch.engine import Engine
from hopsum_switch.observe.trace import Trace, render

from ..core.builder import Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive

PLACE = "test.p4(42): the construct"
EXTRA: Json = {"type": "header", "value": "extra"}
EXTRA_X = field("extra", "x")
M = field("scalars", "m")


def run(builder: ProgramBuilder, *, values: bool = True) -> tuple[dict[str, Any], Engine]:
    """Send one frame with h.a = 3 and h.b = 4 and return its record and the engine."""
    records: list[dict[str, Any]] = []
    engine = builder.engine(observer=Trace(records.append, values=values))
    engine.process(5, b"\x03\x04")
    return records[0], engine


def events(builder: ProgramBuilder, *, values: bool = True) -> list[dict[str, Any]]:
    """Return the events of ingress but for the statements' table and the assignment of the egress port."""
    record, _ = run(builder, values=values)
    ignored = ("statements", "standard_metadata.egress_spec")
    return [
        event
        for event in record["steps"][1]["events"]
        if next(iter(event)) != "statements" and event.get("assign") not in ignored
    ]


def valid(header: str) -> Json:
    return expression("valid", None, {"type": "header", "value": header})


def conditional(builder: ProgramBuilder, condition: Json) -> None:
    """Put an `if` before the only table of ingress."""
    node = {"name": "node_1", "id": 0, "expression": condition, "true_next": "tbl_in", "false_next": "tbl_in"}
    builder.ingress["conditionals"] = [node | {"source_info": builder.ingress["tables"][0]["source_info"]}]
    builder.ingress["init_table"] = "node_1"


def test_assignments_have_both_values_and_their_place() -> None:
    builder = build()
    builder.primitives += [
        assign(field("h", "a"), hexstr(9)),
        assign(field("h", "a"), hexstr(9)),
        primitive("register_read", M, {"type": "register_array", "value": "r"}, hexstr(2)),
    ]
    assert events(builder) == [
        {"assign": "h.a", "old": "0x3", "new": "0x9", "source": PLACE},
        {"assign": "h.a", "old": "0x9", "new": "0x9", "source": PLACE},
        {"read": "r", "index": 2, "value": "0x0"},
        {"assign": "scalars.m", "old": "0x0", "new": "0x0", "source": PLACE},
    ]
    assert f"    assign h.a ({PLACE}): 0x3 -> 0x9" in render(run(builder)[0]).splitlines()
    assert not [event for event in events(builder, values=False) if "assign" in event]


def test_headers_become_valid_and_copies_of_headers_show_what_differs() -> None:
    builder = build()
    h, g = ({"type": "header", "value": name} for name in "hg")
    builder.primitives += [
        primitive("add_header", EXTRA),
        primitive("assign_header", g, h),
        primitive("remove_header", EXTRA),
    ]
    assert events(builder) == [
        {"validity": "extra", "valid": True, "source": PLACE},
        {"validity": "g", "valid": True, "source": PLACE},
        {"assign": "g.a", "old": "0x0", "new": "0x3", "source": PLACE},
        {"assign": "g.b", "old": "0x0", "new": "0x4", "source": PLACE},
        {"validity": "extra", "valid": False, "source": PLACE},
    ]
    assert f"    header extra valid ({PLACE})" in render(run(builder)[0]).splitlines()


def test_a_condition_shows_the_values_that_it_names() -> None:
    builder = build()
    equal = expression("==", field("h", "a"), field("h", "b"))
    conditional(builder, expression("or", equal, valid("extra")))
    (event,) = (event for event in events(builder) if "condition" in event)
    assert event["values"] == {"h.a": "0x3", "h.b": "0x4", "extra.isValid()": "false"}
    line = f"    if node_1 ({PLACE}): false [h.a=0x3, h.b=0x4, extra.isValid()=false]"
    assert line in render(run(builder)[0]).splitlines()
    assert all("values" not in event for event in events(builder, values=False))


def test_an_if_inside_an_action_is_told_on_request() -> None:
    builder = build()
    builder.primitives += [
        primitive("_jump_if_zero", expression("==", field("h", "a"), hexstr(4)) | {}, hexstr(2)),
        assign(M, hexstr(1)),
    ]
    builder.primitives[0]["parameters"][0] = expression("b2d", None, builder.primitives[0]["parameters"][0])
    (event,) = events(builder)
    assert event == {"branch": "act", "source": PLACE, "holds": False, "values": {"h.a": "0x3"}}
    assert f"    if in act ({PLACE}): false [h.a=0x3]" in render(run(builder)[0]).splitlines()
    assert events(builder, values=False) == []


@pytest.mark.parametrize("values", [False, True])
def test_a_read_of_an_invalid_header_is_always_told_and_counted(values: bool) -> None:
    builder = build()
    builder.primitives.append(assign(M, expression("+", EXTRA_X, field("h", "a"))))
    record, engine = run(builder, values=values)
    told = [event for event in record["steps"][1]["events"] if "invalid_read" in event]
    assert told == [{"invalid_read": "extra.x", "value": "0x0", "source": PLACE}]
    line = f"    read extra.x ({PLACE}): the header is invalid; 0x0 here, undefined in P4"
    assert line in render(record).splitlines()
    assert engine.faults == {"invalid_header_read": 1}


def test_a_part_that_is_not_evaluated_reads_nothing() -> None:
    guarded = expression("and", valid("extra"), expression("==", EXTRA_X, hexstr(0)))
    builder = build()
    conditional(builder, guarded)
    assert not [event for event in events(builder) if "invalid_read" in event]
    deep = expression("==", EXTRA_X, hexstr(0))
    for _ in range(100):  # more than one line of Python may nest
        deep = expression("not", None, deep)
    for first, count in (("extra", 0), ("h", 1)):
        builder = build()
        conditional(builder, expression("and", valid(first), deep))
        assert len([event for event in events(builder) if "invalid_read" in event]) == count


def test_a_field_of_a_header_that_was_removed_is_told_with_its_old_value() -> None:
    builder = build()
    builder.primitives += [primitive("remove_header", {"type": "header", "value": "h"}), assign(M, field("h", "a"))]
    (event,) = (event for event in events(builder, values=False) if "invalid_read" in event)
    assert event["value"] == "0x3"


def key(*targets: tuple[str, str]) -> ProgramBuilder:
    builder = build()
    kinds = [{"match_type": "exact", "name": ".".join(t), "target": list(t), "mask": None} for t in targets]
    builder.ingress["tables"][0]["key"] = kinds
    return builder


def test_a_key_tells_of_an_invalid_header_unless_its_validity_is_part_of_the_key() -> None:
    (event, *_) = events(key(("extra", "x")), values=False)
    assert event == {"invalid_read": "extra.x", "value": "0x0", "source": PLACE}
    assert not [e for e in events(key(("extra", "$valid$"), ("extra", "x"))) if "invalid_read" in e]


def test_what_a_parser_sets_is_told() -> None:
    builder = build()
    builder.states[0]["parser_ops"].append({"op": "set", "parameters": [M, field("h", "b")]})
    record, _ = run(builder)
    assert record["steps"][0]["events"] == [{"assign": "scalars.m", "old": "0x0", "new": "0x4", "source": None}]


def test_values_need_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--trace-values"])
    assert "--trace-values adds to a trace: give --trace or --trace-json too" in capsys.readouterr().err
