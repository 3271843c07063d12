# SPDX-License-Identifier: Apache-2.0
"""Markdown of every command: what it does, its usage, and a table of its arguments and options, from the parsers.

`format_help` of argparse writes options differently from one Python version to the next, and wraps lines to the
terminal. The tables here have the same words without either.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from hopsum_cli.main import COMMANDS, SECTIONS

_BOOLEAN_SUFFIX = " (default: %(default)s)"
"""Appended to the help of a BooleanOptionalAction by Python 3.11 and 3.12, and by no later one."""
_OWN_FOLDER = re.compile(r"unix:\S*/hopsum-\d+/")
"""The folder of a user's sockets, whose path depends on the user and on the machine."""

_Shown = dict[tuple[Any, ...], str]
"""The first command that has a group of options, by title and rows of the group."""


def commands() -> Iterator[str]:
    """Yield the lines of all commands, in the order and under the headings of `hopsum --help`."""
    shown: _Shown = {}
    for section in SECTIONS:
        yield from ("", f"## {section.title[:1].upper()}{section.title[1:]}")
        for word in section.words:
            for name, command in COMMANDS.items():
                if name == word or name.startswith(f"{word} "):
                    extra = f"`pip install 'hopsum[{command.extra}]'`" if command.extra else ""
                    parser = import_module(command.module).build_parser()
                    yield from _command(name, command.summary, parser, shown, extra)
    yield ""


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _command(name: str, summary: str, parser: argparse.ArgumentParser, shown: _Shown, extra: str = "") -> Iterator[str]:
    description = parser.description or _sentence(summary)
    yield from ("", f"### hopsum {name}", "", *(escaped(line) for line in description.strip().splitlines()))
    yield from ("", f"Install: {extra}") if extra else ()
    words = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    yield from ("", "```text", usage(f"hopsum {name}", parser), "```")
    for title, description, rows in _groups(parser):
        if title and (first := shown.setdefault((title, *rows), name)) != name:
            yield from ("", f"{_sentence(title)} The options of [`hopsum {first}`](#hopsum-{first.replace(' ', '-')}).")
            continue
        heading = f"{_sentence(title)} {escaped(_sentence(description)) if description else ''}".strip()
        yield from ("", *([heading, ""] if title else []))
        yield from ("| argument | meaning |", "|---|---|", *(f"| {each} | {meaning} |" for each, meaning in rows))
    if parser.epilog:
        yield from ("", "```text", *parser.epilog.strip("\n").splitlines(), "```")
    for action in words:
        summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for word, below in action.choices.items():
            yield from _command(f"{name} {word}", summaries[word], below, shown)


def usage(name: str, parser: argparse.ArgumentParser) -> str:
    """Return the command with its required options and its positional arguments, on one line."""
    parts, optional = [name], False
    for action in parser._actions:
        if action.option_strings:
            if action.required:
                parts.append(" ".join([action.option_strings[-1], *_values(action)]))
            optional = optional or not action.required
    parts += ["[OPTION ...]"] if optional else []
    for action in parser._actions:
        if not action.option_strings:
            parts += _values(action)
    return " ".join(parts)


def _groups(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield title, description and rows of each group that has arguments; the two standard groups are one, untitled."""
    plain = [
        _row(action) for group in parser._action_groups[:2] for action in group._group_actions if _is_shown(action)
    ]
    if plain:
        yield "", "", plain
    for group in parser._action_groups[2:]:
        rows = [_row(action) for action in group._group_actions if _is_shown(action)]
        if rows:
            yield group.title or "", group.description or "", rows


def _is_shown(action: argparse.Action) -> bool:
    return action.help is not argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)


def _row(action: argparse.Action) -> tuple[str, str]:
    """Return an argument as it is written, and its meaning with defaults filled in and choices named."""
    values = _values(action)
    spelled = [" ".join([option, *values]) for option in action.option_strings] or values
    choices = "" if isinstance(action, argparse._SubParsersAction) else _choices(action)
    return ", ".join(f"`{each}`" for each in spelled).replace("|", r"\|"), f"{cell(_help(action))}{choices}"


def _help(action: argparse.Action) -> str:
    text = action.help or ""
    if isinstance(action, argparse._SubParsersAction) and not text:
        return f"one of {', '.join(action.choices)}, below"
    if isinstance(action, argparse.BooleanOptionalAction):
        text = text.removesuffix(_BOOLEAN_SUFFIX)
    known: dict[str, Any] = {**vars(action), "prog": "hopsum"}
    known["choices"] = ", ".join(map(str, action.choices or ()))
    return _OWN_FOLDER.sub("unix:$XDG_RUNTIME_DIR/hopsum-UID/", text % known)


def _choices(action: argparse.Action) -> str:
    """Return the choices, where neither the help text nor the metavar has them."""
    if action.choices is None or action.metavar is None or "%(choices)" in (action.help or ""):
        return ""
    return f"; one of {', '.join(f'`{each}`' for each in action.choices)}"


def _values(action: argparse.Action) -> list[str]:
    """Return the values that follow an option, or a positional argument, in the notation of usage lines."""
    if action.nargs == 0:
        return []
    if action.metavar is not None:
        name = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    elif action.choices is not None:
        name = f"{{{','.join(map(str, action.choices))}}}"
    else:
        name = action.dest.upper() if action.option_strings else action.dest
    if isinstance(action.metavar, tuple):
        return [name]
    match action.nargs:
        case None | "A...":
            return [name]
        case "?":
            return [f"[{name}]"]
        case "*":
            return [f"[{name} ...]"]
        case "+":
            return [f"{name} [{name} ...]"]
        case "...":
            return [f"[{name} ...]"]
        case count:
            return [" ".join([name] * int(count))]


def escaped(text: str) -> str:
    """Return a text in which `<` and `*` outside of code stand for themselves."""
    parts = text.split("`")
    return "`".join(
        part if index % 2 else re.sub(r"\*", r"\\*", re.sub(r"<(?=[\w/])", "&lt;", part))
        for index, part in enumerate(parts)
    )


def cell(text: str) -> str:
    """Return a text as one cell of a table."""
    return escaped(" ".join(text.split())).replace("|", r"\|")
