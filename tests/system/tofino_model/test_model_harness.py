# SPDX-License-Identifier: Apache-2.0
"""The harness of Intel's model as a process, and random streams through the model against the oracle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.tna.bed import Bed, follow_one_by_one

from hopsum_model.chips import MODEL_CHIPS, ModelError
from hopsum_model.harness import Harness, LeftFrame, complaints, parse_counters, parse_observed
from hopsum_ptf.model_device import model_unavailable, open_model
from hopsum_ptf.targets import TARGETS

ROOT = Path(__file__).resolve().parents[3]
BOTH = pytest.mark.parametrize("target", MODEL_CHIPS)
_FAKE = """\
import sys
observed = open(sys.argv[sys.argv.index("--observation-log") + 1], "w", buffering=1)
print("Tofino Verification Model - Version cabed4a6-dirty", flush=True)
for number, line in enumerate(sys.stdin, 1):
    command, *arguments = line.split()
    if command == "packet":
        observed.write(f"{arguments[0]} {arguments[1].upper()}\\n")
    elif command == "end":
        sys.exit("assertion failed")
    elif command == "check_counter":
        print("counter Ingress.cnt(virtual 1): packets=0", flush=True)
        print("counter Ingress.cnt(physical 1): packets=2", flush=True)
    elif command != "wait":
        print(f"<stdin>:{number}: Unknown command {command}", file=sys.stderr, flush=True)
"""


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    script = tmp_path / "fake"
    script.write_text(f"#!{sys.executable}\n{_FAKE}")
    script.chmod(0o755)
    return Harness((str(script), "-r"), tmp_path)


def test_frames_that_left_are_told_once(harness: Harness) -> None:
    assert harness.wait_until_ready() == ["Tofino Verification Model - Version cabed4a6-dirty"]
    assert harness.run_checked(["packet 2 00ff", "packet 3 ab", "wait"]) == []
    assert harness.drain_frames() == [LeftFrame(2, b"\x00\xff"), LeftFrame(3, b"\xab")]
    assert harness.drain_frames() == []
    harness.close()


def test_many_commands_and_many_complaints(harness: Harness) -> None:
    harness.wait_until_ready()
    said = harness.run([f"nonsense{number}" for number in range(5000)])
    assert len(said) == 5000
    with pytest.raises(ModelError, match=r"complains: Unknown command nonsense; Unknown command x \(2 in all\)"):
        harness.run_checked(["nonsense", "wait", "x"])
    harness.close()


def test_a_harness_that_ends_says_why(harness: Harness) -> None:
    harness.wait_until_ready()
    with pytest.raises(ModelError, match="ended: assertion failed"):
        harness.run(["end"])
    with pytest.raises(ModelError, match="ended"):
        harness.run(["wait"])
    harness.close()


def test_counters(harness: Harness) -> None:
    assert parse_counters(harness.run_checked(["check_counter 0:Ingress.cnt(1)"])) == {1: 2}
    harness.close()


RECORDED = """\
<stdin>:4: must specify address (priority)
<stdin>:5: No matching table for suffix 'Ingress.no'
unexpected packet output on port 3:
0000  00 00 00 00 00 05 ab                              ......+
<stdin>:12: all ways in use
"""


def test_lines() -> None:
    assert parse_observed("3 000000000005AB\n") == LeftFrame(3, bytes(5) + b"\x05\xab")
    assert complaints(RECORDED.splitlines()) == [
        "must specify address (priority)",
        "No matching table for suffix 'Ingress.no'",
        "all ways in use",
    ]


@BOTH
def test_why_the_model_cannot_run(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chip = MODEL_CHIPS[target]
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(chip.assembled, raising=False)
    assert model_unavailable(chip) == f"{chip.harness} is not on PATH: docs/tofino.md says what it is"
    (tmp_path / chip.harness).touch(mode=0o755)
    assert str(model_unavailable(chip)).startswith(f"{chip.assembled} is not set")
    monkeypatch.setenv(chip.assembled, str(tmp_path))
    (tmp_path / chip.binary).touch()
    assert model_unavailable(chip) == f"{tmp_path}, which {chip.assembled} names, has no context.json"
    (tmp_path / "context.json").touch()
    assert model_unavailable(chip) is None


@BOTH
def test_the_target_says_why_it_does_not_run(target: str) -> None:
    environment = {**os.environ, "PATH": "/nowhere"}
    command = [sys.executable, str(ROOT / "ptf_tests" / "run"), "--target", target, "forwarding.KnownAddress"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    harness = MODEL_CHIPS[target].harness
    assert done.stderr == f"{target}: {harness} is not on PATH: docs/tofino.md says what it is\n"


@pytest.mark.parametrize("target", MODEL_CHIPS)
def test_one_packet_after_the_other(target: str) -> None:
    chip = MODEL_CHIPS[target]
    if (reason := model_unavailable(chip)) is not None:
        pytest.skip(reason)
    device = open_model(chip)
    try:
        device.set_pipeline_config(TARGETS[target].load_pipeline())
        follow_one_by_one(Bed(chip.name, device=device))
    finally:
        device.close()
