# SPDX-License-Identifier: Apache-2.0
"""Read p4/shared, the only source of the wire format: constants, types and headers with their comments.

The P4 subset is small and given here in full. Any other line stops the run with file and line.
    comment lines, blank lines, `#include`, `#ifndef`, `#define NAME`, `#endif`
    const bit<N> NAME = number;                  one line
    typedef bit<N> name;                         one line
    header name {                                then one field a line, `type field;`, then `}`

A comment after a declaration describes this declaration. Comment lines are for readers of the source only.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCES = tuple(ROOT / "p4" / "shared" / name for name in ("constants.p4", "requantize.p4", "types.p4", "headers.p4"))

_PREPROCESSOR = re.compile(r'#(include\s+"[\w./]+"|ifndef\s+\w+|define\s+\w+|endif)$')
_CONST = re.compile(r"const\s+bit<(\d+)>\s+([A-Z][A-Z0-9_]*)\s*=\s*(0x[0-9a-fA-F]+|\d+);$")
_TYPEDEF = re.compile(r"typedef\s+bit<(\d+)>\s+(\w+);$")
_HEADER = re.compile(r"header\s+(\w+)\s*\{$")
_FIELD = re.compile(r"(bit<(\d+)>|\w+)\s+(\w+);$")


class SubsetError(Exception):
    """A source line is outside of the subset: extend the generator, or write the line in the subset."""


class Constant(NamedTuple):
    """One `const bit<N>` with its comment, which may be empty."""

    name: str
    value: int
    text: str
    comment: str


class HeaderField(NamedTuple):
    """One field of a header, with its width in bits."""

    name: str
    bits: int
    comment: str


@dataclass
class Declarations:
    """Everything that the sources declare, in their order."""

    constants: list[Constant] = field(default_factory=list)
    types: dict[str, int] = field(default_factory=dict)
    headers: dict[str, list[HeaderField]] = field(default_factory=dict)


def parse(text: str, name: str, into: Declarations) -> None:
    """Add the declarations of one source to `into`.

    Raises:
        SubsetError: a line is not in the subset, a value does not fit its width, or a name comes twice.
            The message names file, line and text.
    """
    header: list[HeaderField] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        code, _, comment = (part.strip() for part in line.partition("//"))
        if not code:
            continue
        try:
            header = _parse_line(code, comment, header, into)
        except SubsetError as refused:
            raise SubsetError(f"{name}:{number}: {refused}: {code!r}") from None
    if header is not None:
        raise SubsetError(f"{name}: the last header is not closed")


def _parse_line(
    code: str, comment: str, header: list[HeaderField] | None, into: Declarations
) -> list[HeaderField] | None:
    """Return the header that the next line belongs to, or None outside of a header."""
    if header is not None:
        if code == "}":
            return None
        header.append(_parse_field(code, comment, header, into))
        return header
    if match := _HEADER.match(code):
        _refuse_second(match[1], into.headers)
        return into.headers.setdefault(match[1], [])
    if match := _CONST.match(code):
        into.constants.append(_parse_constant(match, comment, into))
    elif match := _TYPEDEF.match(code):
        _refuse_second(match[2], into.types)
        into.types[match[2]] = int(match[1])
    elif not _PREPROCESSOR.match(code):
        raise SubsetError("outside of the subset that this generator reads")
    return None


def _parse_constant(match: re.Match[str], comment: str, into: Declarations) -> Constant:
    bits, name, text = int(match[1]), match[2], match[3]
    if int(text, 0) >= 1 << bits:
        raise SubsetError(f"{text} does not fit bit<{bits}>")
    # C's preprocessor would take the last one; two values for one name are a mistake here.
    _refuse_second(name, [constant.name for constant in into.constants])
    return Constant(name, int(text, 0), text, comment)


def _parse_field(code: str, comment: str, header: list[HeaderField], into: Declarations) -> HeaderField:
    match = _FIELD.match(code)
    if not match:
        raise SubsetError("not a header field")
    _refuse_second(match[3], [other.name for other in header])
    # A field's type is bit<N> or the name of a typedef that came before.
    bits = int(match[2]) if match[2] else into.types.get(match[1], 0)
    if not bits:
        raise SubsetError(f"unknown type {match[1]}")
    return HeaderField(match[3], bits, comment)


def _refuse_second(name: str, taken: Collection[str]) -> None:
    if name in taken:
        raise SubsetError(f"{name} is declared twice")


def read_shared() -> Declarations:
    """Return the declarations of p4/shared. Raises SubsetError."""
    declared = Declarations()
    for source in SOURCES:
        parse(source.read_text(encoding="utf-8"), source.name, declared)
    return declared


def write_or_compare(target: Path, wanted: str, *, check: bool) -> int:
    """Write a generated file and return 0. With `check` print the difference instead and return 1 if there is one."""
    if not check:
        target.write_text(wanted, encoding="utf-8")
        return 0
    present = target.read_text(encoding="utf-8") if target.exists() else ""
    lines = [text.splitlines(keepends=True) for text in (present, wanted)]
    sys.stdout.writelines(difflib.unified_diff(lines[0], lines[1], target.name, "generated"))
    return int(present != wanted)
