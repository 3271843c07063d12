# SPDX-License-Identifier: Apache-2.0
"""`hopsum completion`: a script by which a shell completes commands, options, choices and file names.

The script has all of them in it: a shell that completes a word does not start hopsum.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import shtab

from hopsum_cli.main import COMMANDS, GROUPS, Command

SHELLS: Final = ("bash", "fish", "tcsh", "zsh")
_INSTALL: Final = """\
bash   hopsum completion bash > ~/.local/share/bash-completion/completions/hopsum
fish   hopsum completion fish > ~/.config/fish/completions/hopsum.fish
tcsh   hopsum completion tcsh > ~/.hopsum.tcsh, and `source ~/.hopsum.tcsh` in ~/.tcshrc
zsh    hopsum completion zsh > ~/.zfunc/_hopsum, and `fpath+=~/.zfunc; autoload -Uz compinit; compinit` in ~/.zshrc
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum completion",
        description="Print a script that completes the commands and options of hopsum in a shell. A command whose "
        "extra is not installed is completed without its options.",
        epilog=_INSTALL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="shell that reads the script")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Print the script, and return 0."""
    options = build_parser().parse_args(arguments)
    print(shtab.complete(whole_parser(), shell=options.shell))
    return 0


def whole_parser() -> argparse.ArgumentParser:
    """Return a parser of every command with its options, in place of `hopsum_cli.main`'s, which imports only one."""
    whole = argparse.ArgumentParser(prog="hopsum")
    whole.add_argument("--version", action="store_true", help="show the version and exit")
    first_words = whole.add_subparsers()
    second_words: dict[str, Any] = {}
    # Rows of one word come before those of two in COMMANDS, so that a first word which is a command itself
    # (`plan`, `controller`) exists before its second words are added to it.
    for name, command in COMMANDS.items():
        first, _, second = name.partition(" ")
        if not second:
            _add_command(first_words, first, command)
            continue
        if first not in second_words:
            # A group (`bench`, `codec`) is no command of its own: its first word is made here.
            known = first_words.choices.get(first)
            parent = known or first_words.add_parser(first, help=GROUPS[first].summary)
            second_words[first] = parent.add_subparsers()
        _add_command(second_words[first], second, command)
    return whole


def _add_command(words: Any, word: str, command: Command) -> None:
    try:
        parents = [import_module(command.module).build_parser()]
    except ModuleNotFoundError as error:
        # A missing package of ours is a fault of this tree; one of an extra is a command without options.
        if (error.name or "").startswith("hopsum"):
            raise
        parents = []
    # `-h` comes with the parent; a second one would be refused.
    parser = words.add_parser(word, help=command.summary, parents=parents, add_help=not parents)
    _complete_files(parser)


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Let options and arguments that take a path complete names of files, and those of the words below too."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _complete_files(below)
        # A path may be a text for argparse, where it is read later: then only its metavar tells.
        elif action.type is Path or action.metavar in ("FILE", "PATH"):
            action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
