# SPDX-License-Identifier: Apache-2.0
"""The command word, and what is said when something is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hopsum.cli.main import COMMANDS, Command, build_parser, load, main


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text and command.summary in text for name, command in COMMANDS.items())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hopsum.cli.main", name, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"usage: hopsum {name}" in done.stdout


def test_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        build_parser().parse_args(["trian"])
    assert stop.value.code == 2
    assert "trian" in capsys.readouterr().err


def test_missing_dependency_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError("No module named 'grpc'", name="grpc")

    monkeypatch.setattr("hopsum.cli.main.import_module", missing)
    with pytest.raises(SystemExit, match=r"needs the module grpc; pip install 'hopsum\[switch\]'"):
        load(Command("", "hopsum_switch.cli", "switch"))
