# SPDX-License-Identifier: Apache-2.0
"""Other people's programs on arbitrary frames, and arbitrary bytes to ours: an answer, or a refusal by name."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.protobuf import text_format

from hopsum_switch.engine import Engine
from hopsum_switch.errors import ProgramError, UnsupportedError
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.p4runtime.pipeline_config import verify
from hopsum_switch.p4runtime.status import P4RuntimeError
from hopsum_switch.program import load_program
from hopsum_wire.p4runtime import p4info_pb2

pytestmark = pytest.mark.system
COMPILER = "p4c-bm2-ss"
FRAMES = 5
FOLDERS = [Path(name) for name in os.environ.get("TEST_P4_SAMPLES", "").split(":") if name]


def compile_one(source: Path, folder: Path) -> Path | None:
    """Return the compiled program, with its P4Info beside it, or None."""
    if "v1model.p4" not in source.read_text(errors="replace"):
        return None
    output = folder / f"{'_'.join(source.parts[-3:])}.json"
    info = output.with_suffix(".p4info.txtpb")
    command = [
        COMPILER,
        "--arch",
        "v1model",
        "--Wdisable",
        "--p4runtime-files",
        str(info),
        "-o",
        str(output),
        str(source),
    ]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=300)
    except subprocess.TimeoutExpired:
        return None
    return output if done.returncode == 0 and output.is_file() else None


def verdict(make: Callable[[], Engine]) -> str:
    """Return "runs", or why a program is refused, or how it fails."""
    rng = random.Random(1)
    try:
        engine = make()
    except UnsupportedError as error:
        return "refused: " + str(error).removeprefix("unsupported ").removeprefix("not compiled: ").partition(":")[0]
    except ProgramError as error:  # the compiler wrote something that contradicts itself
        return f"malformed: {error}"
    except Exception as error:  # whatever it is, the report names it
        return f"fails to load: {error!r}"
    try:
        for size in (0, 14, 60, 128, 1500)[:FRAMES]:
            engine.process(1, rng.randbytes(size))
    except Exception as error:
        return f"fails to run: {error!r}"
    return "runs"


def judge(program: Path) -> tuple[str, str, str]:
    """Return the verdicts on the interpreter, on machine code, and on P4Runtime's view of a program."""
    text = program.read_text()
    interpreted = verdict(lambda: Engine(load_program(text)))
    if interpreted != "runs":
        return interpreted, interpreted, interpreted
    info = text_format.Parse(program.with_suffix(".p4info.txtpb").read_text(), p4info_pb2.P4Info())
    try:
        verify(info, text.encode())
        served = "runs"
    except P4RuntimeError as error:
        served = f"refused: {error}"
    native = verdict(lambda: NativeEngine(load_program(text))) if "HOPSUM_P4_NATIVE" in os.environ else "not asked"
    return interpreted, native, served


@pytest.mark.skipif(not FOLDERS, reason="TEST_P4_SAMPLES names no folders with P4 programs")
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not on PATH")
def test_every_program_runs_or_is_refused_by_name(tmp_path: Path) -> None:
    sources = [source for folder in FOLDERS for source in sorted(folder.rglob("*.p4"))]
    with ThreadPoolExecutor(2) as pool:
        compiled = list(pool.map(lambda source: compile_one(source, tmp_path), sources))
    verdicts = {str(source): judge(program) for source, program in zip(sources, compiled, strict=True) if program}
    lines = [f"{name}: {'; '.join(found)}" for name, found in verdicts.items()]
    for position, what in enumerate(("interpreter", "native", "P4Runtime")):
        lines.append(f"{what}: {dict(Counter(found[position] for found in verdicts.values()).most_common())}")
    report = "\n".join(lines)
    print(report)
    if "TEST_P4_REPORT" in os.environ:
        Path(os.environ["TEST_P4_REPORT"]).write_text(report + "\n")
    assert verdicts, f"none of {len(sources)} files is a v1model program that compiles"
    assert not [line for line in lines if "fails to" in line]


@pytest.mark.parametrize("name", ["router", "firewall", "segments", "mirror", "rounds", "police", "learner"])
def test_random_bytes_are_frames_too(engine_of: Callable[[str], Engine], name: str) -> None:
    engine, rng = engine_of(name), random.Random(name)
    starts = [
        b"",
        b"\xff" * 12 + b"\x08\x00",
        b"\xff" * 12 + b"\x08\x00\x45",
        bytes(12) + b"\x08\x00\x45" + bytes(5) + b"\0\0\x40\x06",
    ]
    for _ in range(500):
        frame = rng.choice(starts) + rng.randbytes(rng.choice([0, 1, 7, 8, 20, 40, 1500]))
        for output in engine.process(rng.randrange(512), frame, rng.randrange(2**50)):
            assert len(output.frame) <= len(frame) + 12
