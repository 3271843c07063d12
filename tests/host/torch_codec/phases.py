# SPDX-License-Identifier: Apache-2.0
"""The steps of an all-reduce of a whole vector by `TorchThc`, as `DeviceReduction` takes them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hopsum.codec import ReductionContext
from hopsum.codec.backends import load_kernels
from hopsum.codec.thc import Thc
from hopsum.torch.codec import TorchThc
from hopsum.torch.codec.torch_kernels import DeviceContributors
from hopsum_wire.payload import SHAPES

FORMS: list[dict[str, object]] = [{}, {"bits": 3}, {"bits": 2}, {"result_bits": 8}, {"rounding": "stochastic"}]
"""Options of codec thc that a device has kernels for: each rounding, each size of codes and results."""


def host_thc(workers: int, **options: object) -> Thc:
    """Return numpy's codec."""
    return Thc(workers, kernels=load_kernels("numpy"), **options)  # type: ignore[arg-type]


def contributors(codec: TorchThc, bitmaps: NDArray[np.uint64]) -> DeviceContributors:
    """Return the contributors to each block on the codec's device."""
    packed = torch.from_numpy(codec.pack_contributors(bitmaps)).to(codec.device)
    return codec.contributors(packed, len(bitmaps))


def encode(
    codec: TorchThc, x: torch.Tensor, own: torch.Tensor, shared: torch.Tensor, context: ReductionContext
) -> torch.Tensor:
    """Return the payloads of a vector, from its own ranges and those that the ranks share."""
    payloads = torch.empty((len(own), SHAPES[codec.op].up_bytes), dtype=torch.uint8, device=codec.device)
    codec.encode_blocks(x, *codec.scales(own, shared), context, 0, payloads)
    return payloads


def decode(
    codec: TorchThc, results: torch.Tensor, bitmaps: NDArray[np.uint64], shared: torch.Tensor,
    context: ReductionContext, elements: int,
) -> torch.Tensor:  # fmt: skip
    """Return the mean of a vector. Refuse sums that the table cannot make."""
    mean, taken = torch.empty(elements, device=codec.device), contributors(codec, bitmaps)
    if codec.decode_blocks(results, taken, codec.factors(shared, taken.counts), context, 0, mean).item():
        codec.refuse_sums(results, taken.counts)
    return mean


def subtract(
    codec: TorchThc, payloads: torch.Tensor, shared: torch.Tensor, context: ReductionContext, pending: torch.Tensor,
    included: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Subtract from a vector what its payloads add to a sum, in the blocks that are included."""
    factors = codec.factors(shared, torch.ones(len(shared), dtype=torch.int32, device=codec.device))
    codec.subtract_blocks(payloads, factors if included is None else factors * included, context, pending)
