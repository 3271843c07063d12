# SPDX-License-Identifier: Apache-2.0
"""Tensors of `hopsum.allreduce` as the vectors that are summed, and back: on the host, and on their device."""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

import torch

from hopsum.agent import Communicator
from hopsum.codec.interface import Floats
from hopsum.config import CodecOn
from hopsum.torch.device_codec import DeviceCodec, DeviceCodecs
from hopsum.torch.device_reduction import DeviceFeedback, DeviceVector


def read_tensor(tensor: torch.Tensor) -> Floats:
    """Return a tensor's elements, float32[elements], contiguous; a view where it is that already, on the CPU.

    Raises:
        TypeError: no dense floating-point tensor.
    """
    require_dense(tensor)
    flat: Floats = tensor.detach().to("cpu", torch.float32).contiguous().view(-1).numpy()
    return flat


def require_dense(tensor: torch.Tensor) -> None:
    """Raise TypeError unless it is a dense floating-point tensor."""
    if tensor.layout is not torch.strided or not tensor.is_floating_point():
        raise TypeError(
            f"hopsum sums dense floating-point tensors, not {tensor.dtype} {tensor.layout}: convert it first"
        )


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers that a tensor stores: those of its present rows if it is sparse, else the tensor itself."""
    return tensor._values() if tensor.is_sparse else tensor


def real_elements(parameter: torch.Tensor) -> int:
    """Return the real numbers in a parameter's gradient: two for a complex element."""
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def vector_of(out: torch.Tensor) -> Floats | None:
    """Return a tensor's own memory as float32[elements], None unless it is that, contiguous, on the CPU."""
    if out.device.type != "cpu" or out.dtype != torch.float32 or not out.is_contiguous():
        return None
    flat: Floats = out.detach().view(-1).numpy()
    return flat


def clamp_to_float16(mean: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a float32 mean with its finite elements clamped to float16's range, if `dtype` is float16.

    Only a codec's error takes a mean of float16 numbers beyond the range. Infinities and NaN stay. Returns `mean`
    itself if there is nothing to clamp.
    """
    # A mean just beyond float16 would become infinite, and a GradScaler would drop the step.
    most = torch.finfo(torch.float16).max
    if dtype != torch.float16 or not mean.numel() or not bool((mean.abs() > most).any()):
        return mean
    return torch.where(mean.isfinite(), mean.clamp(-most, most), mean)


def write_tensor(mean: Floats, like: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Return `mean` in the shape of `like`: copied to `out`, or in the type and on the device of `like`.

    `out` is not checked here: call `require_out` first. Without `out`, the result shares the memory of `mean` if
    `like` is float32 on the CPU.
    """
    made = torch.from_numpy(mean).view(like.shape)
    if out is None:
        return made.to(like.device, like.dtype)
    with torch.no_grad():
        out.copy_(made)
    return out


def require_out(like: torch.Tensor, out: object) -> None:
    """Raise TypeError unless out is a tensor of the shape and type of `like`."""
    if not isinstance(out, torch.Tensor) or out.shape != like.shape or out.dtype != like.dtype:
        shown = f"{out.dtype}{list(out.shape)}" if isinstance(out, torch.Tensor) else type(out).__name__
        raise TypeError(f"out is {shown}, but the tensor {like.dtype}{list(like.shape)}")


# ---- on their device ---------------------------------------------------------------------------------------

_codecs: Final[WeakKeyDictionary[Communicator, dict[CodecOn, DeviceCodecs]]] = WeakKeyDictionary()


class DeviceCall:
    """One tensor on its way through an all-reduce: a vector to submit, and the result that its mean becomes.

    Made in the thread, and with the current stream, in which the tensor was made.
    """

    def __init__(self, place: DeviceCodec, tensor: torch.Tensor, out: torch.Tensor | None) -> None:
        self.elements = tensor.numel()
        self._place, self._like, self._out = place, tensor, out
        self._x = tensor.detach().to(torch.float32).contiguous().view(-1)
        # The mean is written where it is wanted, without a copy, if that is a float32 vector.
        flat = out is not None and out.dtype == torch.float32 and out.is_contiguous()
        self._mean = out.detach().view(-1) if out is not None and flat else torch.empty_like(self._x)

    def fits(self, feedback: object) -> bool:
        """Whether an error feedback is one of devices, and on the device of these tensors."""
        return isinstance(feedback, DeviceFeedback) and feedback.device == self._place.device

    def feedback(self) -> DeviceFeedback:
        """Return a new error feedback for such tensors."""
        return DeviceFeedback(self._x.numel(), self._place.device)

    def vector(self, feedback: DeviceFeedback | None) -> DeviceVector:
        """Return the tensor as a vector to submit to a communicator."""
        return self._place.vector(self._x, feedback, self._mean)

    def restore(self, mean: torch.Tensor, factor: int) -> torch.Tensor:
        """Return a mean times a factor in the shape and type of the tensor, in `out` if there is one.

        Without `out` the result may share the memory of `mean`.

        Called when the mean is there, in any thread; waits for the device, so that any stream may use the result.
        """
        staging = self._place.staging
        with torch.no_grad(), staging.on_kernels():
            made = clamp_to_float16(mean, self._like.dtype)
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
    # By communicator, weakly: a closed one takes its device's codecs with it.
    codecs = _codecs.setdefault(comm, {})
    if codec_on not in codecs:
        codecs[codec_on] = DeviceCodecs(comm, codec_on)
    place = codecs[codec_on].codec_for(tensor.device)
    return None if place is None else DeviceCall(place, tensor, out)
