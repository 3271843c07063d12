# SPDX-License-Identifier: Apache-2.0
"""`hopsum lab`, as a student types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopsum_labs.lab_command import main


def test_list_names_levels_and_points(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ethernet", "udp", "loss", "slots", "floats", "racks"]
    assert lines[0].endswith("(13 points)")


def test_start_copies_handout_and_skeleton_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    assert main(["start", "ethernet", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == {"README.md", "aggregate.p4", "worker.py"}
    assert "hopsum lab test ethernet" in capsys.readouterr().out
    (folder / "aggregate.p4").write_text("my work")
    assert main(["start", "ethernet", str(folder)]) == 1
    assert "exists already; nothing was changed" in capsys.readouterr().err
    assert (folder / "aggregate.p4").read_text() == "my work"


def test_grade_shows_rules_and_points(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grade", "ethernet", "--solution"]) == 0
    output = capsys.readouterr().out
    assert "2/2  next_round" in output
    assert output.splitlines()[-1] == "13 of 13 points"


def test_without_bmv2_the_message_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["test", "ethernet", "--solution", "--target", "bmv2"]) == 1
    assert "bmv2 does not start: " in capsys.readouterr().err


def test_grade_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grade", "loss", "--solution", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["level"], document["points"], document["of"]) == ("loss", 20, 20)
    assert {case["reason"] for case in document["cases"]} == {""}


def test_a_folder_without_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "p4c-bm2-ss"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["test", "udp", str(tmp_path / "nowhere")]) == 1
    error = capsys.readouterr().err
    assert "nowhere/aggregate.p4 is not there; `hopsum lab start" in error


def test_an_unknown_level_is_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["grade", "level9", "--solution"])
    assert refused.value.code == 2
    assert "ethernet" in capsys.readouterr().err
