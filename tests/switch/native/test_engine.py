# SPDX-License-Identifier: Apache-2.0
"""The native engine beyond agreement: batches, ports, stores, what it refuses, and the choice of a back end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.engine import Engine
from hopsum_switch.errors import UnsupportedError
from hopsum_switch.native.native_engine import Batch, NativeEngine, Outputs
from hopsum_switch.native.only_interpreted import UNSUPPORTED
from hopsum_switch.state.cells import PacketByteCount
from hopsum_switch.state.copies import PortCopy

from ..core.builder import Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive
from .agreement import Pair

pytestmark = pytest.mark.system
GROUP = field("standard_metadata", "mcast_grp")
SPEC = field("standard_metadata", "egress_spec")
MESSAGE = ({"type": "string", "value": "here"}, {"type": "parameters_vector", "value": []})
METER = {"type": "meter_array", "value": "meter"}
ARRAYS = {"c": {"type": "counter_array", "value": "c"}, "r": {"type": "register_array", "value": "r"}}


def builder_of(*primitives: Json, fields: tuple[Any, ...] = (("a", 8), ("b", 8))) -> ProgramBuilder:
    builder = build(*fields)
    builder.primitives += primitives
    builder.data["field_lists"] = [{"id": 1, "name": "list", "elements": []}]
    meter = {"name": "meter", "id": 0, "type": "packets", "rate_count": 2, "size": 4, "is_direct": False}
    builder.data["meter_arrays"] = [meter]
    return builder


def test_a_batch_stops_where_the_outputs_may_not_fit_and_goes_on() -> None:
    engine = NativeEngine(builder_of(assign(GROUP, field("h", "a"))).load())
    engine.multicast.insert(1, [PortCopy(port, port) for port in range(3)])
    batch, outputs = Batch.of([0] * 5, [b"\x01\x02payload"] * 5), Outputs(7, 1000)
    assert engine.process_batch(batch, outputs) == 2
    assert outputs.sources[: outputs.count].tolist() == [0, 0, 0, 1, 1, 1]
    assert engine.process_batch(batch, outputs, first=2) == 4
    assert [output.port for output in outputs.frames()] == [0, 1, 2] * 2
    with pytest.raises(ValueError, match="3 copies, but the buffers hold 2 outputs"):
        engine.process_batch(batch, Outputs(2, 1000))


@pytest.mark.parametrize(
    ("offsets", "lengths", "message"),
    [([0, 5], [5, 6], "outside"), ([2**64 - 1, 0], [2, 1], "outside"), ([0], [1], "parallel")],
)
def test_batches_that_lie_outside_their_buffer_are_refused(
    offsets: list[int], lengths: list[int], message: str
) -> None:
    arrays = [np.array(values, np.uint64) for values in ([1, 1], offsets, lengths)]
    with pytest.raises(ValueError, match=message):
        Batch(np.zeros(10, np.uint8), *arrays)


def test_an_empty_batch_does_nothing() -> None:
    engine = NativeEngine(builder_of().load())
    outputs = Outputs(1, 100)
    assert engine.process_batch(Batch.of([], []), outputs) == 0
    assert outputs.frames() == []


def test_frames_for_ports_that_do_not_exist_are_discarded() -> None:
    pair = Pair(builder_of(assign(SPEC, field("h", "a"))).load(), ports=[1, 200])
    for port in (0, 1, 2, 199, 200, 255):
        assert len(pair.process(7, bytes([port, 0]))) == (port in (1, 200))


def test_stores_and_machine_code_share_their_state() -> None:
    count = primitive("count", ARRAYS["c"], field("h", "a"))
    read = primitive("register_read", field("h", "b"), ARRAYS["r"], field("h", "a"))
    write = primitive("register_write", ARRAYS["r"], hexstr(3), field("h", "a"))
    pair = Pair(builder_of(count, read, write, assign(SPEC, hexstr(1))).load())
    pair.both(lambda engine: engine.registers.write("r", 2, 0x45))
    pair.both(lambda engine: engine.counters.write("c", 2, PacketByteCount(7, 2**40)))
    assert [output.frame for output in pair.process(0, b"\x02\0")] == [b"\x02\x45"]
    assert pair.native.counters.read("c", 2) == (8, 2**40 + 2)
    assert pair.native.registers.read("r", 3) == 2
    assert pair.process(0, b"\x09\x07")[0].frame == b"\x09\x07", "an index outside reads nothing"
    assert pair.native.faults == {"index_out_of_range": 2}, "the counter's and the register's"
    pair.same_state()
    pair.both(lambda engine: engine.reset_state())
    assert pair.native.registers.read_all("r") == [0] * 4
    pair.same_state()


@pytest.mark.parametrize(
    ("construct", "fields", "operations"),
    [
        ("clone", (("a", 8),), [primitive("clone_ingress_pkt_to_egress", hexstr(1), hexstr(1))]),
        ("log message", (("a", 8),), [primitive("log_msg", *MESSAGE)]),
        ("meter", (("a", 8),), [primitive("execute_meter", METER, hexstr(1), field("h", "a"))]),
        ("recirculate", (("a", 8),), [primitive("recirculate", hexstr(1))]),
        ("resubmit", (("a", 8),), [primitive("resubmit", hexstr(1))]),
        ("big product", (("w", 512),), [assign(field("h", "w"), expression("*", field("h", "w"), field("h", "w")))]),
        ("big quotient", (("w", 128),), [assign(field("h", "w"), expression("/", field("h", "w"), hexstr(3)))]),
        ("signed length", (("a", 8, True),), [primitive("truncate", field("h", "a"))]),
    ],
)
def test_what_is_refused_is_named_and_interpreted_only_when_asked(
    construct: str, fields: tuple[Any, ...], operations: list[Json], caplog: pytest.LogCaptureFixture
) -> None:
    program = builder_of(*operations, fields=fields).load()
    with pytest.raises(UnsupportedError, match=f"not compiled: {construct}: ") as caught:
        NativeEngine(program)
    assert UNSUPPORTED[construct] in str(caught.value)
    with pytest.raises(UnsupportedError):
        engine_maker(Backend.NATIVE)(program)
    assert type(engine_maker(Backend.AUTO)(program)) is Engine
    assert construct in caplog.text
    assert type(engine_maker(Backend.INTERPRETER)(program)) is Engine


def test_auto_compiles_what_it_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = builder_of(assign(SPEC, hexstr(1))).load()
    assert isinstance(engine_maker(Backend.AUTO)(program), NativeEngine)
    assert len(list((tmp_path / "hopsum-switch").glob("*.o"))) == 1
