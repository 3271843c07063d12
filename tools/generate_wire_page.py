# SPDX-License-Identifier: Apache-2.0
"""Generate docs/wire.md from p4/shared: headers as diagrams, constants, payloads, and packets made with hopsum_wire.

python tools/generate_wire_page.py             write the page
python tools/generate_wire_page.py --check     exit 1 with a diff if it is stale
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]

from hopsum_oracle.admission import JOB_CHECKS, PACKET_CHECKS  # noqa: E402
from hopsum_wire import Drop, Op  # noqa: E402
from hopsum_wire.payload import SHAPES  # noqa: E402
from p4_subset import Constant, Declarations, read_shared, write_or_compare  # noqa: E402
from wire_page_parts import constant_rows, diagram, dump, examples, field_rows, table  # noqa: E402

TARGET = ROOT / "docs" / "wire.md"
MAIN_HEADER = "hopsum_h"
ORDER_OF_CHECKS = (
    *(Drop.TRUNCATED, Drop.BAD_CHECKSUM),
    *(reason for reason, _ in PACKET_CHECKS),
    *(Drop.UNKNOWN_GENERATION, Drop.UNKNOWN_WORKER),
    *(reason for reason, _ in JOB_CHECKS),
    Drop.OP_MISMATCH,
)
"""The order in which the switch checks a packet for the service."""


_SPECIAL = {Op.OR: "a bitmap of 8192 bits", Op.MAX32: "256 lanes of 31 bits"}


def render(declared: Declarations) -> str:
    """Return the page."""
    lines = [*_INTRODUCTION.splitlines(), ""]
    lines += [*_header(declared, MAIN_HEADER, "## The hopsum header"), ""]
    lines += ["## Payloads", "", *_payloads(declared), ""]
    lines += ["## Packets", "", "Made with `hopsum_wire`.", "", *_packets()]
    lines += ["## Dropped frames", "", *_drops(), ""]
    lines += ["## Numbers", "", *_constants(declared)]
    lines += ["## Headers below", ""]
    for name in declared.headers:
        if name != MAIN_HEADER:
            lines += [*_header(declared, name, f"### {name.removesuffix('_h')}"), ""]
    return "\n".join(lines).rstrip() + "\n"


def _header(declared: Declarations, name: str, title: str) -> Iterator[str]:
    fields = declared.headers[name]
    yield from (title, "")
    size = f"{sum(field.bits for field in fields) // 8} bytes."
    description = declared.descriptions.get(name, size)
    yield from (description if size.rstrip(".") in description else f"{description} {size}", "")
    yield from ("```", *diagram(fields), "```", "")
    yield from table(("byte", "bits", "field", "meaning"), field_rows(fields))


def _payloads(declared: Declarations) -> Iterator[str]:
    rows = []
    for op in Op:
        shape = SHAPES[op]
        lanes = shape.down_bytes * 8 // shape.sum_bits
        down = _SPECIAL.get(op, f"{lanes} lanes of {shape.sum_bits} bits")
        up = f"{shape.elements} codes of 4 bits" if shape.has_codes else down
        rows.append((op.value, op.name, up, shape.up_bytes, down, shape.down_bytes))
    yield from table(("op", "", "UPDATE carries", "bytes", "RESULT carries", "bytes"), rows)
    yield from ("", "STALE, PROBE and STATE have no payload. OR's lanes are the bytes of a bitmap, the first bit the")
    yield from ("highest of the first byte.", "")
    yield from (*_order_of(declared, "LANE_GROUP_CODES"), "")
    yield from (
        "```",
        *_code_order(8, 2),
        *_code_order(16, 2),
        "```",
        "",
        "The reason: [ADR 6](adr/0006-lane-order.md).",
        "",
        *_order_of(declared, "PACKED_LANE_BITS"),
    )


def _order_of(declared: Declarations, constant: str) -> list[str]:
    """Return the text above a constant, without its title."""
    (order,) = {c.group for c in declared.constants if c.name == constant}
    return wrap(order.partition(". ")[2], 118)


def _code_order(lane_bits: int, words: int) -> Iterator[str]:
    """Yield the codes in the first words of a group, nibble by nibble."""
    nibbles, count = lane_bits // 4, 512 * 4 // lane_bits
    shown = [" ".join(f"{word + nibble * count:>3}" for nibble in range(nibbles)) for word in range(words)]
    last = " ".join(f"{count - 1 + nibble * count:>3}" for nibble in range(nibbles))
    yield f"LOOKUP_ADD{lane_bits:<2}  codes, nibble by nibble | {' | '.join(shown)} | ... | {last} |"


def _packets() -> Iterator[str]:
    for title, data, header_at in examples():
        yield from (title, "", "```", *dump(data, header_at), "```", "")


def _drops() -> Iterator[str]:
    order = ", ".join(reason.name for reason in ORDER_OF_CHECKS)
    yield "Every frame for the service that is not acted upon is counted under the first reason that applies, in this"
    yield "order:"
    yield from ("", *wrap(f"{order}.", 118), "")
    yield "A packet of an older round is STALE whatever its op: OP_MISMATCH is for the round that the copy holds. Plain"
    yield "frames without a known destination count as NO_ROUTE, a ping to the switch with a wrong IPv4 checksum as"
    yield "BAD_CHECKSUM, frames that the loss simulator takes on their way in as SIMULATED."


def _constants(declared: Declarations) -> Iterator[str]:
    for section, in_section in groupby(declared.constants, key=lambda constant: constant.section):
        title = section or "of the layers below"
        yield from (f"### {title[0].upper()}{title[1:]}", "")
        for heading, group in groupby(in_section, key=lambda constant: constant.group):
            yield from _group(heading, list(group))


def _group(heading: str, group: list[Constant]) -> Iterator[str]:
    if heading:
        title = heading.partition(". ")[0]  # a longer text stands where it belongs
        yield from (f"{title[0].upper()}{title[1:]}", "")
    yield from (*table(("name", "value", "meaning"), constant_rows(group)), "")


_INTRODUCTION = """\
# The wire

Generated by `tools/generate_wire_page.py` from `p4/shared`, the wire format's only source (`make generate`): do not
edit.

Ethernet / IPv4 / UDP / hopsum header / payload. Everything is big-endian; bit 0 of a diagram is the highest bit of the
first byte. The service has its UDP port on the switch's address, and replies come from there. A frame fits an MTU of
1500 bytes.

What the packets mean stands in [the protocol](protocol.md)."""


def main(argv: list[str] | None = None) -> int:
    """Write the page, or with --check compare it."""
    parser = argparse.ArgumentParser(description="generate the wire page from the P4 headers")
    parser.add_argument("--check", action="store_true", help="exit 1 with a diff if the page is stale")
    return write_or_compare(TARGET, render(read_shared()), check=parser.parse_args(argv).check)


if __name__ == "__main__":
    sys.exit(main())
