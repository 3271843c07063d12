# SPDX-License-Identifier: Apache-2.0
"""Every `hopsum` command on a page is one that its parser takes, and every option in running text exists."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from hopsum_cli.main import COMMANDS, GROUPS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "labs" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    )
    if "_build" not in path.parts and path.name != "cli.md" and "adr" not in path.parts
]


@cache
def parser(name: str) -> argparse.ArgumentParser:
    built: argparse.ArgumentParser = import_module(COMMANDS[name].module).build_parser()
    return built


def command_of(words: list[str]) -> str | None:
    """Return the command that the words after `hopsum` begin with: two words before one."""
    names = [" ".join(words[:2]), words[0] if words else ""]
    return next((name for name in names if name in COMMANDS), None)


def in_blocks(page: str) -> Iterator[list[str]]:
    """Yield the words after `hopsum` of each command in a shell block."""
    for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["hopsum"]:
                kept = words[1 : words.index("--")] if "--" in words else words[1:]  # a command for workers follows
                yield [word for word in kept if word not in ("2>>", "controller.log")]


def in_text(page: str) -> Iterator[list[str]]:
    """Yield the words after `hopsum` of each command in code within a sentence."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`hopsum ([^`]+)`", prose):
        yield code.split()


def options_of(name: str) -> set[str]:
    found: set[str] = set()
    parsers = [parser(name)]
    while parsers:
        for action in parsers.pop()._actions:
            found.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    return found


def test_commands_in_blocks_are_taken_by_their_parsers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files that commands name are there: parsers look for some."""
    monkeypatch.chdir(tmp_path)
    seen = 0
    for path in PAGES:
        for words in in_blocks(path.read_text(encoding="utf-8")):
            name = command_of(words)
            assert name is not None, f"{path}: hopsum {' '.join(words)}"
            if "int16" in words:  # the codec of `examples`: tests/host/codec/test_registry.py installs it
                continue
            for word in words:
                if re.fullmatch(r"[\w./-]+\.(json|txtpb|toml|token)", word):
                    Path(word).parent.mkdir(parents=True, exist_ok=True)
                    Path(word).touch()
            try:
                parser(name).parse_args(words[len(name.split()) :])
            except SystemExit:
                pytest.fail(f"{path}: hopsum {' '.join(words)}: {capsys.readouterr().err}")
            seen += 1
    assert seen > 25


def test_options_in_running_text_exist() -> None:
    wrong, seen = [], 0
    for path in PAGES:
        for words in in_text(path.read_text(encoding="utf-8")):
            name = command_of(words)
            if name is None:  # a group, or a name of something else
                assert words[0] in GROUPS or words[0] in ("COMMAND", "--help"), f"{path}: hopsum {' '.join(words)}"
                continue
            text = " ".join(words).partition(" -- ")[0]
            options = re.findall(r"(?<![\w-])--[a-z][\w-]*", text)
            wrong += [f"{path.name}: hopsum {text}: {each}" for each in options if each not in options_of(name)]
            seen += len(options)
    assert wrong == []
    assert seen > 10
