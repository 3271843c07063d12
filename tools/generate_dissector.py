# SPDX-License-Identifier: Apache-2.0
"""Generate wire/hopsum_wire/hopsum.lua, Wireshark's dissector of the packet, from p4/shared.

    python tools/generate_dissector.py             write the file
    python tools/generate_dissector.py --check     exit 1 with a diff if the file is stale

The Lua interface is that of Wireshark 3 and later: https://www.wireshark.org/docs/wsdg_html_chunked/wsluarm.html
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]

from p4_subset import Declarations, HeaderField, SubsetError, read_shared, write_or_compare  # noqa: E402

TARGET = ROOT / "wire" / "hopsum_wire" / "hopsum.lua"
HEADER = "hopsum_h"
VALUES = {"kind": "KIND_", "op": "OP_"}
"""The fields whose values have names, and the prefix of these constants."""
FLAGS = "flags"
BITMAP = "contributors"
FLAG_PREFIX, STATE_PREFIX = "FLAG_", "STATE_"
HEXADECIMAL = (FLAGS, BITMAP)


def render(declared: Declarations) -> str:
    """Return the text of the dissector. Raises SubsetError."""
    fields = declared.headers[HEADER]
    header_bytes = sum(item.bits for item in fields) // 8
    numbers = {constant.name: constant.value for constant in declared.constants}
    parts = [_PREAMBLE, f"local WIRE_VERSION, UDP_PORT = {numbers['WIRE_VERSION']}, {numbers['HOPSUM_UDP_PORT']}\n"]
    parts.append(f"local HEADER_BYTES = {header_bytes}\n")
    for name, prefix in (*VALUES.items(), ("state", STATE_PREFIX)):
        parts.append(f"local {name}_names = {{ {', '.join(_names(declared, prefix))} }}\n")
    parts.append("\nlocal f = hopsum.fields\n")
    parts += [_proto_field(item) for item in fields]
    flags = [constant for constant in declared.constants if constant.name.startswith(FLAG_PREFIX)]
    flag_bits = next(item.bits for item in fields if item.name == FLAGS)
    for flag in flags:
        name = flag.name.removeprefix(FLAG_PREFIX)
        arguments = f'"hopsum.flags.{name.lower()}", "{name}", {flag_bits}, nil, {flag.value}, {_quoted(flag.comment)}'
        parts.append(f"f.flag_{name.lower()} = ProtoField.bool({arguments})\n")
    parts.append('f.payload = ProtoField.bytes("hopsum.payload", "payload")\n')
    parts.append(_RANKS)
    parts += _dissect(fields, [flag.name.removeprefix(FLAG_PREFIX).lower() for flag in flags])
    return "".join(parts)


def _names(declared: Declarations, prefix: str) -> Iterator[str]:
    for constant in declared.constants:
        if constant.name.startswith(prefix):
            yield f'[{constant.value}] = "{constant.name.removeprefix(prefix)}"'


def _proto_field(item: HeaderField) -> str:
    # Wireshark's ProtoField has no other widths.
    if item.bits not in (8, 16, 32, 64):
        raise SubsetError(f"{HEADER}.{item.name} has {item.bits} bits: the dissector knows 8, 16, 32 and 64")
    base = "base.HEX" if item.name in HEXADECIMAL else "base.DEC"
    values = f"{item.name}_names" if item.name in VALUES else "nil"
    arguments = f'"hopsum.{item.name}", "{item.name}", {base}, {values}, nil, {_quoted(item.comment)}'
    return f"f.{item.name} = ProtoField.uint{item.bits}({arguments})\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _dissect(fields: list[HeaderField], flags: list[str]) -> Iterator[str]:
    """Yield the function that Wireshark calls for a datagram, with the offset of every field in it."""
    at = {}
    offset = 0
    for item in fields:
        at[item.name], offset = f"tvb({offset}, {item.bits // 8})", offset + item.bits // 8
    yield _BEGINNING
    for item in fields:
        if item.name == FLAGS:
            yield f"    local flags = tree:add(f.flags, {at[FLAGS]})\n"
            yield from (f"    flags:add(f.flag_{flag}, {at[FLAGS]})\n" for flag in flags)
        # 64 bits are no number in Lua 5.1, so ranks are read byte by byte.
        elif item.name == BITMAP:
            yield f"    tree:add(f.{BITMAP}, {at[BITMAP]}):append_text(ranks({at[BITMAP]}))\n"
        else:
            yield f"    tree:add(f.{item.name}, {at[item.name]})\n"
    # The info column has the words that tell rounds apart, in the order in which people look for them.
    words = ("worker", "generation", "slot", "round")
    yield f'    local kind = kind_names[{at["kind"]}:uint()] or "unknown kind"\n'
    yield f"    local info, op = kind, op_names[{at['op']}:uint()]\n"
    yield '    if op then info = info .. " " .. op end\n'
    for word in words:
        yield f'    info = info .. " {word} " .. {at[word]}:uint()\n'
    yield f'    if kind == "STALE" then info = info .. " held " .. {at["held"]}:uint() end\n'
    yield f'    if kind == "STATE" then info = info .. " " .. (state_names[{at["count"]}:uint()] or "") end\n'
    yield _END.replace("@length@", at["length"])


_PREAMBLE = """\
-- SPDX-License-Identifier: Apache-2.0
-- Wireshark's dissector of the hopsum packet.
-- Generated by tools/generate_dissector.py from p4/shared: do not edit, run it again.

local hopsum = Proto("hopsum", "hopsum, in-network aggregation")
"""

_RANKS = """
-- Return the ranks of a contributors bitmap as text.
local function ranks(range)
    local found, bytes = {}, range:bytes()
    for rank = 0, range:len() * 8 - 1 do
        local byte = bytes:get_index(range:len() - 1 - math.floor(rank / 8))
        if math.floor(byte / 2 ^ (rank % 8)) % 2 == 1 then found[#found + 1] = rank end
    end
    return #found > 0 and " workers " .. table.concat(found, " ") or ""
end
"""

_BEGINNING = """
function hopsum.dissector(tvb, packet, root)
    if tvb:len() < HEADER_BYTES or tvb(0, 1):uint() ~= WIRE_VERSION then return 0 end
    packet.cols.protocol = "hopsum"
    local tree = root:add(hopsum, tvb())
"""

_END = """\
    packet.cols.info = info
    tree:append_text(", " .. info)
    local length = math.min(@length@:uint(), tvb:len() - HEADER_BYTES)
    if length > 0 then tree:add(f.payload, tvb(HEADER_BYTES, length)) end
    return HEADER_BYTES + length
end

DissectorTable.get("udp.port"):add(UDP_PORT, hopsum)
"""


def generate() -> str:
    """Return the text that the target should have."""
    return render(read_shared())


def main(argv: list[str] | None = None) -> int:
    """Write the target, or with --check compare it."""
    parser = argparse.ArgumentParser(description="generate Wireshark's dissector from the P4 headers")
    parser.add_argument("--check", action="store_true", help="exit 1 with a diff if the file is stale")
    return write_or_compare(TARGET, generate(), check=parser.parse_args(argv).check)


if __name__ == "__main__":
    sys.exit(main())
