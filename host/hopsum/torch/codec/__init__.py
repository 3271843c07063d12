# SPDX-License-Identifier: Apache-2.0
"""Codec thc on torch tensors, CPU and CUDA.

    torch_thc        `TorchThc`: payloads and means from and to tensors, the same bytes as those of hopsum.codec
    torch_kernels    the kernels in plain torch operations, the launches of those in Triton, tables on a device
    triton_kernels   the kernels in Triton

triton is imported when a codec first uses it, not before.
"""

from __future__ import annotations

from hopsum.torch.codec.torch_thc import TorchThc

__all__ = ["TorchThc"]
