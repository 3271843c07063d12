# SPDX-License-Identifier: Apache-2.0
"""Tensors as the vectors that are summed, and back."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def read_tensor(tensor: torch.Tensor) -> NDArray[np.float32]:
    """Return a tensor's elements, float32[elements], contiguous; a view where it is that already, on the CPU.

    Raises:
        TypeError: no dense floating-point tensor.
    """
    require_dense(tensor)
    flat: NDArray[np.float32] = tensor.detach().to("cpu", torch.float32).contiguous().view(-1).numpy()
    return flat


def require_dense(tensor: torch.Tensor) -> None:
    """Raise TypeError unless it is a dense floating-point tensor."""
    if tensor.layout is not torch.strided or not tensor.is_floating_point():
        raise TypeError(
            f"hopsum sums dense floating-point tensors, not {tensor.dtype} {tensor.layout}: convert it first"
        )


def vector_of(out: torch.Tensor) -> NDArray[np.float32] | None:
    """Return a tensor's own memory as float32[elements], None unless it is that, contiguous, on the CPU."""
    if out.device.type != "cpu" or out.dtype != torch.float32 or not out.is_contiguous():
        return None
    flat: NDArray[np.float32] = out.detach().view(-1).numpy()
    return flat


def within_range(mean: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a float32 mean with finite elements beyond float16 at its limits, if it is to become float16.

    No mean of float16 numbers is beyond them: what is has it from a codec's error. Infinities and NaN stay.
    """
    most = torch.finfo(torch.float16).max
    if dtype != torch.float16 or not mean.numel() or not bool((mean.abs() > most).any()):
        return mean
    return torch.where(mean.isfinite(), mean.clamp(-most, most), mean)


def write_tensor(mean: NDArray[np.float32], like: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Return a vector in the shape, type and place of `like`, in `out` if there is one.

    Raises:
        TypeError: out is no tensor of this shape and type.
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
