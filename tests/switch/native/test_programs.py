# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on mutated and recorded frames, and loops that a frame can send round for ever."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from hopsum_base.p4runtime import p4runtime_pb2
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.p4info import P4Info
from hopsum_ptf.port_links import OutputFrame as Sent
from hopsum_ptf.recording import Write, load, multiset, recordings
from hopsum_switch.engine import Engine
from hopsum_switch.native.compiler import CodeCache, compile_program
from hopsum_switch.native.integer_code import Pieces
from hopsum_switch.native.native_engine import Batch, NativeEngine, Outputs
from hopsum_switch.p4runtime.entities import write_update
from hopsum_switch.p4runtime.pipeline_config import CheckedPipeline, RunningPipeline, verify
from hopsum_switch.ports.engines import FrameByFrame
from hopsum_switch.program import load_program
from hopsum_switch.program.frame_budget import MAX_STEPS, control_has_loop, parser_cycles
from hopsum_switch.state.copies import PortCopy
from hopsum_switch.state.entry_lookup import Exact, Range, Ternary

from ..core.builder import Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive
from .agreement import Pair, mutate

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[3]
IPV4 = bytes.fromhex("45000028000100004006f97d0a0102030a0203040035c001")
RECORDINGS = recordings(ROOT / "tests" / "vectors" / "data")


def pair_of(name: str) -> Pair:
    return Pair(load_program((ROOT / "tests/switch/programs" / name / f"{name}.json").read_text()))


def drive(pair: Pair, starts: list[bytes], count: int, rng: random.Random, ports: int = 4) -> None:
    sent = 0
    for number in range(count):
        frame = mutate(rng.choice(starts), rng)
        sent += len(pair.process(rng.randrange(ports), frame, rng.randrange(2**50)))
        if number % 100 == 0:
            pair.same_state()
    batch = [(rng.randrange(ports), mutate(rng.choice(starts), rng)) for _ in range(count)]
    pair.process_batch(batch, now_us=77)
    pair.same_state()
    assert sent, "nothing came out: the frames are all wrong"


def test_firewall() -> None:
    pair, rng = pair_of("firewall"), random.Random(2)
    rules = "Forward.rules"
    names = sorted(pair.program.tables[rules].actions)
    values = [[Ternary(0, 0), Ternary(0x0A020304, 0xFFFFFFFF), Range(0, 65535), Ternary(6, 255)]]
    values += [
        [Ternary(byte << 24, 255 << 24), Ternary(0, 0), Range(1, 50000), Ternary(0, 0)] for byte in (0, 10, 8, 9)
    ]
    values += [[Ternary(0, 0), Ternary(0, 0), Range(low, 65000), Ternary(0, 0)] for low in (0, 53)]

    def fill(engine: Engine) -> None:
        for number, match in enumerate(values):
            action = engine.program.tables[rules].actions[names[(number + 1) % len(names)]]
            args = [number % 4 + 1 for _ in action.params]
            engine.tables[rules].insert(match, action.name, args, priority=1 + number % 3)
        engine.tables["Forward.broadcast"].insert([Exact(2**48 - 1)], "Forward.flood", [1])
        engine.multicast.insert(1, [PortCopy(port, port) for port in range(3)])

    drive_quietly(pair, rng)
    pair.both(fill)
    start = b"\xff" * 6 + bytes(6) + b"\x08\0" + IPV4 + rng.randbytes(30)
    drive(pair, [start, bytes(12) + start[12:], bytes(12) + start[12:]], 1500, rng)
    handle = pair.reference.tables[rules].entries()[0].handle
    pair.both(lambda engine: engine.tables[rules].delete(handle))
    drive(pair, [bytes(12) + start[12:]], 300, rng)


def drive_quietly(pair: Pair, rng: random.Random) -> None:
    for _ in range(20):
        pair.process(1, rng.randbytes(60))


@pytest.fixture(scope="module")
def p4info() -> P4Info:
    return P4Info.from_text(compiled_program()[1].read_text())


@pytest.fixture(scope="module")
def pipeline(p4info: P4Info) -> CheckedPipeline:
    return verify(p4info.message, compiled_program()[0].read_bytes())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> CodeCache:
    return CodeCache(tmp_path_factory.mktemp("native") / "cache")


def write(pair: Pair, pipeline: CheckedPipeline, step: Write) -> None:
    targets = [RunningPipeline(pipeline, engine) for engine in (pair.reference, pair.native)]
    for text in step.updates:
        for target in targets:
            write_update(target, text_format.Parse(text, p4runtime_pb2.Update()))


def test_recordings(pipeline: CheckedPipeline, cache: CodeCache, p4info: P4Info) -> None:
    """Machine code does what bmv2 did. `tests/vectors` proves the same of the interpreter."""
    frames = 0
    for recording in map(load, RECORDINGS):
        target = RunningPipeline(pipeline, NativeEngine(pipeline.program, cache=cache))
        for step in recording.steps:
            if isinstance(step, Write):
                for text in step.updates:
                    write_update(target, text_format.Parse(text, p4runtime_pb2.Update()))
                continue
            frames += 1
            outputs = target.engine.process(step.port, step.frame)
            assert multiset([Sent(*output) for output in outputs]) == multiset(step.out), recording.case
        for name, cells in recording.counters.items():
            values = target.engine.counters.read_all(p4info.counters[name].name)
            assert {index: value.packets for index, value in enumerate(values) if value.packets} == cells, name
    assert frames > 1000


def test_aggregation_with_mutated_frames(pipeline: CheckedPipeline, cache: CodeCache) -> None:
    """Frames of a recording, nine in ten of them changed, in batches and one by one."""
    rng = random.Random(4)
    for recording in map(load, RECORDINGS):
        if not recording.case.startswith(("random_traffic", "arithmetic")):
            continue
        pair = Pair(pipeline.program, cache=cache)
        pending: list[tuple[int, bytes]] = []
        for step in recording.steps:
            if isinstance(step, Write):
                pair.process_batch(pending)
                pending = []
                write(pair, pipeline, step)
                continue
            pair.process(step.port, mutate(step.frame, rng))
            pending += [(step.port, mutate(step.frame, rng)) for _ in range(2)]
        pair.process_batch(pending)
        pair.same_state()


A, M, RID = field("h", "a"), field("scalars", "m"), field("standard_metadata", "egress_rid")
SPEC, GROUP = field("standard_metadata", "egress_spec"), field("standard_metadata", "mcast_grp")
REGISTER: Json = {"type": "register_array", "value": "r"}
NEVER = 2**32 - 1


def loop(turns: Json, *, first: int = 0) -> list[Json]:
    """Operations, the first at position `first` of an action, that jump back as often as `turns` says."""
    more = expression("b2d", None, expression("<", M, turns))
    return [
        assign(M, hexstr(0)),
        primitive("_jump_if_zero", more, hexstr(first + 4)),
        assign(M, expression("+", M, hexstr(1))),
        primitive("_jump", hexstr(first + 1)),
    ]


def looping() -> ProgramBuilder:
    """A builder whose ingress goes round as often as h.a says, and counts frames in register 1 before it does."""
    builder = build(("a", 32))
    add = assign(M, expression("+", M, hexstr(1)))
    builder.primitives += [
        primitive("register_read", M, REGISTER, hexstr(1)),
        add,
        primitive("register_write", REGISTER, hexstr(1), M),
        *loop(A, first=3),
        assign(SPEC, hexstr(1)),
    ]
    return builder


def frame(turns: int) -> bytes:
    return turns.to_bytes(4, "big") + b"payload"


def dropped(pair: Pair) -> int:
    assert pair.reference.dropped == pair.native.dropped
    assert set(pair.reference.dropped) <= {"steps"}
    return pair.reference.dropped["steps"]


def test_a_frame_has_a_budget_and_the_next_one_has_a_whole_one() -> None:
    pair = Pair(looping().load())
    for number, turns in enumerate((MAX_STEPS, MAX_STEPS + 1, MAX_STEPS, NEVER, 0), 1):
        assert pair.process(0, frame(turns)) == ([] if turns > MAX_STEPS else [(1, frame(turns))])
        assert pair.native.registers.read("r", 1) == number
    pair.same_state()
    assert dropped(pair) == 2


def test_a_batch_is_cut_so_that_others_come_in_between() -> None:
    pair = Pair(looping().load())
    turns = [0, NEVER, 0, 0, MAX_STEPS // 2, MAX_STEPS // 2, 1, NEVER, NEVER, 2]
    traffic = [(0, frame(number)) for number in turns]
    pair.process_batch(traffic)
    assert dropped(pair) == 3
    batch, outputs = Batch.from_frames([0] * len(turns), [data for _, data in traffic]), Outputs(100, 1 << 16)
    ends = [0]
    while ends[-1] < len(turns):
        ends.append(pair.native.process_batch(batch, outputs, first=ends[-1]))
    assert ends == [0, 2, 6, 8, 9, 10]
    assert pair.native.dropped["steps"] == 6


def test_the_interpreter_ends_a_batch_when_frames_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FrameByFrame(Engine(looping().load()), lambda port, size: None)
    batch, outputs = Batch.from_frames([0] * 5, [frame(1)] * 5), Outputs(1, 1)
    assert engine.process_batch(batch, outputs) == 5
    monkeypatch.setattr("hopsum_switch.ports.engines.LONGEST_S", 0.0)
    assert engine.process_batch(batch, outputs, first=3) == 4
    assert outputs.count == 1


@pytest.mark.parametrize("reads", [False, True])
def test_a_cycle_of_the_parser_is_bounded(reads: bool) -> None:
    """One that reads a byte at each turn comes to the end of every frame; one that reads nothing does not."""
    builder = build(("a", 32))
    builder.states[0] = builder.state("start", "h", "again")
    again = builder.state("again", None, "again")
    if reads:
        again["parser_ops"] = [{"op": "advance", "parameters": [hexstr(8)]}]
    builder.states.append(again)
    builder.primitives.append(assign(SPEC, hexstr(1)))
    pair = Pair(builder.load())
    long = frame(7) + bytes(65549 - len(frame(7)))
    assert len(pair.process(0, long)) == len(pair.process(0, frame(7))) == int(reads)
    assert dropped(pair) == (0 if reads else 2)


def test_copies_of_a_frame_share_its_budget_and_those_that_were_sent_stay_sent() -> None:
    builder = build(("a", 32))
    builder.primitives.append(assign(GROUP, hexstr(1)))
    builder.egress_primitives += loop(expression("*", RID, A))
    pair = Pair(builder.load())
    pair.both(lambda engine: engine.multicast.insert(1, [PortCopy(port, rid) for port, rid in enumerate((2, 3, 4, 0))]))
    for unit, copies in ((1, 4), (MAX_STEPS // 9, 4), (MAX_STEPS // 8, 2), (MAX_STEPS // 2, 1), (MAX_STEPS, 0)):
        assert [port for port, _ in pair.process(0, frame(unit))] == list(range(copies))
    assert dropped(pair) == 3


def test_a_frame_that_comes_round_has_no_second_budget() -> None:
    builder = build(("a", 32))
    builder.data["field_lists"] = [{"id": 1, "name": "nothing", "elements": []}]
    builder.primitives += [*loop(A), primitive("resubmit", hexstr(1)), assign(SPEC, hexstr(1))]
    engine = Engine(builder.load())
    for turns, reason in ((MAX_STEPS // 300, "turns"), (MAX_STEPS // 200, "steps")):
        engine.dropped.clear()
        engine.process(0, frame(turns))
        assert engine.dropped == {reason: 1}


def random_jumps(rng: random.Random) -> list[Json]:
    """An action that writes registers and jumps anywhere, as the frame has it."""
    size, body = rng.randrange(5, 12), list[Json]()
    for index in range(size):
        kind = rng.choice(("assign", "assign", "write", "jump", "if", "if"))
        if kind == "assign":
            amount = rng.choice((M, hexstr(rng.randrange(1, 9))))
            body.append(assign(A, expression(rng.choice("+^-"), A, amount)))
        elif kind == "write":
            body.append(primitive("register_write", REGISTER, hexstr(index % 4), A))
        elif kind == "jump":
            body.append(primitive("_jump", hexstr(rng.choice((rng.randrange(size + 1), size)))))
        else:
            bits = expression("&", A, hexstr(rng.randrange(1, 256)))
            body.append(primitive("_jump_if_zero", bits, hexstr(rng.randrange(size + 1))))
    return body


def test_random_jumps_agree() -> None:
    rng, drops, sent = random.Random(3), 0, 0
    for _ in range(12):
        builder = build(("a", 32))
        builder.primitives += random_jumps(rng)
        builder.egress_primitives += loop(expression("&", A, hexstr(0xFF)))
        pair = Pair(builder.load())
        for _ in range(8):
            sent += len(pair.process(0, frame(rng.randrange(2**32))))
            pair.same_state()
        drops += dropped(pair)
    assert drops > 5
    assert sent > 30


def test_random_parsers_agree() -> None:
    """Every state reads its successor from the frame, or reads nothing and goes where the last byte said."""
    rng, ended, drops = random.Random(5), 0, 0
    for _ in range(6):
        builder = build(("a", 8))
        names = [f"s{number}" for number in range(4)]
        builder.states[0] = builder.state("start", "h", "s0")
        for name in names:
            state = builder.state(name, None, rng.choice([*names, None]))
            if rng.random() < 0.5:
                state["parser_ops"] = [{"op": "extract", "parameters": [{"type": "regular", "value": "h"}]}]
            state["transition_key"] = [A]
            for _ in range(3):
                case = {"type": "hexstr", "value": hex(rng.randrange(4)), "mask": "0x3"}
                state["transitions"].insert(0, {**case, "next_state": rng.choice([*names, None])})
            builder.states.append(state)
        builder.primitives.append(assign(SPEC, hexstr(1)))
        pair = Pair(builder.load())
        for _ in range(4):
            ended += len(pair.process(0, rng.randbytes(rng.randrange(1, 40))))
        drops += dropped(pair)
    assert ended
    assert drops


def test_cycles_of_a_parser_are_found() -> None:
    builder = build()
    for name, following in pairwise(("s0", "s1", "s2", "s0")):
        builder.states.append(builder.state(name, None, following))
    builder.states.extend([builder.state("self", None, "self"), builder.state("last", None, None)])
    builder.states[0] = builder.state("start", "h", "s1")
    builder.states[3]["transitions"].insert(0, {"type": "hexstr", "value": "0x1", "mask": None, "next_state": "last"})
    builder.states[3]["transition_key"] = [field("h", "a")]
    ring = frozenset(("s0", "s1", "s2"))
    assert parser_cycles(builder.load().parser) == {"s0": ring, "s1": ring, "s2": ring, "self": frozenset(("self",))}


def test_the_shipped_program_has_no_loop_and_pays_for_none() -> None:
    program = load_program(Path(compiled_program()[0]).read_text())
    assert not parser_cycles(program.parser)
    assert not control_has_loop(program.ingress)
    assert not control_has_loop(program.egress)


def test_wide_lanes_of_the_shipped_program_are_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sum but that of a maximum carries from word to word, and no wide value is computed as one integer."""
    found: set[tuple[str, str]] = set()
    for name in ("_with_carry", "_cut"):
        real = getattr(Pieces, name)

        def noted(self: Pieces, *args: Any, name: str = name, real: Callable[..., Any] = real) -> Any:
            found.add((name, self._scope.where))
            return real(self, *args)

        monkeypatch.setattr(Pieces, name, noted)
    compile_program(load_program(Path(compiled_program()[0]).read_text()))
    assert found == {("_with_carry", "HopsumIngress.aggregate.max32")}
