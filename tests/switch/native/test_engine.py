# SPDX-License-Identifier: Apache-2.0
"""The native engine beyond agreement: batches, ports, stores, refusals, back ends, random(), and the code cache."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.engine import Engine
from hopsum_switch.errors import UnsupportedError
from hopsum_switch.native import compiler
from hopsum_switch.native.compiler import CodeCache, default_cache
from hopsum_switch.native.native_engine import Batch, NativeEngine, Outputs
from hopsum_switch.native.only_interpreted import UNSUPPORTED
from hopsum_switch.program import ProgramIR
from hopsum_switch.state.cells import PacketByteCount
from hopsum_switch.state.copies import PortCopy
from hopsum_switch.state.randomness import RandomStream

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


def test_a_batch_stops_where_the_outputs_may_not_fit_and_continues() -> None:
    engine = NativeEngine(builder_of(assign(GROUP, field("h", "a"))).load())
    engine.multicast.insert(1, [PortCopy(port, port) for port in range(3)])
    batch, outputs = Batch.from_frames([0] * 5, [b"\x01\x02payload"] * 5), Outputs(7, 1000)
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
    assert engine.process_batch(Batch.from_frames([], []), outputs) == 0
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


TOP = 2**64 - 1


def test_the_stream_is_splitmix64() -> None:
    stream = RandomStream(1234567)  # test vector of the generator's public reference implementation
    assert [stream.draw(0, TOP) for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("span", [0, 1, 2, 5, 6, 99, 255])
def test_every_value_is_equally_likely(span: int) -> None:
    stream, draws = RandomStream(7), 2000 * (span + 1)
    counts = Counter(stream.draw(1000, 1000 + span) for _ in range(draws))
    assert set(counts) == set(range(1000, 1001 + span))
    # Six standard deviations of a binomial with mean 2000.
    assert all(abs(count - 2000) < 6 * 2000**0.5 for count in counts.values())


def loss_program() -> ProgramIR:
    """The frame's words are the bounds of two draws; a third draw drops a quarter of the frames."""
    builder = build(("low", 64), ("high", 64), ("small", 8), ("wide", 72), ("signed", 16, True))
    draw = "modify_field_rng_uniform"
    builder.primitives += [
        primitive(draw, field("h", "small"), field("h", "low"), field("h", "high")),
        primitive(draw, field("h", "wide"), field("h", "low"), field("h", "high")),
        primitive(draw, field("h", "signed"), hexstr(2**14), hexstr(2**15 + 9)),
        primitive(draw, field("scalars", "m"), hexstr(1), hexstr(4)),
        primitive(draw, field("scalars", "n"), hexstr(0), hexstr(2**80)),
        assign(SPEC, hexstr(511)),
        primitive("_jump_if_zero", expression("-", field("scalars", "m"), hexstr(4)), hexstr(8)),
        assign(SPEC, hexstr(1)),
    ]
    builder.egress_primitives.append(primitive(draw, field("h", "low"), hexstr(0), hexstr(TOP)))
    return builder.load()


def test_both_back_ends_draw_the_same_numbers() -> None:
    rng = random.Random(5)
    bounds = [0, 1, 2, 3, 5, 127, 128, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**63 + 1, TOP - 1, TOP]

    def frame() -> bytes:
        low, high = rng.choice(bounds), rng.choice(bounds)
        return low.to_bytes(8, "big") + high.to_bytes(8, "big") + rng.randbytes(12)

    program = loss_program()
    for seed in (0, 1, TOP):
        pair = Pair(program, seed=seed)
        sent = sum(len(pair.process(0, frame())) for _ in range(600))
        assert 0 < sent < 600
        pair.process_batch([(0, frame()) for _ in range(600)])


@pytest.mark.parametrize("backend", list(Backend))
def test_the_seed_reaches_the_engine(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = loss_program()
    frame = bytes(8) + TOP.to_bytes(8, "big") + bytes(12)
    runs = []
    for seed in (3, 3, 4):
        engine = engine_maker(backend, seed=seed)(program)
        runs.append([engine.process(0, frame) for _ in range(10)])
    assert runs[0] == runs[1] != runs[2]


KEY = ("program", "processor")


@pytest.fixture
def cache(tmp_path: Path) -> CodeCache:
    return CodeCache(tmp_path / "folder")


def only_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "folder").iterdir()
    return path


def test_what_is_saved_is_found_under_its_key_only(cache: CodeCache, tmp_path: Path) -> None:
    assert cache.load(KEY) is None
    cache.save(KEY, b"code")
    assert cache.load(KEY) == b"code"
    assert cache.load(("program", "another processor")) is None
    assert cache.load(("programprocessor", "")) is None
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700
    assert only_file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_damaged_files_are_ignored(cache: CodeCache, tmp_path: Path) -> None:
    cache.save(KEY, b"code")
    content = only_file(tmp_path).read_bytes()
    for damaged in (b"", content[:-1], content[:20], content[:-1] + b"x", b"y" + content[1:], content + b"z"):
        only_file(tmp_path).write_bytes(damaged)
        assert cache.load(KEY) is None, damaged
    cache.save(KEY, b"code")
    assert cache.load(KEY) == b"code"


def test_what_others_can_write_is_ignored(cache: CodeCache, tmp_path: Path) -> None:
    cache.save(KEY, b"code")
    only_file(tmp_path).chmod(0o666)
    assert cache.load(KEY) is None
    only_file(tmp_path).chmod(0o600)
    (tmp_path / "folder").chmod(0o777)
    assert cache.load(KEY) is None
    cache.save(("another", "key"), b"code")
    assert len(list((tmp_path / "folder").iterdir())) == 1, "nothing is put into such a folder"


def test_links_are_not_followed(cache: CodeCache, tmp_path: Path) -> None:
    cache.save(KEY, b"code")
    path = only_file(tmp_path)
    os.rename(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.load(KEY) is None


def test_a_folder_that_cannot_be_made_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = CodeCache(tmp_path / "file" / "folder")
    cache.save(KEY, b"code")
    assert cache.load(KEY) is None


def test_a_cached_program_is_not_compiled_again(cache: CodeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = build()
    builder.primitives.append(assign(field("standard_metadata", "egress_spec"), hexstr(1)))
    program = builder.load()
    expected = NativeEngine(program, cache=cache).process(0, b"\x01\x02\x03")
    monkeypatch.setattr(compiler, "_compile", lambda unit: pytest.fail("compiled again"))
    assert NativeEngine(program, cache=cache).process(0, b"\x01\x02\x03") == expected
    assert len(expected) == 1


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/nonexistent")
    assert default_cache() is not None
