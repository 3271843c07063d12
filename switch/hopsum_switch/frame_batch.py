# SPDX-License-Identifier: Apache-2.0
"""Batches: many frames in one array, the input and output of one engine call."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .engine import Output


def address(array: NDArray[Any]) -> int:
    """Return the memory address of an array's first element, faster than `array.ctypes.data` for a writable array."""
    if array.size and array.flags.writeable:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return array.ctypes.data


@dataclass(frozen=True, slots=True)
class Batch:
    """Received frames in one buffer, without a copy of the arrays. The engine does not change the buffer's bytes.

    `ports`, `offsets` and `lengths` have one element per frame: its ingress port, and its first byte and its size in
    `data`. Raises ValueError: an array has another type or shape, or a frame lies outside the buffer.
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
        # Unsigned arithmetic: the second test would wrap for a length beyond the buffer, so the first one comes before
        # it.
        if np.any(self.lengths > size) or np.any(self.offsets > size - self.lengths):
            raise ValueError(f"a frame lies outside the buffer of {self.data.size} bytes")

    @classmethod
    def from_frames(cls, ports: Collection[int], frames: Collection[bytes]) -> Batch:
        """Return a batch of copies of frames, each with its ingress port. Raises ValueError: the numbers differ."""
        lengths = np.array([len(frame) for frame in frames], np.uint64)
        offsets = np.concatenate([np.zeros(1, np.uint64), np.cumsum(lengths, dtype=np.uint64)])[:-1]
        # An array over no bytes has no address, and machine code gets an address in any case.
        data = np.frombuffer(b"".join(frames) or b"\0", np.uint8)
        return cls(data, np.array(list(ports), np.uint64), offsets, lengths)

    def frame(self, number: int) -> bytes:
        """Return a copy of frame `number`, counted from 0."""
        offset = int(self.offsets[number])
        return self.data[offset : offset + int(self.lengths[number])].tobytes()


class Outputs:
    """Buffers that a caller provides for the frames to send. They are reused from call to call.

    After a call the first `count` elements of `ports`, `lengths` and `sources` (number of the frame in the
    batch) are valid, and the frames are one after the other in `data`.
    """

    def __init__(self, frames: int, data_bytes: int) -> None:
        """Make empty buffers for at most `frames` frames of `data_bytes` bytes together."""
        self._allocate(frames, data_bytes)

    def _allocate(self, frames: int, data_bytes: int) -> None:
        self.data: NDArray[np.uint8] = np.zeros(data_bytes, np.uint8)
        self.ports: NDArray[np.uint64] = np.zeros(frames, np.uint64)
        self.lengths: NDArray[np.uint64] = np.zeros(frames, np.uint64)
        self.sources: NDArray[np.uint64] = np.zeros(frames, np.uint64)
        self.count = 0

    def frames(self) -> list[Output]:
        """Return copies of the frames with their egress ports, in order."""
        result, at = [], 0
        for port, length in zip(self.ports[: self.count].tolist(), self.lengths[: self.count].tolist(), strict=True):
            result.append(Output(port, self.data[at : at + length].tobytes()))
            at += length
        return result

    def make_room(self, frames: int, data_bytes: int) -> None:
        """Empty the buffers. Replace the arrays if they hold less than `frames` frames or `data_bytes` bytes."""
        self.count = 0
        # Buffers only grow, so a switch allocates none while it runs.
        if len(self.ports) < frames or len(self.data) < data_bytes:
            self._allocate(max(frames, len(self.ports)), max(data_bytes, len(self.data)))

    def fill(self, ports: Collection[int], frames: Collection[bytes], sources: Collection[int]) -> None:
        """Replace the contents by copies of these frames. Enlarge the buffers if necessary."""
        lengths = [len(frame) for frame in frames]
        self.make_room(len(lengths), sum(lengths))
        self.count = len(lengths)
        self.data[: sum(lengths)] = np.frombuffer(b"".join(frames), np.uint8)
        for array, values in ((self.ports, ports), (self.lengths, lengths), (self.sources, sources)):
            array[: self.count] = list(values)
