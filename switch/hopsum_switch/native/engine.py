# SPDX-License-Identifier: Apache-2.0
"""The engine that runs a program as machine code. Stores and results are those of the interpreter's engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import ClassVar

import numpy as np

from ..batch import Batch, Outputs, address
from ..engine import Engine, Output
from ..errors import ProgramError
from ..program.frame_budget import OUT_OF_STEPS
from ..program.ir import INDEX_OUT_OF_RANGE, ProgramIR
from ..state.cells import CounterCells, CounterStore, MeterStore, RegisterStore
from ..state.copies import CloneStore, MulticastStore
from ..state.digests import DigestStore
from ..state.randomness import MASK
from ..state.tables import TableStore
from .cache import CodeCache
from .calculations import scratch_bytes
from .compiler import Code, compile_program
from .layout import ControlWord, words_for
from .memory import Cells, Words, words
from .pipeline import MAX_PORTS
from .tables import NativeTable, write_groups

__all__ = ["Batch", "NativeEngine", "Outputs"]

_MIN_FRAME_BYTES = 2048


class NativeEngine(Engine):
    """Runs one program as machine code. It has the interface of `Engine`, and is single-threaded too."""

    backend: ClassVar[str] = "native"

    def __init__(
        self, program: ProgramIR, *, ports: Collection[int] = (), seed: int = 0, cache: CodeCache | None = None
    ) -> None:
        """Compile (or load from the cache) and start with empty state.

        Raises UnsupportedError where only the interpreter runs this program. The message names the construct.
        """
        self._code: Code = compile_program(program, cache)
        layout = self._layout = self._code.unit.layout
        self._registers_memory, self._counters_memory = words(layout.register_words), words(layout.counter_words)
        self.program = program
        self.tables = TableStore(program)
        self.multicast = MulticastStore()
        self.clones = CloneStore()
        self.meters = MeterStore(program, self.tables)
        self.digests = DigestStore(program)
        self.dropped, self.faults = Counter(), Counter()
        self.counters = CounterStore(program, self.tables, self._counter_cells(program))
        self.registers = RegisterStore(program, self._register_cells(program))
        self._control, self._state = words(layout.control_words), words(2 * layout.state_words)
        self._tables = {name: NativeTable(state) for name, state in self.tables.items()}
        self._counted = [self._tables[table.name] for table in program.tables.values() if table.with_counters]
        self._kept: list[Words] = []
        self._groups_version = -1
        self._scratch_bytes = scratch_bytes(program)
        self._hashes_payload = any(calculation.with_payload for calculation in program.calculations.values())
        self._scratch = words(0)
        self._own = Outputs(1, 0)
        self._filter = _port_bits(ports)
        self._set_addresses()
        self._seed = seed & MASK
        self._control[ControlWord.RANDOM] = self._seed

    def process(self, port: int, frame: bytes, now_us: int = 0) -> list[Output]:
        batch = Batch.of([port], [frame])
        self._own.make_room(*self.room_for(max(len(frame), _MIN_FRAME_BYTES)))
        self.process_batch(batch, self._own, now_us=now_us)
        return self._own.frames()

    def room_for(self, frame_bytes: int) -> tuple[int, int]:
        """Return how many outputs, and bytes of them together, one received frame may cause at present."""
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
        if done == first < count:
            raise ValueError(
                f"frame {first} of {int(batch.lengths[first])} bytes may cause "
                f"{int(self._control[ControlWord.MAX_COPIES])} copies, "
                f"but the buffers hold {len(outputs.ports)} outputs and {len(outputs.data)} bytes"
            )
        return done

    def enter(self, batch: Batch, outputs: Outputs, *, first: int, now_us: int, longest_bytes: int) -> None:
        """Prepare calls of the machine code for a batch from frame `first` on, with frames of at most so many bytes."""
        self._prepare(longest_bytes)
        outputs.count = 0
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
        """Take over the counts and writes of the calls. Return the number of the next frame to run."""
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

    def reset_state(self) -> None:
        self.tables.reset()
        self.multicast.reset()
        self.clones.reset()
        self.counters.reset()
        self.registers.reset()
        self._control[ControlWord.RANDOM] = self._seed

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
        for name in self.tables.take_changed():
            self._tables[name].build(self._control, self._layout.table(name))
        self._take_groups()
        payload = longest_bytes if self._hashes_payload else 0
        needed = (self._scratch_bytes + payload) // 8 + 2
        if len(self._scratch) < needed:
            self._scratch = words(2 * needed)
            self._control[ControlWord.SCRATCH] = self._scratch.ctypes.data

    def _take_groups(self) -> None:
        if self._groups_version != self.multicast.version:
            self._groups_version = self.multicast.version
            self._kept = write_groups(self.multicast, self._control)


def _port_bits(ports: Collection[int]) -> Words | None:
    if not ports:
        return None
    bits = words(MAX_PORTS // 64)
    for port in ports:
        if not 0 <= port < MAX_PORTS:
            raise ProgramError(f"port {port} is outside 0..{MAX_PORTS - 1}")
        bits[port // 64] |= np.uint64(1 << (port % 64))
    return bits
