# SPDX-License-Identifier: Apache-2.0
"""Operations of actions by the frames and the state that they leave, and that state as the control plane sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, ProgramError, TableError
from hopsum_switch.state.cells import PacketByteCount
from hopsum_switch.state.copies import MAX_GROUP_ID, MulticastStore, PortCopy

from .builder import Json, assign, build, expression, field, hexstr, primitive

FRAME = b"\x03\x04payload"
REGISTER = {"type": "register_array", "value": "r"}
COUNTER = {"type": "counter_array", "value": "c"}


def header(name: str) -> Json:
    return {"type": "header", "value": name}


def test_registers_keep_what_fits_and_ignore_foreign_indices() -> None:
    builder = build(("a", 8), ("b", 8))
    builder.primitives += [
        primitive("register_write", REGISTER, field("h", "a"), hexstr(0x1FFF)),
        primitive("register_read", field("h", "b"), REGISTER, field("h", "a")),
    ]
    engine = builder.engine()
    assert engine.process(0, b"\x03\x04")[0].frame == b"\x03\xff"
    assert engine.registers.read_all("r") == [0, 0, 0, 0xFFF]
    assert engine.process(0, b"\x04\x04")[0].frame == b"\x04\x04"
    assert engine.registers.read_all("r") == [0, 0, 0, 0xFFF]


def test_counters_count_frames_and_received_bytes_and_ignore_foreign_indices() -> None:
    builder = build()
    builder.primitives += [
        primitive("truncate", hexstr(1)),
        primitive("add_header", header("extra")),
        primitive("count", COUNTER, field("h", "a")),
    ]
    engine = builder.engine()
    for frame in (FRAME, FRAME + b"!", b"\x04\x04", b"\xff\xff"):
        engine.process(0, frame)
    assert engine.counters.read_all("c") == [(0, 0), (0, 0), (0, 0), PacketByteCount(2, 2 * len(FRAME) + 1)]


def test_add_header_zeroes_once_and_moves_the_packet_length() -> None:
    builder = build()
    builder.primitives += [
        assign(field("extra", "x"), hexstr(0x1111)),
        primitive("add_header", header("extra")),
        assign(field("extra", "x"), expression("+", field("extra", "x"), hexstr(0x2222))),
        primitive("add_header", header("extra")),
    ]
    builder.egress_primitives.append(assign(field("h", "b"), field("standard_metadata", "packet_length")))
    assert builder.run(FRAME) == bytes([3, len(FRAME) + 2]) + b"\x22\x22" + b"payload"


def test_remove_header_hides_it_and_keeps_its_fields() -> None:
    builder = build()
    builder.primitives += [
        primitive("add_header", header("extra")),
        primitive("remove_header", header("h")),
        primitive("remove_header", header("h")),
        assign(field("extra", "x"), field("h", "a")),
    ]
    builder.egress_primitives.append(
        assign(
            field("extra", "x"),
            expression(
                "+", field("extra", "x"), expression("<<", field("standard_metadata", "packet_length"), hexstr(8))
            ),
        )
    )
    assert builder.run(FRAME) == bytes([len(FRAME), 3]) + b"payload"


def test_assign_header_copies_validity_and_fields() -> None:
    builder = build()
    builder.primitives += [primitive("assign_header", header("g"), header("h")), assign(field("g", "a"), hexstr(9))]
    assert builder.run(FRAME) == b"\x03\x04" + b"\x09\x04" + b"payload"
    builder.primitives.insert(0, primitive("remove_header", header("h")))
    assert builder.run(FRAME) == b"payload"


def test_assign_header_refuses_mixed_types() -> None:
    builder = build()
    builder.primitives.append(primitive("assign_header", header("extra"), header("h")))
    with pytest.raises(ProgramError, match=r"extra = h mixes header types at test.p4\(42\): the construct"):
        builder.load()


def test_mark_to_drop_beats_an_earlier_port_and_group() -> None:
    builder = build()
    builder.primitives += [
        assign(field("standard_metadata", "egress_spec"), hexstr(3)),
        assign(field("standard_metadata", "mcast_grp"), hexstr(7)),
    ]
    engine = Engine(builder.load())
    engine.multicast.insert(7, [PortCopy(1, 1)])
    assert [output.port for output in engine.process(0, FRAME)] == [1]
    builder.primitives.append(primitive("mark_to_drop", header("standard_metadata")))
    engine = Engine(builder.load())
    engine.multicast.insert(7, [PortCopy(1, 1)])
    assert engine.process(0, FRAME) == []


def test_exit_ends_ingress_after_the_action_but_not_egress() -> None:
    builder = build()
    second = builder.table("tbl_second", 2, "late")
    late = [assign(field("h", "a"), hexstr(0xEE))]
    builder.data["actions"].append({"name": "late", "id": 2, "runtime_data": [], "primitives": late})
    builder.ingress["tables"].append(second)
    builder.ingress["tables"][0]["next_tables"] = {"act": "tbl_second"}
    builder.egress_primitives.append(assign(field("h", "b"), hexstr(0x11)))
    assert builder.run(FRAME) == b"\xee\x11payload"
    builder.primitives.insert(0, primitive("exit"))
    assert builder.run(FRAME) == b"\x03\x11payload"


def test_truncate_keeps_the_smallest_cut() -> None:
    builder = build()
    builder.primitives += [primitive("truncate", hexstr(5)), primitive("truncate", hexstr(2**80))]
    assert builder.run(FRAME) == FRAME[:5]
    builder.egress_primitives.append(primitive("truncate", hexstr(0)))
    assert builder.run(FRAME) == b""


@pytest.mark.parametrize(("low", "high"), [(3, 3), (0, 255), (250, 5)])
def test_random_stays_in_range_and_repeats_with_the_seed(low: int, high: int) -> None:
    def draw(seed: int) -> list[int]:
        builder = build()
        builder.primitives.append(primitive("modify_field_rng_uniform", field("h", "a"), hexstr(low), hexstr(high)))
        engine = builder.engine(seed=seed)
        return [engine.process(0, b"\x80\x00")[0].frame[0] for _ in range(20)]

    numbers = draw(seed=1)
    assert numbers == draw(seed=1)
    assert all(low <= n <= high for n in numbers) if low <= high else set(numbers) == {0x80}
    assert low != 0 or numbers != draw(seed=2)


@pytest.mark.parametrize(
    ("size", "expected"), [(10, 100 + 0x0304 % 10), (0, 100), (1, 100), (2**20, (100 + 0x0304) % 2**16)]
)
def test_hash_offset(size: int, expected: int) -> None:
    builder = build(("a", 16))
    builder.data["calculations"].append(
        {"name": "calc", "id": 0, "algo": "identity", "input": [{"type": "field", "value": ["h", "a"]}]}
    )
    builder.primitives.append(
        primitive(
            "modify_field_with_hash_based_offset",
            field("h", "a"),
            hexstr(100),
            {"type": "calculation", "value": "calc"},
            hexstr(size),
        )
    )
    assert builder.run(b"\x03\x04") == expected.to_bytes(2, "big")


def test_jumps_forward_backward_and_to_the_end() -> None:
    """b = sum of 1..a, by a loop; then skip what would spoil it."""
    builder = build()
    one = hexstr(1)
    builder.primitives += [
        assign(field("h", "b"), hexstr(0)),
        primitive("_jump_if_zero", field("h", "a"), hexstr(5)),
        assign(field("h", "b"), expression("+", field("h", "b"), field("h", "a"))),
        assign(field("h", "a"), expression("-", field("h", "a"), one)),
        primitive("_jump", hexstr(1)),
        assign(field("standard_metadata", "egress_spec"), one),
        primitive("_jump", hexstr(8)),
        assign(field("h", "b"), hexstr(0xEE)),
    ]
    engine_program = builder.load()
    for start, total in [(0, 0), (1, 1), (6, 21)]:
        assert Engine(engine_program).process(0, bytes([start, 9]))[0].frame == bytes([0, total])


@pytest.mark.parametrize("target", [9, -1])
def test_jumps_outside_the_action_are_refused(target: int) -> None:
    builder = build()
    builder.primitives.append(primitive("_jump", hexstr(target)))
    with pytest.raises(ProgramError, match=f"action act jumps to {target} of 1 operations"):
        builder.load()


def test_writes_to_an_invalid_header_stay_with_the_packet_unseen() -> None:
    builder = build()
    builder.primitives += [
        assign(field("extra", "x"), hexstr(0xABCD)),
        assign(field("h", "a"), expression(">>", field("extra", "x"), hexstr(8))),
    ]
    assert builder.run(FRAME) == b"\xab\x04payload"


def test_log_messages_go_to_the_log_of_programs(caplog: pytest.LogCaptureFixture) -> None:
    def message(text: str, *values: Json) -> Json:
        vector = {"type": "parameters_vector", "value": list(values)}
        return primitive("log_msg", {"type": "string", "value": text}, vector)

    builder = build()
    done = message("done")
    done["parameters"][1]["value"] = {}  # as the compiler writes no values
    builder.primitives += [message("a={} of {} is 100%", field("h", "a"), hexstr(7)), done]
    with caplog.at_level("INFO", logger="hopsum_switch.program"):
        assert builder.run(FRAME) == FRAME
    assert caplog.messages == ["a=3 of 7 is 100%", "done"]
    builder.primitives.append(message("{}"))
    with pytest.raises(ProgramError, match="1 places for 0 values"):
        builder.load()


@pytest.fixture
def engine() -> Engine:
    return build().engine()


def test_counters_are_read_and_written(engine: Engine) -> None:
    engine.counters.write("c", 2, PacketByteCount(5, 600))
    assert engine.counters.read("c", 2) == (5, 600)
    assert engine.counters.read_all("c") == [(0, 0), (0, 0), (5, 600), (0, 0)]


def test_registers_are_read_and_written(engine: Engine) -> None:
    engine.registers.write("r", 1, 4095)
    assert engine.registers.read_all("r") == [0, 4095, 0, 0]


ZERO = PacketByteCount(0, 0)

REFUSED: list[tuple[Callable[[Engine], object], type[TableError], str]] = [
    (lambda e: e.counters.read("x", 0), NotFoundError, "no indexed counter 'x'"),
    (lambda e: e.counters.read("c", 4), InvalidArgumentError, "index 4 is outside 0..3"),
    (lambda e: e.counters.write("c", -1, ZERO), InvalidArgumentError, "index -1"),
    (lambda e: e.counters.write("c", 0, PacketByteCount(-1, 0)), InvalidArgumentError, "cannot be negative"),
    (lambda e: e.counters.read_direct("tbl_in", 1), InvalidArgumentError, "has no direct counter"),
    (lambda e: e.counters.write_direct("nowhere", 1, ZERO), NotFoundError, "no table"),
    (lambda e: e.registers.read("x", 0), NotFoundError, "no register 'x'"),
    (lambda e: e.registers.write("r", 4, 0), InvalidArgumentError, "index 4"),
    (lambda e: e.registers.write("r", 0, 4096), InvalidArgumentError, "4096 is not a value of 12 bits"),
]


@pytest.mark.parametrize(("access", "error", "message"), REFUSED)
def test_refusals(engine: Engine, access: Callable[[Engine], object], error: type[TableError], message: str) -> None:
    with pytest.raises(error, match=message):
        access(engine)


def test_groups_are_inserted_modified_and_deleted() -> None:
    store = MulticastStore()
    store.insert(5, [PortCopy(1, 0)])
    store.modify(5, [PortCopy(2, 0), PortCopy(2, 1)])
    assert store.get(5) == ((2, 0), (2, 1))
    assert store.all_by_number() == {5: ((2, 0), (2, 1))}
    store.delete(5)
    assert store.replicas(5) == ()


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda s: s.insert(1, [PortCopy(1, 0)]), AlreadyExistsError),
        (lambda s: s.insert(0, []), InvalidArgumentError),
        (lambda s: s.insert(MAX_GROUP_ID + 1, []), InvalidArgumentError),
        (lambda s: s.insert(2, [PortCopy(1, 0), PortCopy(1, 0)]), InvalidArgumentError),
        (lambda s: s.insert(2, [PortCopy(-1, 0)]), InvalidArgumentError),
        (lambda s: s.modify(1, [PortCopy(1, 2**16)]), InvalidArgumentError),
        (lambda s: s.modify(3, []), NotFoundError),
        (lambda s: s.delete(3), NotFoundError),
        (lambda s: s.get(3), NotFoundError),
    ],
)
def test_refused_group_writes_change_nothing(write: Callable[[MulticastStore], None], error: type[TableError]) -> None:
    store = MulticastStore()
    store.insert(1, [PortCopy(4, 4)])
    with pytest.raises(error):
        write(store)
    assert store.all_by_number() == {1: ((4, 4),)}
