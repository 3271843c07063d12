# SPDX-License-Identifier: Apache-2.0
"""The layout of a packet's state in memory, in 64-bit words.

Integers are arrays of words, least significant first, whatever their width: one word up to 64 bits, as many
as needed up to 256, beyond that a multiple of eight words (one vector of 512 bits, aligned to 64 bytes). Words
above the width are zero, or the sign of a signed field. Bytes are swapped where headers meet the wire.

The state of one packet:

| words | |
|---|---|
| 0..7 | `Word` |
| 8.. | validity of each header, 0 or 1 |
| then | whether each lazy region is in memory, 0 or 1 |
| then | the fields, header by header |
| then | the lazy regions: wide headers, and wide fields of metadata |
| then | fields that live within one action only, neither cleared nor copied |

All fields are 0 when a packet starts, but a lazy region is not cleared: as long as its flag is 0 its fields are 0,
whatever its memory holds. The flag is set by an access that fills the whole region, or, after clearing it, by the first
other access (`FunctionScope.readable`, `FunctionScope.target`). So a wide header that is extracted, or never touched,
is not cleared. A valid header is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ..program.ir import ActionIR, ProgramIR, TableIR
from ..program.ir_expressions import FieldIR, HeaderIR
from .liveness import changed_by_egress, copied_as_wholes, egress_changes_validity, named_slots, temporaries

WORD_BITS = 64
PIECE_WORDS = 8
PIECE_BITS = WORD_BITS * PIECE_WORDS
# LLVM turns longer integers into long sequences of single words, where vectors take eight at a time.
# Wider values are worked on piece by piece.
WHOLE_BITS = 256


class Word(IntEnum):
    """Words at the start of a packet's state."""

    RECEIVED = 0  # bytes of the frame
    POSITION = 1  # of the parser
    LENGTH = 2  # the packet length that egress sees
    LIMIT = 3  # the cut by truncate()
    EXITED = 4
    FRAME = 5  # address
    DATA = 6  # where the unparsed rest starts in the frame
    ERROR = 7  # of the parser


class ControlWord(IntEnum):
    """Words of the block through which Python and native code meet."""

    FRAMES = 0  # address of the received bytes
    OFFSETS = 1  # address: where each frame starts
    LENGTHS = 2
    PORTS = 3
    COUNT = 4
    NOW = 5
    OUT = 6  # address of the bytes to send
    OUT_CAPACITY = 7
    OUT_PORTS = 8
    OUT_LENGTHS = 9
    OUT_SOURCES = 10
    OUT_RECORDS = 11  # how many outputs fit
    DONE = 12  # frames that were processed
    OUTPUTS = 13
    OUT_USED = 14
    STEPS_TAKEN = 15  # by the frames of this call
    OUT_OF_STEPS = 16  # frames of this call that were dropped for it
    OUT_OF_RANGE = 17  # indices outside arrays in this call
    STEPS = 18  # that the frame has left; all ones: it is dropped
    STATE = 19
    REPLICA = 20
    SCRATCH = 21
    FILTER = 22  # address of one bit per port that exists, or 0: every port exists
    GROUPS = 23  # address of (first replica << 32 | replicas) per group number
    REPLICAS = 24  # address of (port, instance) pairs
    MAX_COPIES = 25
    REGISTERS = 26
    COUNTERS = 27
    RANDOM = 28  # the state of random()
    TABLES = 29  # the first table's `TableWord`s


class TableWord(IntEnum):
    """Words that describe one table."""

    SLOTS = 0  # exact: address of the hash slots: record number + 1, or 0
    SLOT_MASK = 1
    KEYS = 2  # address
    RECORDS = 3  # address: action number, then arguments at word 8
    COUNT = 4
    HITS = 5  # address of (packets, bytes) pairs
    DEFAULT = 6  # number of the record of a miss
    SIZE = 8


# An action number needs one word. The arguments begin a vector, so that wide arguments are aligned.
RECORD_HEADER = PIECE_WORDS
NO_ACTION = -1


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple


def words_for(bits: int) -> int:
    """Return the number of words that hold an integer of `bits` bits."""
    words = -(-bits // WORD_BITS)
    return words if bits <= WHOLE_BITS else round_up(words, PIECE_WORDS)


@dataclass(frozen=True, slots=True)
class StoredInteger:
    """The place of an integer in memory: word offset, width in bits and sign."""

    offset: int
    bits: int
    signed: bool = False

    @property
    def words(self) -> int:
        """The number of 64-bit words in memory. A signed field needs one bit more."""
        return words_for(self.bits + self.signed)

    @property
    def is_wide(self) -> bool:
        """Whether the field has at least a piece of words, and so begins and ends at whole pieces."""
        return self.words >= PIECE_WORDS


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the state that is cleared when it is first needed. `flag` is the word that is set then."""

    flag: int
    first: int
    words: int
    whole_field: bool  # of metadata; otherwise all fields of a header


class _Cursor:
    def __init__(self, at: int = 0) -> None:
        self.at = at

    def place(self, bits: int, signed: bool = False) -> StoredInteger:
        if words_for(bits + signed) >= PIECE_WORDS:
            self.align()
        place = StoredInteger(self.at, bits, signed)
        self.at += place.words
        return place

    def align(self) -> int:
        self.at = round_up(self.at, PIECE_WORDS)
        return self.at


_latest: tuple[str, MemoryLayout] | None = None


def layout_of(program: ProgramIR) -> MemoryLayout:
    """Lay a program out in memory. The latest layout is kept for the next engine of the same program."""
    # Most of the time to load a compiled program goes into the analysis of how long fields live, and a controller
    # pushes the same program again and again. One assignment replaces the pair, so threads need no lock.
    global _latest
    kept = _latest
    if kept is None or kept[0] != program.digest:
        kept = _latest = program.digest, MemoryLayout(program)
    return kept[1]


class MemoryLayout:
    """Offsets of a program's fields, registers, counters and tables. It does not change."""

    def __init__(self, program: ProgramIR) -> None:
        self.temporaries = temporaries(program, _is_wide)
        self._fields: dict[int, StoredInteger] = {}
        self._spans: dict[int, tuple[int, int]] = {}
        self._regions: dict[int, Region] = {}
        late_headers = [h for h in program.headers.values() if not h.metadata and any(map(_is_wide, h.fields))]
        late_fields = self._late_fields(program)
        # Temporaries have places of their own behind everything that is cleared or copied.
        late = {field.slot for field in late_fields} | self.temporaries
        # A flag for each lazy region follows the validity of the headers.
        flags = len(Word) + len(program.headers)
        cursor = _Cursor(flags + len(late_headers) + len(late_fields))
        for header in program.headers.values():
            if header not in late_headers:
                self._place_header(header, cursor, late)
        self.cleared_words = cursor.align()
        for number, header in enumerate(late_headers):
            self._place_header(header, cursor, late)
            region = Region(flags + number, *self._spans[header.index], whole_field=False)
            self._regions |= {field.slot: region for field in header.fields}
        for number, field in enumerate(late_fields, flags + len(late_headers)):
            place = self._fields[field.slot] = cursor.place(field.bits, field.signed)
            self._regions[field.slot] = Region(number, place.offset, place.words, whole_field=True)
        self.kept_words = cursor.align()
        for field in program.fields:
            if field.slot in self.temporaries:
                self._fields[field.slot] = cursor.place(field.bits, field.signed)
        self.state_words = cursor.align()
        self._find_changing(program)
        self._place_arrays(program)
        self._tables = {name: ControlWord.TABLES + TableWord.SIZE * i for i, name in enumerate(program.tables)}
        self.control_words = ControlWord.TABLES + TableWord.SIZE * len(program.tables)

    def _find_changing(self, program: ProgramIR) -> None:
        changed = changed_by_egress(program)
        named = changed | named_slots((program.egress, program.checksums))
        # Egress changes these words itself, whatever the program does.
        words = {int(Word.LENGTH), int(Word.LIMIT), int(Word.EXITED)}
        words |= {region.flag for slot, region in self._regions.items() if slot in named}
        if egress_changes_validity(program):
            words |= {self.valid(header) for header in program.headers.values()}
        for slot in changed - self.temporaries - self._regions.keys():
            place = self._fields[slot]
            words |= set(range(place.offset, place.offset + place.words))
        self.changing_words = tuple(sorted(words))
        self.changing_regions = sorted(
            {r for slot, r in self._regions.items() if slot in changed}, key=lambda r: r.flag
        )

    def _late_fields(self, program: ProgramIR) -> list[FieldIR]:
        pairs = copied_as_wholes(program)
        headers = (h for h in program.headers.values() if h.metadata and h.name not in pairs)
        fields = (field for header in headers for field in header.fields)
        return [field for field in fields if _is_wide(field) and field.slot not in self.temporaries]

    def _place_header(self, header: HeaderIR, cursor: _Cursor, late: set[int]) -> None:
        start = cursor.align()
        for field in header.fields:
            if field.slot not in late:
                self._fields[field.slot] = cursor.place(field.bits, field.signed)
        self._spans[header.index] = start, cursor.at - start

    def _place_arrays(self, program: ProgramIR) -> None:
        cursor = _Cursor()
        self.registers: dict[str, StoredInteger] = {}
        for register in program.registers.values():
            cursor.align()
            self.registers[register.name] = StoredInteger(cursor.at, register.bits)
            cursor.at += register.size * words_for(register.bits)
        self.register_words = cursor.align()
        counters = [c for c in program.counters.values() if c.table is None]
        # A counter has packets first, then bytes: two arrays side by side.
        starts = [2 * sum(c.size for c in counters[:i]) for i in range(len(counters) + 1)]
        self.counters = {c.name: start for c, start in zip(counters, starts, strict=False)}
        self.counter_words = starts[-1]

    def field(self, field: FieldIR) -> StoredInteger:
        """Return the place of a field in the packet's state."""
        return self._fields[field.slot]

    def valid(self, header: HeaderIR) -> int:
        """Return the number of the word in the packet's state that has a header's validity."""
        return len(Word) + header.index

    def span(self, header: HeaderIR) -> tuple[int, int]:
        """Return the first word and the number of words of a header's fields."""
        return self._spans[header.index]

    def region(self, field: FieldIR) -> Region | None:
        """Return the lazy region that a field is in, or None for a field that is always in memory."""
        return self._regions.get(field.slot)

    def header_region(self, header: HeaderIR) -> Region | None:
        """Return the lazy region that all of a header's fields are in, or None, as for all metadata."""
        return None if header.metadata or not header.fields else self.region(header.fields[0])

    def table(self, name: str) -> int:
        """Return the number of a table's first word (see `TableWord`) in the control block."""
        return self._tables[name]


def _is_wide(field: FieldIR) -> bool:
    return words_for(field.bits + field.signed) >= PIECE_WORDS


def argument_places(action: ActionIR) -> tuple[StoredInteger, ...]:
    """Return the places of an action's arguments in a record, counted from the end of the record's header."""
    cursor = _Cursor()
    return tuple(cursor.place(param.bits) for param in action.params)


def record_words(table: TableIR) -> int:
    """Return the size of a table's records in words, header included."""
    ends = [place.offset + place.words for action in table.runnable for place in argument_places(action)]
    return RECORD_HEADER + round_up(max(ends, default=0), PIECE_WORDS)


def key_words(table: TableIR) -> tuple[int, ...]:
    """Return the number of words of each key field."""
    return tuple(-(-key.bits // WORD_BITS) for key in table.keys)
