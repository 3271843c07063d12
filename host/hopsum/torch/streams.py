# SPDX-License-Identifier: Apache-2.0
"""The streams of a device on which all-reduces run, and the order between them.

    kernels   the codec's work, and every change of an error feedback
    copies    transfers between the device and the host, while the kernels of the next piece run

The program's own streams never wait for these two: the host waits, in the communicator's thread, before a mean is
handed out. These two wait for the program's stream by a mark, which is taken when a vector is submitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch
from numpy.typing import NDArray

from hopsum.codec.interface import CodecError

Mark = Any
"""A place in a stream, behind everything that was queued before it (a CUDA event). None on the CPU."""


class Streams:
    """The two streams of a device. Any thread may use them. Operations that two threads queue have no order.

    These are the CPU's: operations are done when they return, so there is nothing to mark, adopt or wait for.
    """

    device = torch.device("cpu")

    def mark(self) -> Mark:
        """Return a mark at the end of the calling thread's current stream of the device; None on the CPU."""

    @contextmanager
    def on_kernels(self, after: Mark = None) -> Iterator[None]:
        """Return a context in which operations are queued in the stream of kernels, after a mark."""
        yield

    @contextmanager
    def on_copies(self, after: Mark = None) -> Iterator[None]:
        """Return a context in which operations are queued in the stream of copies, after a mark."""
        yield

    def adopt(self, tensor: torch.Tensor) -> None:
        """Keep the memory of a tensor of another stream from being used again before both streams are done with it."""

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return memory of the host, with any content, that copies reach without waiting."""
        return torch.empty(shape, dtype=dtype, device="cpu")

    def wait(self) -> None:
        """Wait until everything that is queued in both streams is done."""


class CudaStreams(Streams):
    """Two CUDA streams of high priority, so that short kernels do not queue behind a backward pass. See `Streams`.

    torch's allocator of pinned memory keeps and reuses what was freed, once the copies that used it are done.
    """

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda  # streams and events have no types
        self.device, self._event = device, cuda.Event
        # High priority: a kernel of microseconds would queue behind a backward pass of milliseconds.
        self._kernels = cuda.Stream(device, priority=-1)
        self._copies = cuda.Stream(device, priority=-1)

    def mark(self) -> Mark:
        return torch.cuda.current_stream(self.device).record_event()

    def on_kernels(self, after: Mark = None) -> Any:
        return self._on(self._kernels, after)

    def on_copies(self, after: Mark = None) -> Any:
        return self._on(self._copies, after)

    @contextmanager
    def _on(self, stream: torch.cuda.Stream, after: Mark) -> Iterator[None]:
        with torch.cuda.stream(stream):
            # The device waits, and the host continues.
            if after is not None:
                stream.wait_event(after)
            yield

    def adopt(self, tensor: torch.Tensor) -> None:
        # Both: kernels and copies of the codec use it, and its owner may free it as soon as the mean is there.
        for stream in (self._kernels, self._copies):
            tensor.record_stream(stream)

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)

    def wait(self) -> None:
        """Sleep until both are done: a thread that polls would take a core from the training. See `Streams`."""
        for stream in (self._copies, self._kernels):
            # A blocking event lets the thread sleep. Spinning would take a core from the training.
            done = self._event(blocking=True)
            done.record(stream)
            done.synchronize()


@cache
def streams_of(device: torch.device) -> Streams:
    """Return the streams of a device, the same ones for all who ask: residuals go from one to another in their order.

    Raises:
        CodecError: another kind of device than "cpu" and "cuda".
    """
    if device.type == "cpu":
        return Streams()
    if device.type != "cuda":
        raise CodecError(f"device {device}: all-reduces run on devices of type cpu and cuda")
    return CudaStreams(device)


# ---- transfers over the bus, and the number of waits for the device ----------------------------------------

_DTYPES: Final = {"uint8": torch.uint8, "float32": torch.float32, "int32": torch.int32, "bool": torch.bool}


class Staging:
    """Transfers by pinned memory. One thread at a time.

    The counts are for statistics, and tests compare them with the bytes that an all-reduce may move.
    """

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.bytes_to_host = 0
        self.bytes_to_device = 0
        self.waits = 0

    def on_kernels(self, after: Mark = None) -> Any:
        """Return a context in which operations are queued in the stream of kernels. See `Streams`."""
        return self.streams.on_kernels(after)

    def load(self, array: NDArray[Any]) -> torch.Tensor:
        """Return a copy of an array on the device, for the kernels that are queued from here on.

        The copy runs while the kernels run that are queued already. The array may change when this returns.
        """
        # Pinned memory: only from there do copies run while kernels run, and return before they are done.
        pinned = self.streams.host_buffer(array.shape, _DTYPES[array.dtype.name])
        pinned.numpy()[...] = array
        with self.streams.on_copies():
            # Allocated in the stream of copies, so that torch's allocator knows who writes first.
            loaded = torch.empty_like(pinned, device=self.streams.device, pin_memory=False)
            loaded.copy_(pinned, non_blocking=True)
            arrived = self.streams.mark()
        with self.streams.on_kernels(arrived):
            # Kernels read it in another stream: its memory must not be used again before these are done.
            self.streams.adopt(loaded)
        self.bytes_to_device += array.nbytes
        return loaded

    def fetch(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Begin to copy `source`, which kernels queued so far make, to a `host_buffer`. `wait` waits for the copy.

        The copy runs while the kernels run that are queued later.
        """
        with self.streams.on_kernels():
            # Copies wait for the kernels queued so far, not for those of the next piece.
            made = self.streams.mark()
        with self.streams.on_copies(made):
            self.streams.adopt(source)
            target.copy_(source, non_blocking=True)
        self.bytes_to_host += source.nbytes

    def read(self, source: torch.Tensor) -> torch.Tensor:
        """Begin to copy a small tensor to the host in the order of the kernels. Return the copy, valid after `wait`."""
        target = self.streams.host_buffer(tuple(source.shape), source.dtype)
        with self.streams.on_kernels():
            target.copy_(source, non_blocking=True)
        self.bytes_to_host += source.nbytes
        return target

    def wait(self) -> None:
        """Wait until everything that is queued in both streams is done, and count the wait."""
        self.streams.wait()
        self.waits += 1
