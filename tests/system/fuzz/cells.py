# SPDX-License-Identifier: Apache-2.0
"""All registers of the program as arrays: filled with noise, brought up to what the oracle holds, compared whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum_oracle.aggregator import JobConfig
from hopsum_oracle.decision import Copy
from hopsum_switch.engine import Engine
from hopsum_switch.native.native_engine import Cells

from ..contract.bed import PROGRAM, VECTOR_BYTES, VECTORS, Bed, one

Words = NDArray[np.uint64]
WIDTHS = {"tag": 64, "op": 8, "seen": 64, "ctr": 8, "contributors": 64}
NAMES = (*WIDTHS, *(f"values{number}" for number in range(VECTORS)))
DEAD_GENERATIONS = 1 << 31
"""Generations from here on are never admitted."""


class Image:
    """The expected content of every cell: by register, uint64[copies, words], the lowest word first."""

    def __init__(self, words: dict[str, Words]) -> None:
        self.words = words

    @classmethod
    def noise(cls, bed: Bed, rng: np.random.Generator) -> Image:
        """Fill engine and oracle with the same noise, of generations that never live."""
        image = cls({name: cells(bed.engine, name).rows.copy() for name in NAMES})
        for name, words in image.words.items():
            words[:] = rng.integers(0, 1 << min(64, WIDTHS.get(name, 64)), words.shape, dtype=np.uint64)
        image.words["tag"] |= np.uint64(DEAD_GENERATIONS << 32)
        for name, words in image.words.items():
            cells(bed.engine, name).rows[:] = words
        held = bed.oracle.registers
        for index in range(len(held.copies)):
            tag, op, seen, ctr, contributors = (int(image.words[name][index, 0]) for name in WIDTHS)
            held.copies[index] = Copy(tag >> 32, tag & 0xFFFFFFFF, seen, ctr, contributors)
            held.ops[index] = op
            held.values[index] = np.concatenate([image.words[name][index].view(np.uint8)[::-1] for name in NAMES[5:]])
        return image

    def copy(self) -> Image:
        """Return an image with memory of its own."""
        return Image({name: words.copy() for name, words in self.words.items()})

    def follow_oracle(self, bed: Bed) -> None:
        """Take over the oracle's copies of live jobs, and no others."""
        for index in (index for job in bed.jobs for index in copies_of(job)):
            held = bed.oracle.registers
            copy = held.copies[index]
            numbers = (copy.generation << 32 | copy.round, held.ops[index], copy.seen, copy.ctr, copy.contributors)
            for name, number in zip(WIDTHS, numbers, strict=True):
                self.words[name][index, 0] = number
            for name, values in zip(NAMES[5:], held.values[index].reshape(VECTORS, VECTOR_BYTES), strict=True):
                self.words[name][index] = values[::-1].copy().view(np.uint64)

    def differences(self, bed: Bed) -> list[tuple[str, int]]:
        """Return register and copy of every cell of the engine that is not as it should be."""
        found = []
        for name, words in self.words.items():
            rows = cells(bed.engine, name).rows
            if not np.array_equal(rows, words):
                found += [(name, int(index)) for index in np.flatnonzero((rows != words).any(axis=1))]
        return found

    def load(self, engine: Engine) -> None:
        """Write all of it into the registers of another engine."""
        for name, words in self.words.items():
            values = [int.from_bytes(row.tobytes(), "little") for row in words]
            engine.registers.cells(one(PROGRAM.registers, name))[:] = values


def cells(engine: Engine, name: str) -> Cells:
    """Return the memory of a register of native code."""
    found = engine.registers.cells(one(PROGRAM.registers, name))
    assert isinstance(found, Cells)
    return found


def copies_of(job: JobConfig) -> range:
    """Return the indices of a job's copies."""
    return range(2 * job.slot_base, 2 * (job.slot_base + job.slots))
