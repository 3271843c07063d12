# SPDX-License-Identifier: Apache-2.0
"""The transfers over the bus between a device and the host, and the number of waits for the device."""

from __future__ import annotations

from typing import Any, Final

import torch
from numpy.typing import NDArray

from hopsum.torch.device.streams import Mark, Streams

_DTYPES: Final = {"uint8": torch.uint8, "float32": torch.float32, "int32": torch.int32, "bool": torch.bool}


class Staging:
    """Transfers by pinned memory. One thread at a time.

    The counts are for statistics, and tests hold them to what an all-reduce may move.
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

        The copy goes beside the kernels that are queued already. The array may change when this returns.
        """
        pinned = self.streams.room(array.shape, _DTYPES[array.dtype.name])
        pinned.numpy()[...] = array
        with self.streams.on_copies():
            loaded = torch.empty_like(pinned, device=self.streams.device, pin_memory=False)
            loaded.copy_(pinned, non_blocking=True)
            arrived = self.streams.mark()
        with self.streams.on_kernels(arrived):
            self.streams.adopt(loaded)
        self.bytes_to_device += array.nbytes
        return loaded

    def fetch(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy what the kernels queued so far make to memory from `room`, beside the kernels that follow."""
        with self.streams.on_kernels():
            made = self.streams.mark()
        with self.streams.on_copies(made):
            self.streams.adopt(source)
            target.copy_(source, non_blocking=True)
        self.bytes_to_host += source.nbytes

    def read(self, source: torch.Tensor) -> torch.Tensor:
        """Return memory of the host that has a few numbers after the next `wait`; in the order of the kernels."""
        target = self.streams.room(tuple(source.shape), source.dtype)
        with self.streams.on_kernels():
            target.copy_(source, non_blocking=True)
        self.bytes_to_host += source.nbytes
        return target

    def wait(self) -> None:
        """Wait for everything that is queued."""
        self.streams.wait()
        self.waits += 1
