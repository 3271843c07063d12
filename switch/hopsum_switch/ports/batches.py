# SPDX-License-Identifier: Apache-2.0
"""Batches of frames between ports and engine, in arrays that are reused.

A port that handles many frames at once has the two methods of `BatchPort` besides those of `Port`. `batch_form` finds
them, and wraps every other port in a loop over its frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hopsum_switch.frame_batch import Batch
from hopsum_switch.ports.port import Port

# Frames taken from one port before the others get their turn. A joined datagram may bring more.
BATCH_FRAMES = 1024
_DATA_BYTES = 1 << 20


class Frames(NamedTuple):
    """Frames to send: `data[offsets[i]:offsets[i] + lengths[i]]` for every i, in this order.

    The arrays belong to the caller, who may change them when the call has returned.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def from_bytes(cls, frames: Iterable[bytes]) -> Frames:
        """Return Frames with copies of `frames` in a new buffer."""
        kept = list(frames)
        lengths = np.array([len(frame) for frame in kept], np.int64)
        return cls(np.frombuffer(b"".join(kept), np.uint8), np.cumsum(lengths) - lengths, lengths)

    def frame(self, number: int) -> bytes:
        """Return a copy of frame `number`, counted from 0."""
        offset = int(self.offsets[number])
        return self.data[offset : offset + int(self.lengths[number])].tobytes()

    def select(self, which: slice | NDArray[np.int64]) -> Frames:
        """Return the frames of a slice, or of an array of frame numbers, in the same memory."""
        return Frames(self.data, self.offsets[which], self.lengths[which])


class FrameBuffer:
    """A buffer of received frames, one after the other. It grows as needed and keeps its memory when it is emptied.

    `port` is the input port of the frames that are added next.
    """

    def __init__(self) -> None:
        self.port = 0
        self.count = 0
        self._used = 0
        # Twice a batch: one system call may bring a joined datagram on top of BATCH_FRAMES - 1 frames.
        self._ports: NDArray[np.uint64] = np.zeros(2 * BATCH_FRAMES, np.uint64)
        self._lengths: NDArray[np.uint64] = np.zeros(2 * BATCH_FRAMES, np.uint64)
        self._set_data(np.zeros(_DATA_BYTES, np.uint8))

    def clear(self) -> None:
        """Forget all frames. The memory is kept, and overwritten by the next ones."""
        self.count = self._used = 0

    @property
    def full(self) -> bool:
        """Flag: BATCH_FRAMES frames or more are here, so a port should stop adding."""
        return self.count >= BATCH_FRAMES

    def add(self, *parts: bytes | memoryview) -> None:
        """Append one received frame: a copy of `parts`, in order."""
        at = self._used
        self._extend(1, sum(map(len, parts)))
        for part in parts:
            self._memory[at : at + len(part)] = part
            at += len(part)

    def append_rows(self, count: int, frame_bytes: int) -> NDArray[np.uint8]:
        """Append `count` frames of equal length. Return their bytes, [count, frame_bytes], which the caller fills.

        The array is valid until the next call that appends.
        """
        start = self._used
        self._extend(count, frame_bytes)
        return self._data[start : self._used].reshape(count, frame_bytes)

    def batch(self) -> Batch:
        """Return the frames, in this buffer's memory: valid until the buffer is cleared and filled again."""
        lengths = self._lengths[: self.count]
        return Batch(self._data, self._ports[: self.count], np.cumsum(lengths, dtype=np.uint64) - lengths, lengths)

    def _extend(self, count: int, frame_bytes: int) -> None:
        first, self.count, self._used = self.count, self.count + count, self._used + count * frame_bytes
        if self.count > len(self._lengths):
            # np.resize repeats the contents into the new part, which is written below or by the next call.
            self._ports, self._lengths = (np.resize(array, 2 * self.count) for array in (self._ports, self._lengths))
        if self._used > len(self._data):
            self._set_data(np.resize(self._data, 2 * self._used))
        self._ports[first : self.count] = self.port
        self._lengths[first : self.count] = frame_bytes

    def _set_data(self, data: NDArray[np.uint8]) -> None:
        self._data = data
        self._memory = memoryview(data)  # type: ignore[arg-type]  # numpy's stubs for Python 3.11 do not say that it can


@runtime_checkable
class BatchPort(Protocol):
    """The interface of a port that handles many frames at once. Its methods count and drop as `Port`'s methods do."""

    def receive_batch(self, frames: FrameBuffer) -> None:
        """Append waiting frames without blocking, until `frames.full` or none waits."""
        ...

    def send_batch(self, frames: Frames) -> None:
        """Send frames without blocking, for every destination in order."""
        ...


class OneByOne(BatchPort):
    """The batch form of a port that handles single frames."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def receive_batch(self, frames: FrameBuffer) -> None:
        for frame in self._port.receive():
            frames.add(frame)

    def send_batch(self, frames: Frames) -> None:
        for number in range(len(frames.lengths)):
            self._port.send(frames.frame(number))


def batch_form(port: Port) -> BatchPort:
    """Return the port itself if it handles many frames at once, else a loop around it."""
    return port if isinstance(port, BatchPort) else OneByOne(port)
