# SPDX-License-Identifier: Apache-2.0
"""Tensors of `hopsum.allreduce` on their device."""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

import torch

from hopsum.communicator import Communicator
from hopsum.config import CodecOn
from hopsum.torch.device.choice import DeviceCodec, DeviceCodecs
from hopsum.torch.device.feedback import DeviceFeedback
from hopsum.torch.device.vector import DeviceVector
from hopsum.torch.tensors import require_dense, within_range

_codecs: Final[WeakKeyDictionary[Communicator, dict[CodecOn, DeviceCodecs]]] = WeakKeyDictionary()


class DeviceCall:
    """One tensor on its way through an all-reduce: a vector to submit, and the result that its mean becomes.

    Made in the thread, and with the current stream, in which the tensor was made.
    """

    def __init__(self, place: DeviceCodec, tensor: torch.Tensor, out: torch.Tensor | None) -> None:
        self.elements = tensor.numel()
        self._place, self._like, self._out = place, tensor, out
        self._x = tensor.detach().to(torch.float32).contiguous().view(-1)
        flat = out is not None and out.dtype == torch.float32 and out.is_contiguous()
        self._mean = out.detach().view(-1) if out is not None and flat else torch.empty_like(self._x)

    def fits(self, feedback: object) -> bool:
        """Return whether an error feedback is for such tensors."""
        return isinstance(feedback, DeviceFeedback) and feedback.device == self._place.device

    def feedback(self) -> DeviceFeedback:
        """Return a new error feedback for such tensors."""
        return DeviceFeedback(self._x.numel(), self._place.device)

    def vector(self, feedback: DeviceFeedback | None) -> DeviceVector:
        """Return what a communicator takes."""
        return self._place.vector(self._x, feedback, self._mean)

    def restore(self, mean: torch.Tensor, factor: int) -> torch.Tensor:
        """Return a mean times a factor in the shape and type of the tensor, in `out` if there is one.

        Called when the mean is there, in any thread; waits for the device, so that any stream may use the result.
        """
        staging = self._place.staging
        with torch.no_grad(), staging.on_kernels():
            made = within_range(mean, self._like.dtype)
            made = (made if factor == 1 else made.mul(factor)).view(self._like.shape)
            if self._out is None:
                made = made.to(self._like.dtype)
            elif made.data_ptr() != self._out.data_ptr():
                self._out.copy_(made)
        staging.wait()
        return made if self._out is None else self._out


def device_call(
    comm: Communicator, codec_on: CodecOn, tensor: torch.Tensor, out: torch.Tensor | None
) -> DeviceCall | None:
    """Return a tensor's call on its device; None: it goes to the host.

    Raises:
        CodecError: codec_on is "device" and the codec has no form for it.
        TypeError: no dense floating-point tensor.
    """
    require_dense(tensor)
    codecs = _codecs.setdefault(comm, {})
    if codec_on not in codecs:
        codecs[codec_on] = DeviceCodecs(comm, codec_on)
    place = codecs[codec_on].at(tensor.device)
    return None if place is None else DeviceCall(place, tensor, out)
