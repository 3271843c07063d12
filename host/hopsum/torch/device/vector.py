# SPDX-License-Identifier: Apache-2.0
"""A tensor as a communicator is handed it."""

from __future__ import annotations

import torch

from hopsum.codec.interface import Codec, CodecError, OnNonfinite, ReductionContext, Tensors
from hopsum.torch.codec import TorchThc
from hopsum.torch.codec.checks import require_vector
from hopsum.torch.device.feedback import DeviceFeedback
from hopsum.torch.device.reduction import DeviceReduction
from hopsum.torch.device.staging import Staging


class DeviceVector:
    """A tensor on its device. The contract is `hopsum.communicator.vector.Vector`.

    Made in the thread, and with the current stream, in which x was made: what that stream has queued until then is
    waited for on the device.

    Args:
        x: contiguous float32[elements]. Do not change it before the future is done.
        codec: for its device, with the bytes of the communicator's codec.
        staging: of its device.
        feedback: on its device, as for `Communicator.submit`.
        out: becomes the mean, contiguous float32[elements]; may be x itself.

    Raises:
        CodecError: x, out or feedback do not fit.
    """

    def __init__(
        self,
        x: torch.Tensor,
        codec: TorchThc,
        staging: Staging,
        feedback: DeviceFeedback | None = None,
        *,
        out: torch.Tensor,
    ) -> None:
        for tensor in (x, out):
            require_vector(tensor, codec.device)
        kept = x.numel() if feedback is None else feedback.residual.numel()
        if not x.numel() == out.numel() == kept:
            raise CodecError(
                f"vector of {x.numel()} elements with an out of {out.numel()}, an error feedback of {kept}"
            )
        self.elements = x.numel()
        self.feedback = feedback
        self._x, self._out = x.detach(), out.detach()
        self._codec, self._staging = codec, staging
        self._number = 0
        self._reduction: DeviceReduction | None = None
        self._ready = staging.streams.mark()
        for tensor in (x, out):
            staging.streams.adopt(tensor)

    def note_number(self, number: int) -> None:
        """Take the number of the all-reduce. See `Vector`."""
        self._number = number

    def start(
        self, codec: Codec, context: ReductionContext, *, tensors: Tensors, on_nonfinite: OnNonfinite
    ) -> DeviceReduction:
        """Begin the all-reduce on the device. See `Vector`."""
        self._reduction = DeviceReduction(
            self._codec,
            self._staging,
            self._x,
            context,
            self.feedback,
            out=self._out,
            ready=self._ready,
            number=self._number,
            tensors=tensors,
            on_nonfinite=on_nonfinite,
        )
        return self._reduction

    def give_back(self) -> None:
        """Put the vector into the error feedback. See `Vector`."""
        with self._staging.on_kernels(self._ready):
            if self.feedback is not None:
                self.feedback.rollback()
                self.feedback.compensate(self._codec, self._x)
                finite = bool(torch.isfinite(self.feedback.pending).all())
                self.feedback.keep() if finite else self.feedback.rollback()
        self._staging.wait()  # the caller may use x again

    def squares(self) -> tuple[float, float]:
        """Return the squares of the sample. See `Vector`."""
        if self._reduction is None or len(self._reduction.squares) < 2:
            return 0.0, 0.0
        before, after = self._reduction.squares
        return float(after), float(before)

    def all_nan(self) -> torch.Tensor:
        """Return a vector of NaN, which takes the memory of one element."""
        return torch.full((1,), torch.nan, device=self._codec.device).expand(self.elements)
