# SPDX-License-Identifier: Apache-2.0
"""Programs that break a rule of the course: compiled solutions in which a primitive or a condition is another one.

Unlike those of `mutants`, they need no compiler. An edit is text: a primitive or a condition as `shown` writes it has
the old text in it, and gets the new one in its place. A scope is the name of an action or of a checksum. The scope ""
is every action and condition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from hopsum_labs.grading import CompiledProgram, compiled_solution
from hopsum_labs.levels import LEVELS

Edit = tuple[str, str, str]
"""Scope, old text, new text."""


class Edited(NamedTuple):
    """Edits of a compiled solution. `breaks` is a case that has to find them."""

    level: str
    name: str
    edits: tuple[Edit, ...]
    breaks: str


_ERROR = "(standard_metadata.checksum_error == 0x01)"
_FORWARD, _DROP = "assign(standard_metadata.egress_spec, 0)", "mark_to_drop(standard_metadata)"
_TTL, _CHECKSUM = "assign(ipv4.ttl, 0x40)", "assign(udp.checksum, 0x0000)"
_OWN_BIT, _ALL = "((0x01 << aggregation.rank) & 0xff)", "assign(standard_metadata.mcast_grp, 0x0001)"
_AGAIN = "assign(standard_metadata.egress_spec, standard_metadata.ingress_port)"
_COMPLETE = "(scalars.count_0 == scalars.metadata_t."
_IP, _PADDED = "(d2b ipv4.$valid$)", "(standard_metadata.packet_length > 0x36)"
_NOT_PADDED = "(standard_metadata.packet_length < 0x37)"
_OPTIONS = f"({_IP} and (ipv4.header_words == 0x05))"
_COPY = "(((aggregation.slot << 0x1) & 0x1ff) + aggregation.version)"
_JOB = "assign(scalars.metadata_t.workers, 0)"
_RESET = "register_write(MyIngress.arrived, 0x00, 0x00)"
_FORGET = "register_write(MyIngress.seen, 0x00, 0x00); register_write(MyIngress.seen, 0x01, 0x00)"
_RESET_BOTH = f"{_RESET}; register_write(MyIngress.arrived, 0x01, 0x00); {_FORGET}"
_STRANGE, _NO_SLOT = "aggregate177", "aggregate178"


def _also(old: str, more: str, scope: str = "") -> tuple[Edit, ...]:
    return ((scope, old, f"{old}; {more}"),)


def _dropped_if(condition: str) -> tuple[Edit, ...]:
    return (("", _ERROR, f"({_ERROR} or {condition})"),)


_UDP = (
    ("a_forwarded_packet_resets_the_round", _also(_FORWARD, _RESET), "ordinary_traffic"),
    ("a_packet_without_an_entry_resets_the_round", _also(_DROP, _RESET, "MyIngress.drop"), "ordinary_traffic"),
    ("a_forwarded_packet_counts", _also(_FORWARD, "register_write(MyIngress.arrived, 0x00, 0x02)"), "ordinary_traffic"),
    ("a_damaged_packet_resets_the_round", _also(_DROP, _RESET, "aggregate160"), "for_the_switch_only"),
    ("a_packet_for_the_switch_resets_the_round", _also(_DROP, _RESET, "aggregate164"), "for_the_switch_only"),
    ("rewrites_the_checksum_over_options", (("cksum", _OPTIONS, _IP),), "ordinary_traffic"),
    ("tests_the_checksum_over_options", (("cksum_0", _OPTIONS, _IP),), "ordinary_traffic"),
    ("ipv4_length_of_256", _also(_TTL, "assign(ipv4.total_bytes, 0x0100)"), "checksums"),
    ("udp_length_of_56", _also(_TTL, "assign(udp.bytes, 0x0038)"), "checksums"),
    ("more_fragments", _also(_TTL, "assign(ipv4.flags, 0x01)"), "checksums"),
    ("a_fragment", _also(_TTL, "assign(ipv4.fragment, 0x01)"), "checksums"),
    ("keeps_a_time_to_live_above_100", (("", _TTL, "assign(ipv4.ttl, (0x40 | (ipv4.ttl & 0x80)))"),), "checksums"),
    ("drops_arp", _dropped_if("(ethernet.type == 0x0806)"), "ordinary_traffic"),
    ("drops_vlans", _dropped_if("(ethernet.type == 0x8100)"), "ordinary_traffic"),
    ("drops_long_frames", _dropped_if("(standard_metadata.packet_length > 0x200)"), "ordinary_traffic"),
    ("drops_fragments", _dropped_if("(ipv4.fragment != 0x00)"), "ordinary_traffic"),
    ("drops_short_lives", _dropped_if(f"({_IP} and (ipv4.ttl < 0x02))"), "ordinary_traffic"),
    (
        "drops_what_has_its_own_source",
        _dropped_if(f"({_IP} and (ipv4.source == scalars.metadata_t.switch_ip))"),
        "ordinary_traffic",
    ),
    ("clears_the_service", _also(_FORWARD, "assign(ipv4.service, 0x00)"), "ordinary_traffic"),
    ("clears_the_flags", _also(_FORWARD, "assign(ipv4.flags, 0x00)"), "ordinary_traffic"),
)
_LOSS = (
    ("a_forwarded_packet_resets_the_round", _also(_FORWARD, _RESET_BOTH), "who_does_not_exist"),
    ("a_forwarded_packet_clears_the_bits", _also(_FORWARD, _FORGET), "who_does_not_exist"),
    ("a_damaged_packet_clears_the_bits", _also(_DROP, _FORGET, "aggregate172"), "who_does_not_exist"),
    (
        "keeps_the_udp_checksum_of_who_asks_again",
        (("", _CHECKSUM, ""), *_also(_ALL, _CHECKSUM)),
        "again_after_the_end",
    ),
    ("keeps_the_time_to_live_of_who_asks_again", (("", _TTL, ""), *_also(_ALL, _TTL)), "again_after_the_end"),
    ("answers_again_with_a_fragment", _also(_AGAIN, "assign(ipv4.flags, 0x01)"), "again_after_the_end"),
    ("answers_again_with_a_length_of_256", _also(_AGAIN, "assign(ipv4.total_bytes, 0x100)"), "again_after_the_end"),
    ("answers_again_without_the_chunk", _also(_AGAIN, "assign(aggregation.chunk, 0x00)"), "again_after_the_end"),
    ("bitmaps_of_four_bits", (("", _OWN_BIT, _OWN_BIT.replace("0xff", "0x0f")),), "again_before_the_end"),
    ("bitmaps_of_three_bits", (("", _OWN_BIT, _OWN_BIT.replace("0xff", "0x07")),), "again_before_the_end"),
    (
        "strangers_clear_the_other_version",
        _also(_DROP, "register_write(MyIngress.seen, ((aggregation.version & 0x01) ^ 0x01), 0x00)", scope=_STRANGE),
        "who_does_not_exist",
    ),
    (
        "strangers_reset_their_version",
        _also(_DROP, "register_write(MyIngress.arrived, (aggregation.version & 0x01), 0x00)", scope=_STRANGE),
        "who_does_not_exist",
    ),
)
_SLOTS = (
    ("bitmaps_of_three_bits", (("", _OWN_BIT, _OWN_BIT.replace("0xff", "0x07")),), "again_before_the_end"),
    ("bitmaps_of_seven_bits", (("", _OWN_BIT, _OWN_BIT.replace("0xff", "0x7f")),), "again_before_the_end"),
    (
        "seven_workers_at_most",
        (("", f"{_COMPLETE}workers)", "(scalars.count_0 == (scalars.metadata_t.workers & 0x07))"),),
        "one_after_the_other",
    ),
    (
        "reads_before_it_tests_the_slot",
        _also(_JOB, f"register_read(scalars.count_0, MyIngress.arrived, {_COPY})"),
        "no_such_slot",
    ),
    (
        "reads_and_writes_before_it_tests_the_slot",
        _also(
            _JOB,
            f"register_read(scalars.count_0, MyIngress.arrived, {_COPY}); "
            f"register_write(MyIngress.arrived, {_COPY}, scalars.count_0)",
        ),
        "no_such_slot",
    ),
    (
        "unknown_slots_clear_bits",
        _also(_DROP, f"register_write(MyIngress.seen, ({_COPY} & 0x1f), 0x00)", _NO_SLOT),
        "no_such_slot",
    ),
)
_RACKS = (
    (
        "racks_of_seven_at_most",
        (("MyIngress.set_leaf", "below, 0)", "below, (0 & 0x07))"),),
        "unequal_racks",
    ),
    ("seven_racks_at_most", (("MyIngress.set_spine", "below, 0)", "below, (0 & 0x07))"),), "unequal_racks"),
    (
        "drops_padded_frames_at_a_leaf",
        (("", "(d2b values.$valid$)", f"((d2b values.$valid$) and {_NOT_PADDED})"),),
        "leaf_sends_up",
    ),
    (
        "drops_padded_results",
        (("", "(aggregation.kind == 0x02))", f"((aggregation.kind == 0x02) and {_NOT_PADDED}))"),),
        "leaf_hands_down",
    ),
)
_FLOATS = (
    ("sums_of_11_bits", (("", ") & 0xffff)", ") & 0x07ff)"),), "adds"),
    ("sums_of_12_bits", (("", ") & 0xffff)", ") & 0x0fff)"),), "adds"),
    ("sums_of_15_bits", (("", ") & 0xffff)", ") & 0x7fff)"),), "adds"),
    (
        "127_workers_at_most",
        (("", f"{_COMPLETE}workers)", "(scalars.count_0 == (scalars.metadata_t.workers & 0x7f))"),),
        "adds",
    ),
)
_NO_VALUES = "(aggregation.kind != 0x01)"
_ETHERNET = (
    ("drops_padded_frames", (("", _NO_VALUES, f"({_NO_VALUES} or {_PADDED})"),), "sum_of_two"),
    (
        "reads_a_register_by_rank",
        _also(_JOB, "register_read(scalars.count_0, MyIngress.arrived, aggregation.rank)"),
        "sum_of_two",
    ),
)
_BY_LEVEL = zip(LEVELS, (_ETHERNET, _UDP, _LOSS, _SLOTS, _FLOATS, _RACKS), strict=True)
EDITED = tuple(Edited(level, *row) for level, rows in _BY_LEVEL for row in rows)


def write_edited(edited: Edited, folder: Path) -> CompiledProgram:
    """Write an edited solution into a folder. Every edit has to find its text."""
    solution = compiled_solution(LEVELS[edited.level])
    program = json.loads(solution.program.read_text())
    for scope, old, new in edited.edits:
        assert _edit(program, scope, old, new), f"{edited.level}/{edited.name}: no {old!r} in {scope or 'the program'}"
    (folder / "program.json").write_text(json.dumps(program))
    return CompiledProgram(folder / "program.json", solution.p4info)


def _edit(program: Any, scope: str, old: str, new: str) -> int:
    found = 0
    for action in program["actions"]:
        if scope in ("", action["name"]):
            found += _edit_action(action, old, new)
    conditions = [(each, "expression") for pipe in program["pipelines"] for each in pipe["conditionals"] if not scope]
    for holder, key in conditions + [(each, "if_cond") for each in program["checksums"] if each["name"] == scope]:
        if old in (text := shown(holder[key])):
            holder[key], found = _parsed(text.replace(old, new)), found + 1
    return found


def _edit_action(action: Any, old: str, new: str) -> int:
    texts = [shown(each) for each in action["primitives"]]
    found = sum(old in text for text in texts)
    primitives = [
        each if old not in text else _parsed(part)
        for each, text in zip(action["primitives"], texts, strict=True)
        for part in (text.replace(old, new).split("; ") if old in text else [text])
        if part
    ]
    # Jumps in an action count its primitives.
    jumps = any(text.startswith("_jump") for text in texts)
    assert not (jumps and len(primitives) != len(texts)), action["name"]
    action["primitives"] = primitives
    return found


def shown(node: Any) -> str:
    """Return the text of a primitive or an expression of p4c's JSON."""
    if node is None:
        return ""
    if "parameters" in node:
        return f"{node['op']}({', '.join(map(shown, node['parameters']))})"
    if "op" in node:
        return f"({' '.join(filter(None, (shown(node['left']), node['op'], shown(node['right']))))})"
    if node["type"] == "expression":
        return shown(node["value"])
    return ".".join(node["value"]) if node["type"] == "field" else str(node["value"])


def _parsed(text: str) -> Any:
    """Return the JSON of what `shown` wrote."""
    name = re.match(r"\w+(?=\()", text)
    if name is None:
        return _expression(iter(re.findall(r"[()]|[^\s()]+", text)))
    pieces = iter(re.findall(r"[(),]|[^\s(),]+", text[name.end() + 1 : -1]))
    parameters = [_expression(pieces)]
    parameters += [_expression(pieces) for _ in pieces]
    return {"op": name[0], "parameters": parameters}


def _expression(pieces: Iterator[str]) -> Any:
    piece = next(pieces)
    if piece != "(":
        return _leaf(piece)
    parts: list[Any] = []
    while (piece := next(pieces)) != ")":
        parts.append(_expression(chain([piece], pieces)))
    return _operation(parts)


def _operation(parts: list[Any]) -> Any:
    *left, op, right = parts
    return {"type": "expression", "value": {"op": op["value"], "left": left[0] if left else None, "right": right}}


def _leaf(piece: str) -> Any:
    if piece.startswith("0x"):
        return {"type": "hexstr", "value": piece}
    if piece.isdigit():
        return {"type": "runtime_data", "value": int(piece)}
    if "." not in piece:
        return {"type": "header", "value": piece}
    if piece.startswith("MyIngress."):
        return {"type": "register_array", "value": piece}
    return {"type": "field", "value": piece.split(".", 1)}
