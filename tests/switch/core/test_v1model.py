# SPDX-License-Identifier: Apache-2.0
"""The architecture between the blocks: metadata, replication, drops, and packets that come round."""

from __future__ import annotations

import pytest

from hopsum_switch.engine import Engine, Output
from hopsum_switch.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, ProgramError
from hopsum_switch.interp.v1model import MAX_TURNS
from hopsum_switch.state.copies import CloneStore, PortCopy

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


def test_egress_can_drop_single_copies() -> None:
    builder = multicasting()
    spec = expression("?", hexstr(511), hexstr(0), expression("==", meta("egress_rid"), hexstr(2)))
    builder.egress_primitives.append(assign(meta("egress_spec"), spec))
    engine = builder.engine()
    engine.multicast.insert(9, [PortCopy(1, 1), PortCopy(2, 2), PortCopy(3, 3)])
    assert [output.port for output in engine.process(0, FRAME)] == [1, 3]


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


KEEP, NOTHING = hexstr(1), hexstr(2)  # field lists: scalars.m, and none
COMING_ROUND_FRAME = b"\x00\x00payload"
EXTRA: Json = {"type": "header", "value": "extra"}
H: Json = {"type": "header", "value": "h"}
A, B, M, N = field("h", "a"), field("h", "b"), field("scalars", "m"), field("scalars", "n")


def calling(op: str, *args: Json) -> ProgramBuilder:
    """A builder whose egress writes instance_type and scalars.m into the frame: a = kind, b = m."""
    builder = build()
    builder.data["field_lists"] = [
        {"id": 1, "name": "keep", "elements": [M]},
        {"id": 2, "name": "nothing", "elements": []},
    ]
    builder.primitives += [assign(M, hexstr(0x77)), assign(N, hexstr(0x55)), primitive(op, *args)]
    builder.egress_primitives += [assign(A, meta("instance_type")), assign(B, M)]
    return builder


def only_if(value: Json, *calls: Json, at: int) -> list[Json]:
    """Operations at position `at` of an action that run unless `value` is 0."""
    return [primitive("_jump_if_zero", value, hexstr(at + 1 + len(calls))), *calls]


@pytest.mark.parametrize(("preserved", "m"), [(KEEP, 0x77), (NOTHING, 0)])
def test_an_ingress_clone_is_the_packet_as_received(preserved: Json, m: int) -> None:
    builder = calling("clone_ingress_pkt_to_egress", hexstr(9), preserved)
    builder.primitives += [assign(A, hexstr(0xEE)), primitive("add_header", EXTRA)]
    builder.egress_primitives.append(primitive("add_header", EXTRA))
    builder.egress_primitives.append(assign(field("extra", "x"), expression("+", N, meta("egress_rid"))))
    engine = builder.engine()
    engine.clones.insert(9, [PortCopy(3, 0x20), PortCopy(4, 0x21)])
    extra = [(value).to_bytes(2, "big") for value in (0x20, 0x21, 0x55)]
    assert engine.process(5, COMING_ROUND_FRAME) == [
        Output(3, bytes([1, m]) + extra[0] + b"payload"),
        Output(4, bytes([1, m]) + extra[1] + b"payload"),
        Output(1, bytes([0, 0x77]) + extra[2] + b"payload"),
    ]


@pytest.mark.parametrize("spec", [1, 511])
def test_a_clone_is_made_even_if_the_packet_is_dropped_or_shortened(spec: int) -> None:
    builder = calling("clone_ingress_pkt_to_egress", hexstr(9), NOTHING)
    builder.primitives += [assign(meta("egress_spec"), hexstr(spec)), primitive("truncate", hexstr(3))]
    engine = Engine(builder.load())
    engine.clones.insert(9, [PortCopy(3, 0)])
    clone, *rest = engine.process(5, COMING_ROUND_FRAME)
    assert clone == (3, b"\x01\x00payload")
    assert rest == ([(1, b"\x00\x77p")] if spec == 1 else [])


def test_the_parser_runs_again_for_a_clone_and_its_metadata_does_not_stay() -> None:
    builder = calling("clone_ingress_pkt_to_egress", hexstr(9), NOTHING)
    builder.states[0]["parser_ops"].append({"op": "set", "parameters": [M, hexstr(0x33)]})
    builder.primitives.insert(0, primitive("remove_header", H))
    engine = builder.engine()
    engine.clones.insert(9, [PortCopy(3, 0)])
    assert engine.process(5, COMING_ROUND_FRAME) == [(3, b"\x01\x00payload"), (1, b"payload")]


def test_a_session_cuts_its_copies_and_a_missing_one_makes_none() -> None:
    engine = calling("clone_ingress_pkt_to_egress", hexstr(9), NOTHING).engine()
    assert [output.port for output in engine.process(5, COMING_ROUND_FRAME)] == [1]
    engine.clones.insert(9, [PortCopy(3, 0)], length=4)
    assert engine.process(5, COMING_ROUND_FRAME)[0] == (3, b"\x01\x00pa")


def test_the_last_clone_call_holds_and_the_session_has_15_bits() -> None:
    builder = calling("clone_ingress_pkt_to_egress", hexstr(9), KEEP)
    builder.primitives.append(primitive("clone_ingress_pkt_to_egress", hexstr(0x18005), NOTHING))
    engine = builder.engine()
    engine.clones.insert(9, [PortCopy(9, 0)])
    engine.clones.insert(5, [PortCopy(3, 0)])
    assert [output.port for output in engine.process(5, COMING_ROUND_FRAME)] == [3, 1]


def egress_cloning(preserved: Json) -> ProgramBuilder:
    """Egress adds 1 to `a`, and clones what is no clone."""
    builder = calling("no_op")
    original = expression("-", hexstr(2), meta("instance_type"))
    builder.egress_primitives[:] = [
        assign(A, expression("+", A, hexstr(1))),
        assign(B, M),
        *only_if(original, primitive("clone_egress_pkt_to_egress", hexstr(9), preserved), at=2),
        assign(M, hexstr(0x66)),
    ]
    return builder


@pytest.mark.parametrize(("preserved", "m"), [(KEEP, 0x66), (NOTHING, 0)])
def test_an_egress_clone_is_the_packet_as_egress_left_it(preserved: Json, m: int) -> None:
    engine = egress_cloning(preserved).engine()
    engine.clones.insert(9, [PortCopy(3, 0), PortCopy(4, 1)])
    assert engine.process(5, COMING_ROUND_FRAME) == [
        Output(1, b"\x01\x77payload"),
        Output(3, bytes([2, m]) + b"payload"),
        Output(4, bytes([2, m]) + b"payload"),
    ]


def test_an_egress_clone_of_a_dropped_packet_leaves() -> None:
    builder = egress_cloning(NOTHING)
    drop = primitive("mark_to_drop", {"type": "header", "value": "standard_metadata"})
    original = expression("-", hexstr(2), meta("instance_type"))
    builder.egress_primitives += only_if(original, drop, at=len(builder.egress_primitives))
    engine = builder.engine()
    engine.clones.insert(9, [PortCopy(3, 0)])
    assert engine.process(5, COMING_ROUND_FRAME) == [Output(3, b"\x02\x00payload")]


def resubmitting(preserved: Json) -> ProgramBuilder:
    """Ingress counts rounds in scalars.m; a packet from a port is resubmitted, whatever else it asks for."""
    builder = build()
    builder.data["field_lists"] = calling("no_op").data["field_lists"]
    first = expression("-", hexstr(6), meta("instance_type"))
    again = [primitive("resubmit", preserved), assign(meta("mcast_grp"), hexstr(8)), assign(N, hexstr(3))]
    builder.primitives += [
        assign(M, expression("+", M, hexstr(1))),
        assign(A, expression("+", A, hexstr(1))),
        assign(B, expression("+", M, expression("<<", meta("ingress_port"), hexstr(4)))),
        primitive("add_header", EXTRA),
        assign(field("extra", "x"), expression("+", meta("packet_length"), expression("<<", N, hexstr(8)))),
        *only_if(first, *again, at=5),
    ]
    return builder


@pytest.mark.parametrize(("preserved", "rounds"), [(KEEP, 2), (NOTHING, 1)])
def test_resubmit_starts_again_with_the_frame_as_received(preserved: Json, rounds: int) -> None:
    engine = resubmitting(preserved).engine()
    engine.multicast.insert(8, [PortCopy(6, 0)])
    # a: counted once, since the first round's change is undone; b: rounds by metadata, ingress port 0
    assert engine.process(5, COMING_ROUND_FRAME) == [
        Output(1, bytes([1, rounds, 0, len(COMING_ROUND_FRAME)]) + b"payload")
    ]


def recirculating() -> ProgramBuilder:
    """Egress lengthens a packet and lets it come round once; scalars.m, which is preserved, tells the rounds apart."""
    builder = build()
    builder.data["field_lists"] = calling("no_op").data["field_lists"]
    builder.primitives += [assign(B, expression("+", meta("packet_length"), expression("<<", M, hexstr(4))))]
    builder.egress_primitives += [
        *only_if(
            expression("-", hexstr(3), M),
            assign(M, hexstr(3)),
            assign(A, hexstr(0x44)),
            primitive("add_header", EXTRA),
            assign(field("extra", "x"), hexstr(0x0909)),
            primitive("truncate", hexstr(2)),
            primitive("recirculate", KEEP),
            at=0,
        )
    ]
    return builder


def test_recirculate_starts_again_with_the_frame_as_emitted_but_not_cut() -> None:
    (output,) = recirculating().engine().process(5, COMING_ROUND_FRAME)
    assert output == (1, bytes([0x44, len(COMING_ROUND_FRAME) + 2 + 0x30]) + b"\x09\x09payload")


def test_a_dropped_packet_does_not_come_round() -> None:
    builder = recirculating()
    drop = primitive("mark_to_drop", {"type": "header", "value": "standard_metadata"})
    builder.egress_primitives.append(drop)
    engine = builder.engine()
    assert engine.process(5, COMING_ROUND_FRAME) == []
    assert not engine.dropped


@pytest.mark.parametrize(
    ("where", "call"),
    [
        ("ingress", primitive("resubmit", NOTHING)),
        ("egress", primitive("recirculate", NOTHING)),
        ("egress", primitive("clone_egress_pkt_to_egress", hexstr(9), NOTHING)),
    ],
)
def test_a_packet_that_comes_round_for_ever_is_dropped_and_counted(where: str, call: Json) -> None:
    builder = calling("no_op")
    (builder.primitives if where == "ingress" else builder.egress_primitives).append(call)
    engine = builder.engine()
    engine.clones.insert(9, [PortCopy(3, 0)])
    outputs = engine.process(5, COMING_ROUND_FRAME)
    assert engine.dropped == {"turns": 1}
    assert len(outputs) == (MAX_TURNS + 1 if "clone" in call["op"] else 0)
    assert engine.process(5, COMING_ROUND_FRAME) == outputs, "every frame has its own allowance"


def test_copies_that_all_come_round_share_one_allowance() -> None:
    builder = calling("no_op")
    builder.primitives += [assign(meta("mcast_grp"), hexstr(8)), primitive("no_op")]
    builder.egress_primitives.append(primitive("recirculate", NOTHING))
    engine = builder.engine()
    engine.multicast.insert(8, [PortCopy(port, 0) for port in range(4)])
    assert engine.process(5, COMING_ROUND_FRAME) == []
    assert engine.dropped == {"turns": 4 * (MAX_TURNS + 1) - MAX_TURNS}


@pytest.mark.parametrize(
    ("op", "args"),
    [("resubmit", [hexstr(7)]), ("recirculate", [A]), ("clone_ingress_pkt_to_egress", [hexstr(1), hexstr(7)])],
)
def test_field_lists_must_exist(op: str, args: list[Json]) -> None:
    with pytest.raises(ProgramError, match=r"unknown field list 7|a field list is not a constant"):
        calling(op, *args).load()


def test_sessions_are_checked() -> None:
    store = CloneStore()
    store.insert(1, [PortCopy(1, 0)], length=64)
    with pytest.raises(AlreadyExistsError, match="clone session 1 exists"):
        store.insert(1, [])
    for session, replicas, length in [(0, [], 0), (2**15, [], 0), (2, [PortCopy(1, 0)] * 2, 0), (2, [], -1)]:
        with pytest.raises(InvalidArgumentError):
            store.insert(session, replicas, length)
    with pytest.raises(NotFoundError):
        store.modify(2, [])
    with pytest.raises(NotFoundError):
        store.delete(2)
    store.modify(1, [PortCopy(2, 5)])
    assert store.all_by_number() == {1: ((PortCopy(2, 5),), 0)}
    store.delete(1)
    assert store.find(1) is None
