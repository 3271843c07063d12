# SPDX-License-Identifier: Apache-2.0
"""Many frames at once between ports and engine, in arrays that are used again and again.

A port that can take and give many frames has the two methods of `BatchPort` beside those of `Port`; `batch_form`
finds them, and wraps every other port in a loop over its frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hopsum_switch.batch import Batch
from hopsum_switch.ports.base import Port

BATCH_FRAMES = 1024  # taken from one port before the others get their turn; what one datagram brings comes on top
_DATA_BYTES = 1 << 20


class Frames(NamedTuple):
    """Frames to send: `data[offsets[i]:offsets[i] + lengths[i]]` for every i, in this order.

    The arrays belong to the caller, who may change them when the call has returned.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, frames: Iterable[bytes]) -> Frames:
        """Return copies of frames."""
        kept = list(frames)
        lengths = np.array([len(frame) for frame in kept], np.int64)
        return cls(np.frombuffer(b"".join(kept), np.uint8), np.cumsum(lengths) - lengths, lengths)

    def frame(self, number: int) -> bytes:
        """Return a copy of one frame."""
        offset = int(self.offsets[number])
        return self.data[offset : offset + int(self.lengths[number])].tobytes()

    def take(self, which: slice | NDArray[np.int64]) -> Frames:
        """Return some of the frames, in the same memory."""
        return Frames(self.data, self.offsets[which], self.lengths[which])


class FrameBuffer:
    """Received frames one behind the other; it grows as needed and keeps its memory when it is emptied."""

    def __init__(self) -> None:
        self.count = 0
        self._used = 0
        self._data: NDArray[np.uint8] = np.zeros(_DATA_BYTES, np.uint8)
        self._offsets: NDArray[np.uint64] = np.zeros(2 * BATCH_FRAMES, np.uint64)
        self._lengths: NDArray[np.uint64] = np.zeros(2 * BATCH_FRAMES, np.uint64)

    def clear(self) -> None:
        """Forget all frames."""
        self.count = self._used = 0

    @property
    def full(self) -> bool:
        """Whether a port should stop adding frames."""
        return self.count >= BATCH_FRAMES

    def add(self, frame: bytes) -> None:
        """Append a copy of one frame."""
        self.rows(1, len(frame))[0] = np.frombuffer(frame, np.uint8)

    def rows(self, count: int, frame_bytes: int) -> NDArray[np.uint8]:
        """Append frames of equal length; return their bytes, [count, frame_bytes], for the caller to fill at once."""
        first, start, size = self.count, self._used, count * frame_bytes
        self.count, self._used = first + count, start + size
        if self.count > len(self._offsets):
            self._offsets = np.resize(self._offsets, 2 * self.count)
            self._lengths = np.resize(self._lengths, 2 * self.count)
        if self._used > len(self._data):
            self._data = np.resize(self._data, 2 * self._used)
        self._offsets[first : self.count] = range(start, self._used, frame_bytes) if frame_bytes else start
        self._lengths[first : self.count] = frame_bytes
        return self._data[start : self._used].reshape(count, frame_bytes)

    def batch(self, port: int) -> Batch:
        """Return the frames, received at `port`, in this buffer's memory."""
        ports = np.full(self.count, port, np.uint64)
        return Batch(self._data, ports, self._offsets[: self.count], self._lengths[: self.count])


@runtime_checkable
class BatchPort(Protocol):
    """What a port offers that handles many frames at once; they count and drop as `Port`'s methods do."""

    def receive_batch(self, frames: FrameBuffer) -> None:
        """Append waiting frames without blocking, until `frames.full` or none waits."""
        ...

    def send_batch(self, frames: Frames) -> None:
        """Send frames without blocking, for every destination in order."""
        ...


class OneByOne:
    """The batch form of a port that handles single frames."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def receive_batch(self, frames: FrameBuffer) -> None:
        """Append what one call of the port's `receive` gives."""
        for frame in self._port.receive():
            frames.add(frame)

    def send_batch(self, frames: Frames) -> None:
        """Send one frame after the other."""
        for number in range(len(frames.lengths)):
            self._port.send(frames.frame(number))


def batch_form(port: Port) -> BatchPort:
    """Return the port itself if it handles many frames at once, else a loop around it."""
    return port if isinstance(port, BatchPort) else OneByOne(port)
