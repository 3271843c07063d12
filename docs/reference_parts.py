# SPDX-License-Identifier: Apache-2.0
"""Sphinx extension: parts of the reference pages that are made from the code when the pages are built.

A line `{{commands}}`, `{{settings}}`, `{{hooks}}`, `{{metrics}}` or `{{errors PACKAGE}}` of a page becomes Markdown.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ERROR_FOLDERS = ("base", "wire", "host", "switch", "controlplane", "topologies", "cli")
"""Folders whose public exceptions all have a remedy, or are marked as internal."""
PART = re.compile(r"^\{\{(\w+)(?: (\w+))?\}\}$", re.MULTILINE)


def commands() -> Iterator[str]:
    """Yield the help text of every command, in the order of `hopsum --help`."""
    from hopsum_cli.main import COMMANDS, SECTIONS

    # The order of `hopsum --help`, which groups commands by what their users do.
    for heading, words in SECTIONS.items():
        yield f"## {heading.capitalize()}\n"
        for word in words:
            for name, command in COMMANDS.items():
                if name == word or name.startswith(f"{word} "):
                    install = f"Install: `pip install 'hopsum[{command.extra}]'`\n" if command.extra else ""
                    yield from _command(name, import_module(command.module).build_parser(), install)


def _command(name: str, parser: argparse.ArgumentParser, install: str = "") -> Iterator[str]:
    yield f"### hopsum {name}\n"
    yield install
    # argparse shows the folder of this user's sockets, and this machine's colours.
    text = re.sub(r"unix:\S*/hopsum-\d+/", "unix:$XDG_RUNTIME_DIR/hopsum-UID/", parser.format_help())
    yield "```text\n" + re.sub(r"\x1b\[[\d;]*m", "", text) + "```\n"
    # argparse has no public way to the parsers of further words.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from _command(f"{name} {word}", below)


def settings() -> Iterator[str]:
    """Yield the table of the settings of `hopsum.connect`."""
    from hopsum.config import describe

    rows = ((f"`{each.name}`", each.kind, each.default, each.meaning) for each in describe())
    yield from _table(("setting", "kind", "default", "meaning"), rows)


def hooks() -> Iterator[str]:
    """Yield the table of the options of hooks that the environment may have."""
    from hopsum.config import HookSettings, describe

    rows = ((f"`{each.environment}`", each.kind, each.default, each.meaning) for each in describe(HookSettings))
    yield from _table(("variable", "kind", "default", "meaning"), rows)


def metrics() -> Iterator[str]:
    """Yield the table of the controller's metrics."""
    from hopsum_controlplane.web.prometheus_metrics import FAMILIES, PREFIX

    rows = (
        (f"`{PREFIX}{name}`", kind, ", ".join(f"`{label}`" for label in labels), meaning)
        for name, kind, meaning, labels in FAMILIES
    )
    yield from _table(("metric", "type", "labels", "meaning"), rows)


def remedies() -> tuple[dict[str, str], dict[str, str]]:
    """Return the remedy of each exception that a user meets, and the end of each other one, by class name."""
    read = tomllib.loads((ROOT / "docs" / "reference" / "error_remedies.toml").read_text(encoding="utf-8"))
    return read["remedies"], read["internal"]


def errors(package: str) -> Iterator[str]:
    """Yield the table of the exceptions of a package: name, meaning (the docstring) and remedy."""
    modules = exceptions()
    rows = (
        (f"`{name}`<br>{modules[name]}", resolve_name(f"{modules[name]}:{name}").__doc__, remedy)
        for name, remedy in remedies()[0].items()
        if modules[name].split(".")[0] == package
    )
    yield from _table(("error", "meaning", "remedy"), rows)


def exceptions() -> dict[str, str]:
    """Return the module of each public exception class below ERROR_FOLDERS."""
    found = {}
    for folder in ERROR_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and not node.name.startswith("_"):
                    found[node.name] = module
    return found


def _table(columns: tuple[str, ...], rows: Any) -> Iterator[str]:
    for row in (columns, ("---",) * len(columns), *rows):
        cells = (" ".join(str(cell).split()).replace("|", r"\|").replace("*", r"\*") for cell in row)
        yield f"| {' | '.join(cells)} |"
    yield ""


PARTS = {"commands": commands, "settings": settings, "hooks": hooks, "metrics": metrics, "errors": errors}


def _fill(_app: object, _name: str, source: list[str]) -> None:
    def part(found: re.Match[str]) -> str:
        return "\n".join(PARTS[found[1]](*filter(None, [found[2]])))

    source[0] = PART.sub(part, source[0])


def _separate_lists(_app: object, _what: str, _name: str, _found: object, _options: object, lines: list[str]) -> None:
    """Make a list of the lines `name: meaning` of a docstring, with their continuation lines.

    reStructuredText wants a marker and blank lines, and docstrings have none: people read them in the source.
    """
    made: list[str] = []
    item_depth = None
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if re.match(r" {0,4}`?\*{0,2}\w+`?(?:, `?\w+`?)*: \S", line):
            if item_depth is None:
                made.append("")
            item_depth = depth
            made.append(f"- {line.strip()}")
        elif item_depth is not None and line.strip() and depth > item_depth:
            made.append(f"  {line.strip()}")
        else:
            if item_depth is not None:
                made.append("")
            item_depth = None
            made.append(line)
    lines[:] = made


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    # argparse wraps to the terminal, and a build has none.
    os.environ["COLUMNS"] = "100"  # the width of help texts
    # Parsers without a `prog` name themselves after the running program, which is Sphinx.
    sys.argv[0] = "hopsum"
    app.connect("source-read", _fill)
    app.connect("autodoc-process-docstring", _separate_lists)
    return {"parallel_read_safe": True}
