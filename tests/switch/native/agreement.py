# SPDX-License-Identifier: Apache-2.0
"""Both engines side by side, and frames that are mostly right with something wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from hopsum_switch.engine import Engine, Output
from hopsum_switch.native.compiler import CodeCache
from hopsum_switch.native.native_engine import Batch, NativeEngine, Outputs
from hopsum_switch.program import ProgramIR


class Pair:
    """An interpreter and a native engine that are given the same."""

    def __init__(
        self, program: ProgramIR, *, ports: Sequence[int] = (), cache: CodeCache | None = None, seed: int = 0
    ) -> None:
        self.reference = Engine(program, ports=ports, seed=seed)
        self.native = NativeEngine(program, ports=ports, seed=seed, cache=cache)
        self.program = program
        self.frames = 0

    def both(self, change: Callable[[Engine], object]) -> None:
        """Make a control-plane access to both."""
        change(self.reference)
        change(self.native)

    def process(self, port: int, frame: bytes, now_us: int = 0) -> list[Output]:
        """Run a frame through both; what comes out must be equal."""
        expected = self.reference.process(port, frame, now_us)
        got = self.native.process(port, frame, now_us)
        assert got == expected, f"port {port}, frame {frame.hex()}"
        self.frames += 1
        return expected

    def process_batch(self, frames: Sequence[tuple[int, bytes]], now_us: int = 0) -> None:
        """Run frames through the interpreter one by one and natively in batches that fill small buffers."""
        expected = [
            (number, output)
            for number, (port, frame) in enumerate(frames)
            for output in self.reference.process(port, frame, now_us)
        ]
        batch = Batch.from_frames([port for port, _ in frames], [frame for _, frame in frames])
        outputs, done, got = Outputs(130, 1 << 18), 0, []
        while done < len(frames):
            done = self.native.process_batch(batch, outputs, first=done, now_us=now_us)
            got += list(zip(outputs.sources[: outputs.count].tolist(), outputs.frames(), strict=True))
        assert got == expected
        self.frames += len(frames)

    def same_state(self) -> None:
        """Compare registers, counters, and what programs should not have done."""
        assert self.native.faults == self.reference.faults
        for name in self.program.registers:
            assert self.native.registers.read_all(name) == self.reference.registers.read_all(name), name
        for name, counter in self.program.counters.items():
            if counter.table is None:
                assert self.native.counters.read_all(name) == self.reference.counters.read_all(name), name
        for name, table in self.program.tables.items():
            if table.with_counters:
                for entry in self.reference.tables[name].entries():
                    value = self.native.counters.read_direct(name, entry.handle)
                    assert value == self.reference.counters.read_direct(name, entry.handle), (name, entry)


def mutate(frame: bytes, rng: random.Random) -> bytes:
    """Flip bits, set bytes to extremes, cut, or lengthen; one frame in ten stays as it is."""
    data = bytearray(frame)
    kind = rng.randrange(10)
    if kind < 4:
        for _ in range(rng.choice([1, 1, 1, 2, 8])):
            near = rng.random() < 0.8
            bit = rng.randrange(8 * (min(len(data), 90) if near else len(data)))
            data[bit // 8] ^= 1 << bit % 8
    elif kind < 7:
        at, size = rng.randrange(min(len(data), 90)), rng.choice([1, 1, 2, 4])
        value = rng.choice([b"\0", b"\xff", b"\x01", b"\x7f", b"\x80"])
        data[at : at + size] = value * len(data[at : at + size])
    elif kind == 7:
        del data[rng.randrange(len(data)) :]
    elif kind == 8:
        data += rng.randbytes(rng.choice([1, 2, 18, 700]))
    return bytes(data)
