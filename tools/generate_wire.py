# SPDX-License-Identifier: Apache-2.0
"""Generate host/hopsum/wire/_layout.py from p4/shared/{constants,types,headers}.p4.

    python tools/generate_wire.py             write the file
    python tools/generate_wire.py --check     exit 1 with a diff if the file is stale

The P4 subset understood is small and said here in full; anything else stops the run with file and line.
    comment lines, blank lines, `#include`, `#ifndef`, `#define NAME`, `#endif`
    const bit<N> NAME = number;                  one line
    typedef bit<N> name;                         one line
    header name {                                then one field a line, `type field;`, then `}`
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCES = tuple(ROOT / "p4" / "shared" / name for name in ("constants.p4", "types.p4", "headers.p4"))
TARGET = ROOT / "host" / "hopsum" / "wire" / "_layout.py"

ENUMS = {"KIND_": "Kind", "FLAG_": "Flag", "OP_": "Op", "STATE_": "State", "DROP_": "Drop", "EVENT_": "Event"}
"""Prefix of the P4 constants that become members of an IntEnum."""
ENUM_DOCS = {
    "Kind": "What a packet is.",
    "Flag": "Bits of the header's `flags`.",
    "Op": "What the switch does with a payload.",
    "State": "What a slot copy holds: `count` of a STATE.",
    "Drop": "Why a packet was dropped: index into the switch's `drops` counter.",
    "Event": "What a packet did: index into a job's part of the switch's `job_events` counter.",
}
PLAIN = {"DROP_REASONS"}
"""Constants that start like an enum's members and are none: sizes."""
DTYPE_HEADER = "hopsum_h"
"""The header that also gets a numpy dtype and a struct format."""
LINE_LENGTH = 110

_PREPROCESSOR = re.compile(r'#(include\s+"[\w./]+"|ifndef\s+\w+|define\s+\w+|endif)$')
_CONST = re.compile(r"const\s+bit<(\d+)>\s+([A-Z][A-Z0-9_]*)\s*=\s*(0x[0-9a-fA-F]+|\d+);$")
_TYPEDEF = re.compile(r"typedef\s+bit<(\d+)>\s+(\w+);$")
_HEADER = re.compile(r"header\s+(\w+)\s*\{$")
_FIELD = re.compile(r"(bit<(\d+)>|\w+)\s+(\w+);$")


class SyntaxRefused(Exception):
    """A source line is outside of the subset: extend the generator, or write the line in the subset."""


class Constant(NamedTuple):
    """One `const bit<N>`."""

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
        SyntaxRefused: a line is not in the subset, a value does not fit its width, or a name comes twice.
            The message names file, line and text.
    """
    header: list[HeaderField] | None = None
    for number, code, comment in _lines(text):
        try:
            header = _parse_line(code, comment, header, into)
        except SyntaxRefused as refused:
            raise SyntaxRefused(f"{name}:{number}: {refused}: {code!r}") from None
    if header is not None:
        raise SyntaxRefused(f"{name}: the last header is not closed")


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        code, _, comment = line.partition("//")
        if code.strip():
            yield number, code.strip(), comment.strip()


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
        raise SyntaxRefused("outside of the subset that this generator reads")
    return None


def _parse_constant(match: re.Match[str], comment: str, into: Declarations) -> Constant:
    bits, name, text = int(match[1]), match[2], match[3]
    if int(text, 0) >= 1 << bits:
        raise SyntaxRefused(f"{text} does not fit bit<{bits}>")
    _refuse_second(name, [constant.name for constant in into.constants])
    return Constant(name, int(text, 0), text, comment)


def _parse_field(code: str, comment: str, header: list[HeaderField], into: Declarations) -> HeaderField:
    match = _FIELD.match(code)
    if not match:
        raise SyntaxRefused("not a header field")
    _refuse_second(match[3], [other.name for other in header])
    bits = int(match[2]) if match[2] else into.types.get(match[1], 0)
    if not bits:
        raise SyntaxRefused(f"unknown type {match[1]}")
    return HeaderField(match[3], bits, comment)


def _refuse_second(name: str, taken: Collection[str]) -> None:
    if name in taken:
        raise SyntaxRefused(f"{name} is declared twice")


def render(declared: Declarations) -> str:
    """Return the text of the generated module."""
    parts = [_PREAMBLE]
    for prefix, name in ENUMS.items():
        members = [c for c in declared.constants if c.name.startswith(prefix) and c.name not in PLAIN]
        parts.append(f'\n\nclass {name}(IntEnum):\n    """{ENUM_DOCS[name]}"""\n\n')
        parts += [_assignment(f"    {c.name.removeprefix(prefix)} = {c.text}", c.comment) for c in members]
    parts.append("\n\n")
    enumerated = tuple(ENUMS)
    for constant in declared.constants:
        if constant.name in PLAIN or not constant.name.startswith(enumerated):
            parts.append(_assignment(f"{constant.name}: Final = {constant.text}", constant.comment))
    parts.append(_FIELD_CLASS)
    for name, fields in declared.headers.items():
        parts.append(_render_header(name, fields))
    parts.append("\nHEADERS: Final[dict[str, tuple[Field, ...]]] = {\n")
    parts += [f'    "{name}": {_fields_name(name)},\n' for name in declared.headers]
    parts.append("}\n\n" + _render_dtype(declared.headers[DTYPE_HEADER]))
    return "".join(parts)


def _assignment(code: str, comment: str) -> str:
    if not comment:
        return f"{code}\n"
    indent = code[: len(code) - len(code.lstrip())]
    line = f"{code}  # {comment}"
    return f"{line}\n" if len(line) <= LINE_LENGTH else f"{indent}# {comment}\n{code}\n"


def _fields_name(header: str) -> str:
    return header.removesuffix("_h").upper() + "_FIELDS"


def _render_header(name: str, fields: list[HeaderField]) -> str:
    lines, offset = [f"\n{_fields_name(name)}: Final = (\n"], 0
    for item in fields:
        lines.append(_assignment(f'    Field("{item.name}", {item.bits}, {offset}),', item.comment))
        offset += item.bits
    if offset % 8:
        raise SyntaxRefused(f"header {name} has {offset} bits, which are no whole bytes")
    lines.append(f")\n{name.removesuffix('_h').upper()}_BYTES: Final = {offset // 8}\n")
    return "".join(lines)


def _render_dtype(fields: list[HeaderField]) -> str:
    codes = {8: "B", 16: "H", 32: "I", 64: "Q"}
    if any(item.bits not in codes for item in fields):
        raise SyntaxRefused(f"{DTYPE_HEADER} needs fields of 8, 16, 32 or 64 bits for its dtype")
    prefix = DTYPE_HEADER.removesuffix("_h").upper()
    struct = "".join(codes[item.bits] for item in fields)
    lines = [f'{prefix}_STRUCT: Final = ">{struct}"\n', f"{prefix}_DTYPE: Final = np.dtype(\n    [\n"]
    lines += [f'        ("{item.name}", ">u{item.bits // 8}"),\n' for item in fields]
    return "".join(lines) + "    ]\n)\n"


_PREAMBLE = '''\
# SPDX-License-Identifier: Apache-2.0
"""The wire format: numbers, header fields, and the big-endian dtype of the hopsum header.

Generated by tools/generate_wire.py from p4/shared/{constants,types,headers}.p4: do not edit, run it again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
'''

_FIELD_CLASS = '''

class Field(NamedTuple):
    """One header field: its width and its offset from the start of the header, in bits."""

    name: str
    bits: int
    offset_bits: int

'''


def generate() -> str:
    """Return the text that the target should have."""
    declared = Declarations()
    for source in SOURCES:
        parse(source.read_text(encoding="utf-8"), source.name, declared)
    return render(declared)


def main(argv: list[str] | None = None) -> int:
    """Write the target, or with --check compare it."""
    parser = argparse.ArgumentParser(description="generate the wire layout from the P4 headers")
    parser.add_argument("--check", action="store_true", help="exit 1 with a diff if the file is stale")
    arguments = parser.parse_args(argv)
    wanted = generate()
    if not arguments.check:
        TARGET.write_text(wanted, encoding="utf-8")
        return 0
    present = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    sys.stdout.writelines(
        difflib.unified_diff(
            present.splitlines(keepends=True), wanted.splitlines(keepends=True), TARGET.name, "generated"
        )
    )
    return int(present != wanted)


if __name__ == "__main__":
    sys.exit(main())
