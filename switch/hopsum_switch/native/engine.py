# SPDX-License-Identifier: Apache-2.0
"""The engine that runs a program as machine code. Stores and results are those of the interpreter's engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..engine import Engine, Output
from ..errors import ProgramError
from ..program.ir import Program
from ..state.clones import CloneStore
from ..state.counters import CounterCells, CounterStore
from ..state.meters import MeterStore
from ..state.multicast import MulticastStore
from ..state.randomness import MASK
from ..state.registers import RegisterStore
from ..state.tables import TableStore
from .cache import CodeCache
from .calculations import scratch_bytes
from .compiler import Code, compile_program
from .layout import Control, words_for
from .memory import Cells, Words, words
from .pipeline import MAX_PORTS
from .tables import NativeTable, write_groups

_MIN_FRAME_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames in one buffer; `ports`, `offsets` and `lengths` run parallel, one element per frame.

    The buffer's bytes are not changed. Raises ValueError: an array has another type or shape, or a frame lies
    outside the buffer.
    """

    data: NDArray[np.uint8]
    ports: NDArray[np.uint64]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]

    def __post_init__(self) -> None:
        numbers = (self.ports, self.offsets, self.lengths)
        if any(array.dtype != np.uint64 or not array.flags.c_contiguous for array in numbers):
            raise ValueError("ports, offsets and lengths must be contiguous arrays of uint64")
        if self.data.dtype != np.uint8 or not self.data.flags.c_contiguous:
            raise ValueError("the frames must be a contiguous array of bytes")
        if len({array.shape for array in numbers}) != 1 or self.ports.ndim != 1:
            raise ValueError(f"{[array.shape for array in numbers]} are not the shapes of parallel lists")
        size = np.uint64(self.data.size)
        if np.any(self.lengths > size) or np.any(self.offsets > size - self.lengths):
            raise ValueError(f"a frame lies outside the buffer of {self.data.size} bytes")

    @classmethod
    def of(cls, ports: Collection[int], frames: Collection[bytes]) -> Batch:
        """Return a batch that holds copies of frames."""
        lengths = np.array([len(frame) for frame in frames], np.uint64)
        offsets = np.concatenate([np.zeros(1, np.uint64), np.cumsum(lengths, dtype=np.uint64)])[:-1]
        data = np.frombuffer(b"".join(frames) or b"\0", np.uint8)
        return cls(data, np.array(list(ports), np.uint64), offsets, lengths)


class Outputs:
    """Buffers that a caller provides for the frames to send; reused from call to call.

    After a call the first `count` elements of `ports`, `lengths` and `sources` (number of the frame in the
    batch) are valid, and the frames lie one behind the other in `data`.
    """

    def __init__(self, frames: int, data_bytes: int) -> None:
        self.data: NDArray[np.uint8] = np.zeros(data_bytes, np.uint8)
        self.ports: NDArray[np.uint64] = np.zeros(frames, np.uint64)
        self.lengths: NDArray[np.uint64] = np.zeros(frames, np.uint64)
        self.sources: NDArray[np.uint64] = np.zeros(frames, np.uint64)
        self.count = 0

    def frames(self) -> list[Output]:
        """Return copies of the frames with their ports."""
        result, at = [], 0
        for port, length in zip(self.ports[: self.count].tolist(), self.lengths[: self.count].tolist(), strict=True):
            result.append(Output(port, self.data[at : at + length].tobytes()))
            at += length
        return result


class NativeEngine(Engine):
    """Runs one program as machine code. Single-threaded like `Engine`, whose interface it has."""

    backend: ClassVar[str] = "native"

    def __init__(
        self, program: Program, *, ports: Collection[int] = (), seed: int = 0, cache: CodeCache | None = None
    ) -> None:
        """Compile (or load from the cache) and start with empty state.

        Raises: UnsupportedError: only the interpreter runs this program; the message names the construct.
        """
        self._code: Code = compile_program(program, cache)
        layout = self._layout = self._code.unit.layout
        self._registers_memory, self._counters_memory = words(layout.register_words), words(layout.counter_words)
        self.program = program
        self.tables = TableStore(program)
        self.multicast = MulticastStore()
        self.clones = CloneStore()
        self.meters = MeterStore(program, self.tables)
        self.dropped = Counter()
        self.counters = CounterStore(program, self.tables, self._counter_cells(program))
        self.registers = RegisterStore(program, self._register_cells(program))
        self._control, self._state = words(layout.control_words), words(2 * layout.state_words)
        self._tables = {name: NativeTable(state) for name, state in self.tables.items()}
        self._counted = [self._tables[table.name] for table in program.tables.values() if table.with_counters]
        self._kept: list[Words] = []
        self._groups_version = -1
        self._scratch = words(0)
        self._own = Outputs(1, 0)
        self._filter = _port_bits(ports)
        self._set_addresses()
        self._seed = seed & MASK
        self._control[Control.RANDOM] = self._seed

    def process(self, port: int, frame: bytes, now_us: int = 0) -> list[Output]:
        """See `Engine.process`."""
        batch = Batch.of([port], [frame])
        self._prepare(batch)
        copies = int(self._control[Control.MAX_COPIES])
        needed = copies * (len(frame) + self._code.header_bytes)
        if len(self._own.ports) < copies or len(self._own.data) < needed:
            self._own = Outputs(copies, max(needed, copies * _MIN_FRAME_BYTES))
        self.process_batch(batch, self._own, now_us=now_us)
        return self._own.frames()

    def process_batch(self, batch: Batch, outputs: Outputs, *, first: int = 0, now_us: int = 0) -> int:
        """Run frames from number `first` on in one native call; return the number of the next one to run.

        That is less than the batch's size if the outputs of another frame might not fit: take the outputs and call
        again. A frame needs room for one copy per replica of the largest group.

        Raises: ValueError: not even one frame's outputs fit; give larger buffers.
        """
        self._prepare(batch)
        outputs.count = 0
        count = len(batch.ports)
        values = {
            Control.FRAMES: batch.data.ctypes.data,
            Control.OFFSETS: batch.offsets.ctypes.data,
            Control.LENGTHS: batch.lengths.ctypes.data,
            Control.PORTS: batch.ports.ctypes.data,
            Control.COUNT: count,
            Control.NOW: now_us,
            Control.OUT: outputs.data.ctypes.data,
            Control.OUT_CAPACITY: len(outputs.data),
            Control.OUT_PORTS: outputs.ports.ctypes.data,
            Control.OUT_LENGTHS: outputs.lengths.ctypes.data,
            Control.OUT_SOURCES: outputs.sources.ctypes.data,
            Control.OUT_RECORDS: len(outputs.ports),
            Control.DONE: first,
            Control.OUTPUTS: 0,
            Control.OUT_USED: 0,
        }
        for which, value in values.items():
            self._control[which] = value
        self._code.run(self._state.ctypes.data, self._control.ctypes.data)
        for table in self._counted:
            table.collect_hits()
        outputs.count, done = int(self._control[Control.OUTPUTS]), int(self._control[Control.DONE])
        if done == first < count:
            raise ValueError(
                f"frame {first} of {int(batch.lengths[first])} bytes may cause {int(self._control[Control.MAX_COPIES])}"
                f" copies, but the buffers hold {len(outputs.ports)} outputs and {len(outputs.data)} bytes"
            )
        return done

    def reset_state(self) -> None:
        """See `Engine.reset_state`."""
        self.tables.reset()
        self.multicast.reset()
        self.clones.reset()
        self.counters.reset()
        self.registers.reset()
        self._control[Control.RANDOM] = self._seed

    def _register_cells(self, program: Program) -> dict[str, Cells]:
        return {
            r.name: Cells(self._registers_memory, self._layout.registers[r.name].offset, r.size, words_for(r.bits))
            for r in program.registers.values()
        }

    def _counter_cells(self, program: Program) -> dict[str, CounterCells]:
        cells = {}
        for name, start in self._layout.counters.items():
            size = program.counters[name].size
            pair = (Cells(self._counters_memory, at, size, 1) for at in (start, start + size))
            cells[name] = CounterCells(*pair)
        return cells

    def _set_addresses(self) -> None:
        self._control[Control.STATE] = self._state.ctypes.data
        self._control[Control.REPLICA] = self._state[self._layout.state_words :].ctypes.data
        self._control[Control.REGISTERS] = self._registers_memory.ctypes.data
        self._control[Control.COUNTERS] = self._counters_memory.ctypes.data
        self._control[Control.FILTER] = 0 if self._filter is None else self._filter.ctypes.data

    def _prepare(self, batch: Batch) -> None:
        """Bring the arrays up to date with the stores, and the scratch memory up to the longest frame."""
        for name in self.tables.take_changed():
            self._tables[name].build(self._control, self._layout.table(name))
        if self._groups_version != self.multicast.version:
            self._groups_version = self.multicast.version
            self._kept = write_groups(self.multicast, self._control)
        longest = int(batch.lengths.max(initial=0))
        needed = (scratch_bytes(self.program) + longest) // 8 + 2
        if len(self._scratch) < needed:
            self._scratch = words(2 * needed)
            self._control[Control.SCRATCH] = self._scratch.ctypes.data


def _port_bits(ports: Collection[int]) -> Words | None:
    if not ports:
        return None
    bits = words(MAX_PORTS // 64)
    for port in ports:
        if not 0 <= port < MAX_PORTS:
            raise ProgramError(f"port {port} is outside 0..{MAX_PORTS - 1}")
        bits[port // 64] |= np.uint64(1 << (port % 64))
    return bits
