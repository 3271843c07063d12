# SPDX-License-Identifier: Apache-2.0
"""Recordings of bmv2, replayed in the embedded interpreter: same frames on the same ports, same counters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf import text_format

from hopsum_base.p4runtime import p4runtime_pb2
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.p4info import P4Info
from hopsum_ptf.port_links import OutputFrame
from hopsum_ptf.recording import Exchange, Recording, Write, load, multiset, recordings
from hopsum_switch.engine import Engine
from hopsum_switch.p4runtime.entities import write_update
from hopsum_switch.p4runtime.pipeline_config import CheckedPipeline, RunningPipeline, verify

pytestmark = pytest.mark.system
DATA = Path(__file__).resolve().parent / "data"
RECORDINGS = recordings(DATA)


@pytest.fixture(scope="module")
def p4info() -> P4Info:
    return P4Info.from_text(compiled_program()[1].read_text())


@pytest.fixture(scope="module")
def pipeline(p4info: P4Info) -> CheckedPipeline:
    return verify(p4info.message, compiled_program()[0].read_bytes())


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.name.removesuffix(".json.gz") for path in RECORDINGS])
def test_interpreter_does_what_bmv2_did(path: Path, pipeline: CheckedPipeline, p4info: P4Info) -> None:
    recording = load(path)
    target = RunningPipeline(pipeline, Engine(pipeline.program))
    _replay(recording, target)
    for name, cells in recording.counters.items():
        values = target.engine.counters.read_all(p4info.counters[name].name)
        assert {index: value.packets for index, value in enumerate(values) if value.packets} == cells, name


def _replay(recording: Recording, target: RunningPipeline) -> None:
    for number, step in enumerate(recording.steps):
        if isinstance(step, Write):
            for text in step.updates:
                write_update(target, text_format.Parse(text, p4runtime_pb2.Update()))
            continue
        outputs = [OutputFrame(*output) for output in target.engine.process(step.port, step.frame)]
        assert multiset(outputs) == multiset(step.out), (
            f"step {number}, port {step.port}, frame {step.frame.hex()}:\n"
            f"bmv2 sent {_text(step)}\nwe send {_text(Exchange(step.port, step.frame, tuple(outputs)))}"
        )


def _text(exchange: Exchange) -> str:
    return ", ".join(f"{port}: {frame.hex()}" for port, frame in exchange.out) or "nothing"


def test_recordings_are_there_and_name_their_versions() -> None:
    manifest = json.loads((DATA / "manifest.json").read_text())
    assert set(manifest) == {"recorded", "switch", "compiler", "program_sha256"}
    assert RECORDINGS
    assert sum(path.stat().st_size for path in RECORDINGS) < 3_000_000


def test_saving_is_deterministic_and_loses_nothing(tmp_path: Path) -> None:
    path = RECORDINGS[0]
    again = load(path).save(tmp_path)
    assert again.read_bytes() == path.read_bytes()
