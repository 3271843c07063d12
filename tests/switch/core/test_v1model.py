# SPDX-License-Identifier: Apache-2.0
"""The architecture between the blocks: metadata, replication, drops."""

from __future__ import annotations

import pytest

from hopsum_switch.engine import Engine, Output
from hopsum_switch.state.copies import PortCopy

from .builder import Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive

FRAME = b"\x03\x04payload"
HEADER_H: Json = {"type": "header", "value": "h"}
HEADER_EXTRA: Json = {"type": "header", "value": "extra"}


def meta(name: str) -> Json:
    return field("standard_metadata", name)


def multicasting() -> ProgramBuilder:
    builder = build(("a", 8), ("b", 8))
    builder.primitives.append(assign(meta("mcast_grp"), hexstr(9)))
    return builder


@pytest.mark.parametrize(
    ("name", "in_ingress", "in_egress"),
    [
        ("ingress_port", 5, 5),
        ("packet_length", len(FRAME), len(FRAME) + 2),
        ("instance_type", 0, 0),
        ("egress_port", 0, 1),
        ("egress_spec", 0, 512 % 2**9),
        ("ingress_global_timestamp", 1234, 1234),
        ("egress_global_timestamp", 0, 1234),
        ("enq_timestamp", 0, 1234),
        ("enq_qdepth", 0, 0),
        ("deq_timedelta", 0, 0),
        ("parser_error", 0, 0),
        ("checksum_error", 0, 0),
        ("egress_rid", 0, 0),
    ],
)
def test_metadata_of_a_unicast_packet(name: str, in_ingress: int, in_egress: int) -> None:
    builder = build(("a", 8), ("b", 8))
    builder.primitives += [
        assign(field("scalars", "m"), meta(name)),
        primitive("add_header", HEADER_EXTRA),
        assign(field("extra", "x"), field("scalars", "m")),
    ]
    frame = builder.engine().process(5, FRAME, now_us=1234)[0].frame
    assert int.from_bytes(frame[2:4], "big") == in_ingress
    builder.egress_primitives.append(assign(field("extra", "x"), meta(name)))
    frame = Engine(builder.load()).process(5, FRAME, now_us=1234)[0].frame
    assert int.from_bytes(frame[2:4], "big") == in_egress


def test_numbers_wider_than_their_field_are_cut() -> None:
    builder = build(("a", 64))
    builder.primitives.append(assign(field("h", "a"), meta("ingress_global_timestamp")))
    frame = builder.engine().process(0x3FF, bytes(8), now_us=2**48 + 77)[0].frame
    assert int.from_bytes(frame, "big") == 77


def test_multicast_makes_one_copy_per_replica_in_order() -> None:
    builder = multicasting()
    builder.egress_primitives += [
        assign(field("h", "a"), meta("egress_rid")),
        assign(
            field("h", "b"), expression("+", meta("egress_port"), expression("<<", meta("instance_type"), hexstr(4)))
        ),
    ]
    engine = builder.engine()
    engine.multicast.insert(9, [PortCopy(7, 0xA1), PortCopy(2, 0xA2), PortCopy(7, 0xA3)])
    assert engine.process(2, FRAME) == [
        Output(7, b"\xa1\x57payload"),
        Output(2, b"\xa2\x52payload"),
        Output(7, b"\xa3\x57payload"),
    ]


def test_copies_do_not_see_each_others_changes() -> None:
    builder = multicasting()
    builder.egress_primitives.append(assign(field("h", "a"), expression("+", field("h", "a"), hexstr(1))))
    engine = builder.engine()
    engine.multicast.insert(9, [PortCopy(1, 0), PortCopy(2, 0)])
    assert {output.frame for output in engine.process(0, FRAME)} == {b"\x04\x04payload"}


@pytest.mark.parametrize("replicas", [None, []])
def test_an_unknown_or_empty_group_drops(replicas: list[PortCopy] | None) -> None:
    engine = multicasting().engine()
    if replicas is not None:
        engine.multicast.insert(9, replicas)
    assert engine.process(0, FRAME) == []


def test_a_group_beats_the_drop_port() -> None:
    builder = multicasting()
    builder.primitives.append(assign(meta("egress_spec"), hexstr(511)))
    engine = Engine(builder.load())
    engine.multicast.insert(9, [PortCopy(3, 0)])
    assert [output.port for output in engine.process(0, FRAME)] == [3]


def test_truncation_in_ingress_goes_with_unicast_but_not_with_copies() -> None:
    builder = build()
    builder.primitives.append(primitive("truncate", hexstr(4)))
    assert builder.run(FRAME) == FRAME[:4]
    builder.primitives.insert(0, assign(meta("mcast_grp"), hexstr(9)))
    engine = Engine(builder.load())
    engine.multicast.insert(9, [PortCopy(1, 0)])
    assert engine.process(0, FRAME) == [(1, FRAME)]


def test_fields_of_invalid_headers_are_zero_in_copies() -> None:
    builder = multicasting()
    builder.primitives += [assign(field("extra", "x"), hexstr(0x77)), primitive("remove_header", HEADER_H)]
    builder.egress_primitives += [
        assign(field("scalars", "m"), expression("+", field("extra", "x"), field("h", "a"))),
        primitive("add_header", HEADER_EXTRA),
        assign(field("extra", "x"), field("scalars", "m")),
    ]
    engine = builder.engine()
    engine.multicast.insert(9, [PortCopy(1, 0)])
    assert engine.process(0, FRAME) == [(1, b"\0\0payload")]


@pytest.mark.parametrize(("where", "outputs"), [("ingress", []), ("egress", []), ("nowhere", [(1, FRAME)])])
def test_the_drop_port_drops_in_both_controls(where: str, outputs: list[Output]) -> None:
    builder = build()
    engine = builder.engine()
    drop = primitive("mark_to_drop", {"type": "header", "value": "standard_metadata"})
    if where == "ingress":
        builder.primitives.append(drop)
    elif where == "egress":
        builder.egress_primitives.append(drop)
    engine = Engine(builder.load())
    assert engine.process(0, FRAME) == outputs


def test_egress_can_drop_single_copies() -> None:
    builder = multicasting()
    spec = expression("?", hexstr(511), hexstr(0), expression("==", meta("egress_rid"), hexstr(2)))
    builder.egress_primitives.append(assign(meta("egress_spec"), spec))
    engine = builder.engine()
    engine.multicast.insert(9, [PortCopy(1, 1), PortCopy(2, 2), PortCopy(3, 3)])
    assert [output.port for output in engine.process(0, FRAME)] == [1, 3]


def test_another_priority_than_zero_drops() -> None:
    builder = build()
    builder.primitives.append(assign(meta("priority"), hexstr(1)))
    assert builder.engine().process(0, FRAME) == []


def test_ports_that_do_not_exist_get_nothing() -> None:
    builder = multicasting()
    engine = builder.engine(ports=[1, 3])
    engine.multicast.insert(9, [PortCopy(1, 0), PortCopy(2, 0), PortCopy(3, 0)])
    assert [output.port for output in engine.process(0, FRAME)] == [1, 3]


def test_packets_do_not_leak_into_each_other() -> None:
    builder = build()
    builder.primitives.append(assign(field("scalars", "m"), expression("+", field("scalars", "m"), hexstr(1))))
    builder.primitives.append(assign(field("h", "a"), field("scalars", "m")))
    engine = builder.engine()
    assert [engine.process(0, FRAME)[0].frame[0] for _ in range(3)] == [1, 1, 1]


def test_a_condition_and_an_action_call_as_nodes() -> None:
    builder = build()
    pipeline = builder.ingress
    pipeline["conditionals"] = [
        {
            "name": "node_if",
            "id": 0,
            "expression": expression(">", field("h", "a"), hexstr(9)),
            "true_next": "node_call",
            "false_next": "tbl_in",
        }
    ]
    pipeline["action_calls"] = [{"name": "node_call", "id": 0, "action_id": 2, "next_node": "tbl_in"}]
    pipeline["init_table"] = "node_if"
    big = [assign(field("h", "b"), hexstr(0xBB))]
    builder.data["actions"].append({"name": "big", "id": 2, "runtime_data": [], "primitives": big})
    assert builder.run(b"\x0a\x00") == b"\x0a\xbb"
    assert builder.run(b"\x09\x00") == b"\x09\x00"


def test_empty_controls_send_to_port_zero() -> None:
    builder = build()
    builder.ingress["init_table"] = None
    assert Engine(builder.load()).process(4, FRAME) == [(0, FRAME)]
