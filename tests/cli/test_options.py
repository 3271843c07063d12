# SPDX-License-Identifier: Apache-2.0
"""Tests of all options of all commands: each is explained, and a spelling means the same in every command."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hopsum_cli.main import COMMANDS


class Built(Exception):  # noqa: N818
    """Carries the parser that a command has made, in place of parsing."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command. Skips where the command's extra is not installed."""

    def stop(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        raise Built(parser)

    module = pytest.importorskip(COMMANDS[name].module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        with pytest.raises(Built) as built:
            module.main([])
    return built.value.parser


def actions_of(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, argparse.Action]]:
    """Yield (command, option or argument), those of its words too; without --help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from actions_of(below, f"{path} {word}")
        elif not isinstance(action, argparse._HelpAction):
            yield path, action


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    for path, action in actions_of(parser_of(name), name):
        shown = "/".join(action.option_strings) or action.dest
        assert action.help, f"hopsum {path} {shown} has no help"
        first = action.help.split()[0]
        assert first not in {"of", "that", "where", "which", "to", "for", "from", "or", "with"}, (
            path,
            shown,
            action.help,
        )
        assert not action.help.endswith("."), (path, shown, action.help)


def test_a_spelling_takes_the_same_kind_of_value_everywhere() -> None:
    kinds: dict[str, dict[tuple[bool, bool], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in COMMANDS:
        for path, action in actions_of(parser_of(name), name):
            for spelling in action.option_strings:
                kinds[spelling][_kind(action)].append(path)
    two = {spelling: dict(found) for spelling, found in kinds.items() if len(found) > 1}
    assert not two


TWO_TYPES = {
    "--elements": "plan reads 25M for 25000000 too",
    "--interface": "the switch needs the number of its port beside the interface",
    "--only": "each benchmark has parts of its own",
    "--seed": "the switch takes the 64 bits that the P4 program's random() has",
    "--target": "not every command has the Mininet network",
    "--workers": "codec compare takes several numbers",
}
"""Options whose values are read in two ways, by spelling, and why the meaning is one all the same."""


def test_the_values_of_a_spelling_are_read_alike() -> None:
    types: dict[str, dict[tuple[str, tuple[str, ...]], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in COMMANDS:
        for path, action in actions_of(parser_of(name), name):
            for spelling in action.option_strings:
                types[spelling][_type(action)].append(path)
    two = {spelling: dict(found) for spelling, found in types.items() if len(found) > 1}
    assert set(two) == set(TWO_TYPES), two


def _type(action: argparse.Action) -> tuple[str, tuple[str, ...]]:
    """Return the name of what reads an option's value, and the values that it may have."""
    reads = getattr(action.type, "__name__", str(action.type))
    return reads, tuple(map(str, action.choices or ()))


def _kind(action: argparse.Action) -> tuple[bool, bool]:
    """Return whether an option takes a value, and whether that is the name of a file."""
    metavars: Sequence[str] = [action.metavar] if isinstance(action.metavar, str) else action.metavar or ()
    return action.nargs != 0, any(word in {"FILE", "PATH", "DIR"} for word in metavars)
