# SPDX-License-Identifier: Apache-2.0
"""The Triton backend: launches of the kernels in triton_kernels.py, which is imported at the first use.

It runs on CUDA devices, and on the CPU under Triton's interpreter (TRITON_INTERPRET=1 before triton is imported),
which is how its results are tested on machines without a GPU.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import torch

from hopsum.codec.backends.kernels import THC_BLOCK, BlockKeys
from hopsum.torch.codec.kernels import DeviceTable, as_signed

WARPS: Final = 4
"""The warps of a program, each with a block of its own. Triton before 3.9 makes them wait for each other in an
exchange."""


def options(warps: int) -> dict[str, Any]:
    """Return compiler options: a fused multiply-add would round once where the definition rounds twice."""
    return {"num_warps": warps, "enable_fp_fusion": False}


def triton_is_usable(device: torch.device) -> bool:
    """Say whether the package is installed and can run kernels on this device."""
    return find_spec("triton") is not None and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")


@cache
def _kernels() -> Any:
    return import_module("hopsum.torch.codec.triton_kernels")


class TritonKernels:
    """See `TorchKernels`. `warps` of a program, a power of 2, change no result."""

    name = "triton"

    def __init__(self, warps: int = WARPS) -> None:
        self._warps = warps

    def root_mean_square(self, x: torch.Tensor) -> torch.Tensor:
        return self._root_mean_square(x, x, x, compensate=False)

    def compensate(self, x: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor) -> torch.Tensor:
        return self._root_mean_square(x, residual, pending, compensate=True)

    def thc_encode(
        self,
        x: torch.Tensor,
        scales: torch.Tensor,
        shifts: torch.Tensor,
        table: DeviceTable,
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> None:
        tensors = (x, scales, shifts, table.cells, _words(out))
        numbers = (len(x), *_numbers(keys), table.granularity)
        self._launch(_kernels().thc_encode, x, *tensors, *numbers, self._warps, table.exact_float)

    def thc_decode(
        self,
        lanes: torch.Tensor,
        counts: torch.Tensor,
        factors: torch.Tensor,
        granularity: int,
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> torch.Tensor:
        beyond = torch.zeros(1, dtype=torch.int32, device=lanes.device)
        tensors = (_words(lanes), counts, factors, out, beyond)
        self._launch(_kernels().thc_decode, lanes, *tensors, len(lanes), _numbers(keys)[0], granularity, self._warps)
        return beyond

    def thc_contribution(
        self, payloads: torch.Tensor, factors: torch.Tensor, table: DeviceTable, keys: BlockKeys, out: torch.Tensor
    ) -> None:
        tensors = (_words(payloads), table.doubled, factors, out)
        numbers = (len(payloads), _numbers(keys)[0], table.granularity)
        self._launch(_kernels().thc_contribution, payloads, *tensors, *numbers, self._warps, False)

    def thc_subtract(
        self,
        payloads: torch.Tensor,
        factors: torch.Tensor,
        table: DeviceTable,
        keys: BlockKeys,
        pending: torch.Tensor,
    ) -> None:
        tensors = (_words(payloads), table.doubled, factors, pending)
        numbers = (len(payloads), _numbers(keys)[0], table.granularity)
        self._launch(_kernels().thc_contribution, payloads, *tensors, *numbers, self._warps, True)

    def _root_mean_square(
        self, x: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor, *, compensate: bool
    ) -> torch.Tensor:
        """Launch with half a warp for a block: 16 lanes."""
        blocks = 2 * self._warps
        sums = torch.empty(len(x), dtype=torch.float64, device=x.device)
        tensors = (x, residual, pending, sums)
        self._launch(_kernels().square_sums, x, *tensors, len(x), blocks, compensate, blocks=blocks)
        return (sums / THC_BLOCK).sqrt().float()

    def _launch(self, kernel: Any, rows: torch.Tensor, *arguments: Any, blocks: int | None = None) -> None:
        """Run one program per `blocks` rows (as many as warps if left out) on the rows' device."""
        if not len(rows):
            return
        programs = -(-len(rows) // (blocks or self._warps))
        if rows.device.type != "cuda":
            kernel[(programs,)](*arguments)
            return
        with torch.cuda.device(rows.device):
            kernel[(programs,)](*arguments, **options(self._warps))


def _numbers(keys: BlockKeys) -> tuple[int, int]:
    """Return the keys of the first block, as int64."""
    return as_signed(keys.rotation + keys.first), as_signed(keys.rounding + keys.first)


def _words(rows: torch.Tensor) -> torch.Tensor:
    """Return bytes as little-endian words, which is the order of every machine that torch runs on with CUDA."""
    return rows.view(torch.uint16)
