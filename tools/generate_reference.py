# SPDX-License-Identifier: Apache-2.0
"""Generate the reference parts of the pages in docs/ from the code: Python API, commands, settings, metrics, errors.

A part stands between `<!-- generated: KIND ARGUMENTS -->` and `<!-- end -->`:

    python NAME [MEMBER ...]   the signature and docstring of a module, class or function; `*` for all its members
    quote PATH LANGUAGE WHERE  lines of a file, from the first that has WHERE (`after:WHERE`: from the next one), up
                               to a line that has the text after a further `before:`, or to the end
    commands                   every command, from its parser
    settings                   the settings of `hopsum.connect`
    context                    what operator commands read from the environment and from [context]
    controller-metrics         the metrics of the controller
    errors PACKAGE             the exceptions of a package, with their meaning and remedy

python tools/generate_reference.py             rewrite the parts
python tools/generate_reference.py --check     exit 1 with a diff if one is stale
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]

from hopsum.config import describe  # noqa: E402
from hopsum_cli.context import DEFAULT_CONTROLLER, KEYS, variable  # noqa: E402
from hopsum_controlplane.metrics.collect import FAMILIES, PREFIX  # noqa: E402
from p4_subset import write_or_compare  # noqa: E402
from reference_commands import cell, commands  # noqa: E402
from reference_docstrings import render  # noqa: E402
from reference_errors import errors  # noqa: E402

DOCS = ROOT / "docs"
PART = re.compile(r"^(<!-- generated: ([\w-]+)(.*?) -->\n).*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)


def python(name: str, *members: str) -> Iterator[str]:
    """Yield the signature and docstring of `name`, and of its members, `*` for all of them."""
    yield from ("", *render(name, [] if members == ("*",) else list(members) or None), "")


def quote(path: str, language: str, where: str, before: str = "") -> Iterator[str]:
    """Yield the lines of a file from `where` up to `before`, as a block of code."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    text = where.removeprefix("after:")
    first = next(number for number, line in enumerate(lines) if text in line) + (text != where)
    end = before.removeprefix("before:")
    last = next(n for n, line in enumerate(lines) if n > first and end in line) if end else len(lines)
    yield from ("", f"```{language}", *dedent("\n".join(lines[first:last])).strip("\n").splitlines(), "```", "")


def settings() -> Iterator[str]:
    """Yield the table of the settings of `hopsum.connect`."""
    yield from ("", "| setting | kind | default | meaning |", "|---|---|---|---|")
    for each in describe():
        yield f"| `{each.name}` | {each.kind} | {each.default} | {cell(each.meaning)} |"
    yield ""


def context() -> Iterator[str]:
    """Yield the table of the keys of [context], with their environment variables."""
    yield from ("", "| key of `[context]` | environment variable | default |", "|---|---|---|")
    for key in KEYS:
        yield f"| `{key}` | `{variable(key)}` | {DEFAULT_CONTROLLER if key == 'controller' else 'none'} |"
    yield ""


def controller_metrics() -> Iterator[str]:
    """Yield the table of the controller's metrics."""
    yield from ("", "| metric | type | labels | meaning |", "|---|---|---|---|")
    for name, kind, meaning, labels in FAMILIES:
        yield f"| `{PREFIX}{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {cell(meaning)} |"
    yield ""


KINDS: dict[str, Callable[..., Iterator[str]]] = {
    "python": python,
    "quote": quote,
    "commands": commands,
    "settings": settings,
    "context": context,
    "controller-metrics": controller_metrics,
    "errors": errors,
}


def rewritten(page: str) -> str:
    """Return a page with its parts made anew. Parts of other kinds belong to other generators, and stay."""

    def fresh(part: re.Match[str]) -> str:
        if part[2] not in KINDS:
            return part[0]
        return part[1] + "".join(f"{line}\n" for line in KINDS[part[2]](*shlex.split(part[3]))) + part[4]

    return PART.sub(fresh, page)


def main(argv: list[str] | None = None) -> int:
    """Rewrite the pages, or with --check compare them."""
    parser = argparse.ArgumentParser(description="generate the reference parts of the pages from the code")
    parser.add_argument("--check", action="store_true", help="exit 1 with a diff if a page is stale")
    options = parser.parse_args(argv)
    pages = {
        path: path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts
    }
    return max(write_or_compare(path, rewritten(page), check=options.check) for path, page in pages.items())


if __name__ == "__main__":
    sys.exit(main())
