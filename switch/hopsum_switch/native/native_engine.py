# SPDX-License-Identifier: Apache-2.0
"""The engine that runs a program as machine code, and the arrays that Python and machine code share."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, overload

import numpy as np
from numpy.typing import NDArray

from ..engine import Engine, Output
from ..errors import ProgramError
from ..frame_batch import Batch, Outputs, address
from ..program.frame_budget import OUT_OF_STEPS
from ..program.ir import INDEX_OUT_OF_RANGE, ActionCall, MatchKind, ProgramIR
from ..state.cells import CounterCells, FixedCells
from ..state.copies import MulticastStore
from ..state.entry_lookup import Entry, Exact, Lpm, Match, Range, Ternary, prefix_mask
from ..state.program_state import ProgramState
from ..state.randomness import MASK
from ..state.table_store import TableState
from .calculation_code import scratch_bytes
from .compiler import Code, CodeCache, compile_program
from .control_code import HASH_FACTOR, HASH_SHIFT
from .memory_layout import (
    NO_ACTION,
    RECORD_HEADER,
    ControlWord,
    TableWord,
    argument_places,
    key_words,
    record_words,
    words_for,
)
from .program_code import MAX_GROUPS, MAX_PORTS

__all__ = ["Batch", "NativeEngine", "Outputs"]

ALIGNMENT = 64

Words = NDArray[np.uint64]


def zero_words(count: int) -> Words:
    """Return a new array of `count` zero words (at least one), aligned to 64 bytes."""
    assert sys.byteorder == "little"
    # numpy aligns to 16 bytes, and a load of a whole vector wants 64.
    raw = np.zeros(8 * max(count, 1) + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + 8 * max(count, 1)].view(np.uint64)


def store_integer(target: Words, at: int, value: int, count: int) -> None:
    """Store a non-negative integer as `count` words from index `at` on, the lowest first. Raises: OverflowError."""
    target[at : at + count] = np.frombuffer(value.to_bytes(8 * count, "little"), np.uint64)


class Cells(FixedCells):
    """A fixed number of unsigned integers of `stride` words each, in shared memory."""

    def __init__(self, memory: Words, start: int, size: int, stride: int) -> None:
        self._rows = memory[start : start + size * stride].reshape(size, stride)

    def __copy__(self) -> Cells:
        """Return the same integers in memory of their own."""
        twin = Cells.__new__(Cells)
        twin._rows = self._rows.copy()
        return twin

    @property
    def rows(self) -> Words:
        """The memory itself: uint64[size, stride], the lowest word of an integer first."""
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [int.from_bytes(row.tobytes(), "little") for row in self._rows[index]]
        return int.from_bytes(self._rows[index].tobytes(), "little")

    @overload
    def __setitem__(self, index: int, value: int) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[int]) -> None: ...
    def __setitem__(self, index: int | slice, value: int | Iterable[int]) -> None:
        stride = self._rows.shape[1]
        if isinstance(index, int):
            assert isinstance(value, int)
            store_integer(self._rows[index], 0, value, stride)
            return
        assert not isinstance(value, int)
        rows = self._rows[index]
        for row, item in zip(rows, value, strict=True):
            store_integer(row, 0, item, stride)


# The stores of the control plane as the arrays that native code searches. They are rebuilt after a write.

_WORD = (1 << 64) - 1


class NativeTable:
    """One table as the arrays that machine code searches."""

    def __init__(self, state: TableState) -> None:
        self._state = state
        self._key_words = key_words(state.ir)
        self._record_words = record_words(state.ir)
        self._entries: list[Entry] = []
        self._hits = zero_words(0)
        self._arrays: list[Words] = []

    def build(self, control: Words, at: int) -> None:
        """Build the arrays anew and put their addresses into the control block, from word `at` on. Counts become 0."""
        self._entries = self._ordered()
        count, stride = len(self._entries), self._record_words
        # One record more than entries: the default action has the last.
        records, self._hits = zero_words((count + 1) * stride), zero_words(2 * count)
        for number, entry in enumerate(self._entries):
            _write_record(records, number * stride, entry.call)
        _write_record(records, count * stride, self._state.default)
        exact = self._state.ir.match_kind is MatchKind.EXACT
        keys, slots = self._exact_arrays() if exact else (self._pairs(), zero_words(0))
        self._arrays = [keys, slots, records]
        control[at + TableWord.SLOTS] = slots.ctypes.data
        control[at + TableWord.SLOT_MASK] = len(slots) - 1
        control[at + TableWord.KEYS] = keys.ctypes.data
        control[at + TableWord.RECORDS] = records.ctypes.data
        control[at + TableWord.COUNT] = count
        control[at + TableWord.HITS] = self._hits.ctypes.data
        control[at + TableWord.DEFAULT] = count

    def collect_hits(self) -> None:
        """Add the hits that native code has counted to the entries, and set them to 0."""
        # Most tables count nothing between two batches.
        if not self._hits.any():
            return
        for number, entry in enumerate(self._entries):
            entry.packets += int(self._hits[2 * number])
            entry.bytes += int(self._hits[2 * number + 1])
        self._hits[:] = 0

    def _ordered(self) -> list[Entry]:
        """Return entries in the order in which native code tries them."""
        entries, kind = self._state.entries(), self._state.ir.match_kind
        if kind is MatchKind.EXACT:
            return list(entries)
        if kind is MatchKind.LPM:
            return sorted(entries, key=lambda entry: -_prefix_len(entry.match))
        return sorted(entries, key=lambda entry: (-entry.priority, entry.handle))

    def _exact_arrays(self) -> tuple[Words, Words]:
        total, size = sum(self._key_words), 2
        # At most half full: searches for absent keys end soon, and at an empty slot in any case.
        while size < 2 * len(self._entries):
            size *= 2
        keys, slots = zero_words(total * len(self._entries)), zero_words(size)
        for number, entry in enumerate(self._entries):
            parts = self._split([match[0] or 0 for match in entry.match])
            keys[number * total : (number + 1) * total] = parts
            slot = _hash(parts) & (size - 1)
            while slots[slot]:
                slot = (slot + 1) & (size - 1)
            slots[slot] = number + 1
        return keys, slots

    def _pairs(self) -> Words:
        """Return (value, mask) or (low, high) per word of the key, entry by entry."""
        total = 2 * sum(self._key_words)
        keys = zero_words(total * len(self._entries))
        for number, entry in enumerate(self._entries):
            bits = [key.bits for key in self._state.ir.keys]
            pairs = [_pair(match, width) for match, width in zip(entry.match, bits, strict=True)]
            first, second = (self._split([pair[side] for pair in pairs]) for side in (0, 1))
            keys[number * total : (number + 1) * total : 2] = first
            keys[number * total + 1 : (number + 1) * total : 2] = second
        return keys

    def _split(self, values: Sequence[int]) -> list[int]:
        counted = zip(values, self._key_words, strict=True)
        return [value >> (64 * i) & _WORD for value, count in counted for i in range(count)]


def write_groups(multicast: MulticastStore, control: Words) -> list[Words]:
    """Put all multicast groups into arrays, and their addresses into the control block. Return the arrays to keep."""
    groups = multicast.all_by_number()
    index, replicas = zero_words(MAX_GROUPS), zero_words(2 * sum(len(members) for members in groups.values()))
    at = 0
    for group, members in groups.items():
        index[group] = at << 32 | len(members)
        for replica in members:
            replicas[2 * at], replicas[2 * at + 1] = replica.port, replica.instance
            at += 1
    control[ControlWord.GROUPS], control[ControlWord.REPLICAS] = index.ctypes.data, replicas.ctypes.data
    control[ControlWord.MAX_COPIES] = max(1, *(len(members) for members in groups.values()), 1)
    return [index, replicas]


def _write_record(records: Words, at: int, call: ActionCall | None) -> None:
    if call is None:
        records[at] = NO_ACTION & _WORD
        return
    records[at] = call.action.id
    for place, value in zip(argument_places(call.action), call.args, strict=True):
        store_integer(records, at + RECORD_HEADER + place.offset, value, place.words)


def _hash(parts: Sequence[int]) -> int:
    value = 0
    for part in parts:
        value = (value ^ part) * HASH_FACTOR & _WORD
        value ^= value >> HASH_SHIFT
    return value


def _prefix_len(match: Sequence[Match]) -> int:
    return next(part.prefix_len for part in match if isinstance(part, Lpm))


def _pair(match: Match, bits: int) -> tuple[int, int]:
    if isinstance(match, Ternary | Range):
        return match[0], match[1]
    if isinstance(match, Lpm):
        return match.value, prefix_mask(bits, match.prefix_len)
    assert isinstance(match, Exact)
    return match.value, (1 << bits) - 1


# The engine. Stores and results are those of the interpreter's engine.

_MIN_FRAME_BYTES = 2048


class NativeEngine(Engine):
    """An engine that runs one program as machine code, with the interface of `Engine`, and single-threaded too.

    Raises UnsupportedError: only the interpreter runs the program. ProgramError: a port outside 0..65535.
    """

    backend: ClassVar[str] = "native"

    def __init__(
        self, program: ProgramIR, *, ports: Collection[int] = (), seed: int = 0, cache: CodeCache | None = None
    ) -> None:
        self._code: Code = compile_program(program, cache)
        layout = self._layout = self._code.unit.layout
        self._registers_memory, self._counters_memory = (
            zero_words(layout.register_words),
            zero_words(layout.counter_words),
        )
        # Not `Engine.__init__`, which would build an interpreter.
        ProgramState.__init__(self, program, self._counter_cells(program), self._register_cells(program))
        # Two states: the packet, and what replication keeps of it for the next replica.
        self._control, self._state = zero_words(layout.control_words), zero_words(2 * layout.state_words)
        self._tables = {name: NativeTable(state) for name, state in self.tables.items()}
        self._counted = [self._tables[table.name] for table in program.tables.values() if table.with_counters]
        self._kept: list[Words] = []
        self._groups_version = -1
        self._scratch_bytes = scratch_bytes(program)
        self._hashes_payload = any(calculation.with_payload for calculation in program.calculations.values())
        self._scratch = zero_words(0)
        self._own = Outputs(1, 0)
        self._filter = _port_bits(ports)
        self._set_addresses()
        self._control[ControlWord.RANDOM] = seed & MASK

    def process(self, port: int, frame: bytes, now_us: int = 0) -> list[Output]:
        batch = Batch.from_frames([port], [frame])
        self._own.make_room(*self.room_for(max(len(frame), _MIN_FRAME_BYTES)))
        self.process_batch(batch, self._own, now_us=now_us)
        return self._own.frames()

    def room_for(self, frame_bytes: int) -> tuple[int, int]:
        """Return the most outputs, and their most bytes together, that one frame of `frame_bytes` may cause now.

        Multicast groups that were written since the last call are counted.
        """
        self._take_groups()
        copies = int(self._control[ControlWord.MAX_COPIES])
        return copies, copies * (frame_bytes + self._code.header_bytes)

    def process_batch(self, batch: Batch, outputs: Outputs, *, first: int = 0, now_us: int = 0) -> int:
        """Run frames from number `first` on in one native call. Return the number of the next one to run.

        The number is less than the batch's size if the outputs of another frame might not fit, or if the frames have
        used the steps of one frame in loops. Take the outputs and call again then. A frame needs room for one copy per
        replica of the largest group.

        Raises ValueError where the outputs of one frame do not fit. Give larger buffers.
        """
        count = len(batch.ports)
        self.enter(batch, outputs, first=first, now_us=now_us, longest_bytes=int(batch.lengths.max(initial=0)))
        self._code.run(*self._arguments)
        done = self.leave(outputs)
        # No frame ran although some are left: the buffers cannot hold the copies of one.
        if done == first < count:
            raise ValueError(
                f"frame {first} of {int(batch.lengths[first])} bytes may cause "
                f"{int(self._control[ControlWord.MAX_COPIES])} copies, "
                f"but the buffers hold {len(outputs.ports)} outputs and {len(outputs.data)} bytes"
            )
        return done

    def enter(self, batch: Batch, outputs: Outputs, *, first: int, now_us: int, longest_bytes: int) -> None:
        """Prepare calls of the machine code for a batch from frame `first` on, of frames of at most `longest_bytes`."""
        self._prepare(longest_bytes)
        outputs.count = 0
        # In the order of ControlWord: one assignment for 18 words, since this runs for each batch.
        self._control[ControlWord.FRAMES : ControlWord.OUT_OF_RANGE + 1] = [
            address(batch.data),
            address(batch.offsets),
            address(batch.lengths),
            address(batch.ports),
            len(batch.ports),
            now_us,
            address(outputs.data),
            len(outputs.data),
            address(outputs.ports),
            address(outputs.lengths),
            address(outputs.sources),
            len(outputs.ports),
            first,  # DONE
            0,  # OUTPUTS
            0,  # OUT_USED
            0,  # STEPS_TAKEN
            0,  # OUT_OF_STEPS
            0,  # OUT_OF_RANGE
        ]

    def leave(self, outputs: Outputs) -> int:
        """End what `enter` began, once: add hits, drops and faults of the calls to the entries and to this engine.

        Sets `outputs.count`. Returns the number of the next frame to run, the length of the batch if all ran.
        """
        for table in self._counted:
            table.collect_hits()
        outputs.count = int(self._control[ControlWord.OUTPUTS])
        if out_of_steps := int(self._control[ControlWord.OUT_OF_STEPS]):
            self.dropped[OUT_OF_STEPS] += out_of_steps
        if out_of_range := int(self._control[ControlWord.OUT_OF_RANGE]):
            self.faults[INDEX_OUT_OF_RANGE] += out_of_range
        return int(self._control[ControlWord.DONE])

    def entry(self) -> tuple[int, int, int]:
        """Return the addresses of the machine code and of its two arguments, state and control block."""
        return self._code.address, *self._arguments

    def _register_cells(self, program: ProgramIR) -> dict[str, Cells]:
        return {
            r.name: Cells(self._registers_memory, self._layout.registers[r.name].offset, r.size, words_for(r.bits))
            for r in program.registers.values()
        }

    def _counter_cells(self, program: ProgramIR) -> dict[str, CounterCells]:
        cells = {}
        for name, start in self._layout.counters.items():
            size = program.counters[name].size
            pair = (Cells(self._counters_memory, at, size, 1) for at in (start, start + size))
            cells[name] = CounterCells(*pair)
        return cells

    def _set_addresses(self) -> None:
        self._control[ControlWord.STATE] = self._state.ctypes.data
        self._control[ControlWord.REPLICA] = self._state[self._layout.state_words :].ctypes.data
        self._control[ControlWord.REGISTERS] = self._registers_memory.ctypes.data
        self._control[ControlWord.COUNTERS] = self._counters_memory.ctypes.data
        self._arguments = self._state.ctypes.data, self._control.ctypes.data
        self._control[ControlWord.FILTER] = 0 if self._filter is None else self._filter.ctypes.data

    def _prepare(self, longest_bytes: int) -> None:
        """Bring the arrays up to date with the stores, and the scratch memory up to the longest frame."""
        for name in self.tables.pop_changed():
            self._tables[name].build(self._control, self._layout.table(name))
        self._take_groups()
        payload = longest_bytes if self._hashes_payload else 0
        needed = (self._scratch_bytes + payload) // 8 + 2
        if len(self._scratch) < needed:
            self._scratch = zero_words(2 * needed)
            self._control[ControlWord.SCRATCH] = self._scratch.ctypes.data

    def _take_groups(self) -> None:
        # Groups change rarely, and their arrays are built anew when they did.
        if self._groups_version != self.multicast.version:
            self._groups_version = self.multicast.version
            self._kept = write_groups(self.multicast, self._control)


def _port_bits(ports: Collection[int]) -> Words | None:
    if not ports:
        return None
    bits = zero_words(MAX_PORTS // 64)
    for port in ports:
        if not 0 <= port < MAX_PORTS:
            raise ProgramError(f"port {port} is outside 0..{MAX_PORTS - 1}")
        bits[port // 64] |= np.uint64(1 << (port % 64))
    return bits
