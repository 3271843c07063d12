# SPDX-License-Identifier: Apache-2.0
"""Checks of tensors that are handed to a codec: each message says what, where, and what to do next."""

from __future__ import annotations

import torch

from hopsum.codec.interface import CodecError


def require_vector(x: torch.Tensor, device: torch.device) -> None:
    """Raise CodecError unless x is float32[elements], contiguous, on the device, with at least one element."""
    if x.dtype != torch.float32 or x.ndim != 1 or not x.numel() or not x.is_contiguous():
        plain = "" if x.is_contiguous() else ", not contiguous"
        raise CodecError(
            f"a codec takes a contiguous float32 vector of at least one element, not {x.dtype}{list(x.shape)}{plain}; "
            "flatten it first"
        )
    require_device(x, device, "the vector")


def require_tensor(
    tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device, what: str
) -> None:
    """Raise CodecError unless a tensor has this type and shape, is contiguous, and on the device."""
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise CodecError(
            f"{what}: expected {dtype}{list(shape)}, got {tensor.dtype}{list(tensor.shape)}; "
            "all phases of an all-reduce take the same number of elements"
        )
    if not tensor.is_contiguous():
        raise CodecError(f"{what}: strides {tensor.stride()}; pass a contiguous tensor")
    require_device(tensor, device, what)


def require_device(tensor: torch.Tensor, device: torch.device, what: str) -> None:
    """Raise CodecError unless a tensor is on the device."""
    if tensor.device != device:
        raise CodecError(f"{what} is on {tensor.device}, the codec on {device}; move one of them")


def require_finite_ranges(ranges: torch.Tensor, what: str) -> None:
    """Raise CodecError if a range says that its block must not be summed. Waits for the device."""
    bad = torch.isfinite(ranges).logical_not()
    count = int(bad.sum())
    if count:
        raise CodecError(
            f"{what}: {count} of {ranges.numel()} blocks are not finite, the first is block "
            f"{int(bad.int().argmax())}: skip this all-reduce on all ranks"
        )
