# SPDX-License-Identifier: Apache-2.0
"""Every drill, small: real processes and real signals; and the command around them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopsum_evaluation.drill.base import CHECKS
from hopsum_evaluation.drill.catalogue import DRILLS
from hopsum_evaluation.drill.command import build_parser, main, run_one

from ...support.processes import assert_killed_command_leaves_nothing

pytestmark = pytest.mark.system
SMALL = "0.3"


@pytest.mark.parametrize("name", list(DRILLS))
def test_drill(name: str, tmp_path: Path) -> None:
    options = build_parser().parse_args(["--scale", SMALL, "--keep", str(tmp_path)])
    if reason := DRILLS[name].needs(options.target):
        pytest.skip(reason)
    report = run_one(name, options, str).as_json()
    assert report["ok"], json.dumps({key: report[key] for key in ("failure", "killed", "checks", "why")}, indent=1)
    assert report["checks"] == dict.fromkeys(CHECKS, True), report
    assert report["killed"]
    assert report["recovered"]
    assert report["steps"] > 0


def test_a_drill_that_is_killed_leaves_nothing() -> None:
    name = "split" if not DRILLS["split"].needs("native") else "worker-killed"
    assert_killed_command_leaves_nothing(["drill", name], processes=6)


def test_a_folder_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "worker-killed").mkdir()
    with pytest.raises(SystemExit):
        main(["worker-killed", "--keep", str(tmp_path)])
    assert "is there already" in capsys.readouterr().err


def test_a_drill_that_cannot_run_here_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main(["split", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["drills"]
    assert report["ok"] is None
    assert report["skipped"] == "the `ip` command (iproute2) is not on PATH"


def test_list_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in DRILLS)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["worker-kiled"], "no drill 'worker-kiled'; there are worker-"), (["--scale", "0"], "--scale 0: above 0")],
)
def test_arguments_that_do_not_fit(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert why in capsys.readouterr().err
