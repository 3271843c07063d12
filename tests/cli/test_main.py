# SPDX-License-Identifier: Apache-2.0
"""The command word, and what is said when something is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hopsum_cli.main import COMMANDS, GROUPS, SECTIONS, Command, build_parser, load, main


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    ones = {name: row.summary for name, row in COMMANDS.items() if " " not in name}
    groups = {name: group.summary for name, group in GROUPS.items()}
    assert all(f"  {name} " in text and summary in text for name, summary in (ones | groups).items())
    assert [text.index(f"{section.title}:") for section in SECTIONS] == sorted(
        text.index(f"{section.title}:") for section in SECTIONS
    )
    assert "exit status:" in text


def test_every_command_is_in_one_section() -> None:
    listed = [word for section in SECTIONS for word in section.words]
    assert sorted(listed) == sorted({name.partition(" ")[0] for name in COMMANDS})


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_help_of_a_group_lists_its_words(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([group, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    rows = {name: row for name, row in COMMANDS.items() if name.startswith(f"{group} ")}
    assert len(rows) > 1
    assert all(name.split()[1] in text and row.summary in text for name, row in rows.items())


@pytest.mark.parametrize("name", sorted([*COMMANDS, *GROUPS]))
def test_every_command_explains_itself(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hopsum_cli.main", *name.split(), "--help"], capture_output=True, text=True, check=False
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

    monkeypatch.setattr("hopsum_cli.main.import_module", missing)
    with pytest.raises(SystemExit, match=r"needs the module grpc; pip install 'hopsum\[switch\]'"):
        load(Command("", "hopsum_switch.cli", "switch"))
