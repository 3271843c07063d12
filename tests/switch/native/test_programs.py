# SPDX-License-Identifier: Apache-2.0
"""Compiled programs: both engines on frames that are mostly right with something wrong, and on recorded ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from google.protobuf import text_format

from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.p4info import P4Info
from hopsum_ptf.port_links import OutputFrame as Sent
from hopsum_ptf.recording import Write, load, multiset, recordings
from hopsum_switch.engine import Engine
from hopsum_switch.native.compiler import CodeCache
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.p4runtime.entities import write_update
from hopsum_switch.p4runtime.pipeline_config import CheckedPipeline, RunningPipeline, verify
from hopsum_switch.program import load_program
from hopsum_switch.state.copies import PortCopy
from hopsum_switch.state.entry_lookup import Exact, Lpm, Range, Ternary
from hopsum_wire.p4runtime import p4runtime_pb2

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


def test_router() -> None:
    pair, rng = pair_of("router"), random.Random(1)

    def fill(engine: Engine) -> None:
        for prefix, length, hop in [(10, 8, 1), (0x0A02, 16, 2), (0x0A020304, 32, 3), (0, 0, 4), (0xC0A80701, 31, 1)]:
            value = prefix << (32 - length) if length else 0
            engine.tables["Forward.routes"].insert([Lpm(value & 0xFFFFFFFF, length)], "Forward.route", [hop])
        for hop in (1, 2, 3):
            engine.tables["Forward.next_hops"].insert([Exact(hop)], "Forward.send", [hop + 10, hop, hop << 40])

    drive_quietly(pair, rng)
    pair.both(fill)
    headers = [bytes(12) + b"\x08\0" + IPV4[:16] + bytes([a, b, 3, 4]) + IPV4[20:] for a in (10, 192) for b in (1, 2)]
    drive(pair, [right_checksum(frame) + rng.randbytes(40) for frame in headers], 1500, rng)


def right_checksum(frame: bytes) -> bytes:
    words = frame[14:24] + frame[26:34]
    total = sum(int.from_bytes(words[i : i + 2], "big") for i in range(0, 18, 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return frame[:24] + (0xFFFF - total).to_bytes(2, "big") + frame[26:]


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
    return P4Info.from_file(compiled_program()[1])


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
    target, frames = RunningPipeline(pipeline, NativeEngine(pipeline.program, cache=cache)), 0
    for recording in map(load, RECORDINGS):
        target.engine.reset_state()
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
    rng, pair = random.Random(4), Pair(pipeline.program, cache=cache)
    for recording in map(load, RECORDINGS):
        if not recording.case.startswith(("random_traffic", "arithmetic")):
            continue
        pair.reset()
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
