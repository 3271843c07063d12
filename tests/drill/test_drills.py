# SPDX-License-Identifier: Apache-2.0
"""Every drill, small: real processes and real signals, as `hopsum drill NAME --json`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopsum.cli.drill.base import CHECKS
from hopsum.cli.drill.catalogue import DRILLS
from hopsum.cli.drill.command import main

SMALL = "0.3"


def drill(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:  # type: ignore[type-arg]
    status = main([*arguments, "--json"])
    document = json.loads(capsys.readouterr().out)
    (report,) = document["drills"]
    return status, report


@pytest.mark.parametrize("name", list(DRILLS))
def test_drill(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reason = DRILLS[name].needs("native")
    if reason:
        pytest.skip(reason)
    status, report = drill(capsys, name, "--scale", SMALL, "--keep", str(tmp_path))
    logs = {path.name: path.read_text()[-2000:] for path in tmp_path.rglob("*.log")}
    assert status == 0, (report, logs)
    assert report["checks"] == dict.fromkeys(CHECKS, True), report
    assert report["killed"]
    assert report["recovered"]
    assert report["steps"] > 0


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
