# SPDX-License-Identifier: Apache-2.0
"""Error feedback on the device of the gradients, for the hooks: its last all-reduce can be undone.

Every operation on a residual is queued in the device's stream of kernels, by whatever thread: that is their order.
Memory: 8 bytes for each element on the device, the residual and the one before it, which is the next vector's room.
"""

from __future__ import annotations

from typing import Any

import torch

from hopsum.torch.codec import TorchFeedback, TorchThc
from hopsum.torch.device.streams import streams_of


class DeviceFeedback(TorchFeedback):
    """Error feedback whose last all-reduce can be undone until the next one begins. See `StepFeedback`, for numpy."""

    def __init__(self, elements: int, device: torch.device) -> None:
        self._streams = streams_of(device)
        self._before: torch.Tensor | None = None
        with self.queue():
            super().__init__(elements, device)

    @property
    def values(self) -> torch.Tensor:
        """Return the residual itself, float32[elements]; operations on it go into `queue`."""
        return self.residual

    @property
    def device(self) -> torch.device:
        """Return where the residual is."""
        return self._streams.device

    def queue(self) -> Any:
        """Return a context in which operations on the residual keep their order."""
        return self._streams.on_kernels()

    def compensate(self, codec: TorchThc, x: torch.Tensor) -> torch.Tensor:
        """Begin an all-reduce; the one before it can no longer be undone. See `TorchFeedback`."""
        self._before = None
        return super().compensate(codec, x)

    def keep(self) -> None:
        """Make what is pending the residual, and the residual what `undo` puts back."""
        before = self.residual
        super().keep()
        self._before = before

    def undo(self, elements: slice = slice(None)) -> None:
        """Put these elements of the residual back to what they were before the last all-reduce."""
        if self._before is not None:
            with self.queue():
                self.residual[elements] = self._before[elements]
