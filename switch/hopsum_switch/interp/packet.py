# SPDX-License-Identifier: Apache-2.0
"""One packet on its way through the pipeline.

All fields of all headers are one list of integers, indexed by `FieldIR.slot`. One validity flag (0 or 1) per header
follows, at `ValueLayout.valid`. Fields of a header that was never valid read 0. Fields of a header that was made
invalid keep their values until the packet is replicated, and then become 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..program.ir import STACK_STATE, DigestIR, ProgramIR
from ..program.ir_expressions import FieldIR, HeaderIR

NO_LIMIT = 1 << 62

Slots = tuple[int, ...]


class ValueLayout:
    """The positions of fields and flags in the list of values."""

    def __init__(self, program: ProgramIR) -> None:
        self._program = program
        self._fields = len(program.fields)
        # Copied for each packet: one list operation sets all fields to 0 and all metadata valid.
        self._template = [0] * (self._fields + len(program.headers))
        self._metadata: list[int] = []
        self._spans: list[tuple[int, int, int]] = []  # (validity slot, first field, past last field)
        self._owners = {header.name: header for header in program.headers.values() if not header.metadata}
        for header in program.headers.values():
            if header.metadata:
                self._template[self.valid(header)] = 1
                if header.name != STACK_STATE:
                    self._metadata += [member.slot for member in header.fields]
            elif header.fields:
                self._spans.append((self.valid(header), *self.span(header)))

    def valid(self, header: HeaderIR) -> int:
        """Return the slot of a header's validity."""
        return self._fields + header.index

    def valid_of(self, field: FieldIR) -> int | None:
        """Return the slot of the validity of a field's header, or None for metadata, which is always valid."""
        header = self._owners.get(field.header)
        return None if header is None else self.valid(header)

    def siblings(self, header: HeaderIR) -> list[int]:
        """Return the slots of validity that become 0 when this header becomes valid: the others of its union."""
        return [self.valid(sibling) for sibling in self._program.siblings(header)]

    def span(self, header: HeaderIR) -> tuple[int, int]:
        """Return the first slot of a header's fields and the one past the last."""
        first = header.fields[0].slot if header.fields else 0
        return first, first + len(header.fields)

    def initial_values(self) -> list[int]:
        """Return a new list with the values of a packet before parsing: only metadata is valid, all fields are 0."""
        return self._template.copy()

    def reset_metadata(self, values: list[int], source: list[int], preserved: Slots) -> None:
        """Set all metadata in `values` to 0 except the preserved slots, which are copied from `source`."""
        for slot in self._metadata:
            values[slot] = 0
        for slot in preserved:
            values[slot] = source[slot]

    def replicate_values(self, values: list[int]) -> list[int]:
        """Return a copy of values in which the fields of invalid headers are 0."""
        copy = values.copy()
        for valid, first, end in self._spans:
            if not copy[valid]:
                # bmv2 copies the fields of valid headers only, into zeros, and a program can read the others.
                copy[first:end] = [0] * (end - first)
        return copy


@dataclass(slots=True)
class PacketState:
    """The state of a packet that the constructs read and write."""

    values: list[int]
    data: bytes
    """The received frame, and after parsing the bytes after the parsed headers."""
    port: int
    now_us: int
    clone: tuple[int, Slots] | None = None
    """The requested session, and the slots of the metadata that the copy preserves."""
    digest: DigestIR | None = None
    resubmit: Slots | None = None
    """The slots of the metadata that a resubmit preserves, if one is requested."""
    recirculate: Slots | None = None
    position: int = 0
    limit: int = NO_LIMIT
    """The length to which truncate() cuts the frame."""
    exited: bool = False
    length: int = field(init=False)
    """The packet length that the program sees in egress."""
    received: int = field(init=False)
    """The number of bytes that counters add."""

    def __post_init__(self) -> None:
        self.length = self.received = len(self.data)

    def replicate(self, layout: ValueLayout) -> PacketState:
        """Return a copy for another egress port. The copy is not cut by truncate()."""
        copy = PacketState(layout.replicate_values(self.values), self.data, self.port, self.now_us)
        copy.length = self.length
        copy.received = self.received
        return copy


def wrap_signed(value: int, bits: int) -> int:
    """Return the value that a store leaves in a signed field, as bmv2 does.

    Values in [-2**(bits-1), 2**bits) are unchanged. That is no two's complement at the top. Others are wrapped.
    """
    # The format wraps only what leaves the range. A value of 2**(bits - 1) and more stays unsigned, as in bmv2.
    half = 1 << (bits - 1)
    if -half <= value < 2 * half:
        return value
    value &= 2 * half - 1
    return value - 2 * half if value >= half else value


def decode_signed(value: int, bits: int) -> int:
    """Return the two's complement value of `bits` bits read from a packet."""
    return value - (1 << bits) if value >> (bits - 1) else value


def store(values: list[int], field: FieldIR, value: int) -> None:
    """Store a value into a field, wrapped to its width."""
    if field.signed:
        values[field.slot] = wrap_signed(value, field.bits)
    else:
        values[field.slot] = value & ((1 << field.bits) - 1)
