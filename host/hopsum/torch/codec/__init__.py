# SPDX-License-Identifier: Apache-2.0
"""Codec thc on torch tensors, CPU and CUDA.

    codec           `TorchThc`: payloads and means from and to tensors, the same bytes as those of hopsum.codec
    feedback        error feedback on the vector's device
    forms           paired codes and packed results
    ranges          ranges as MAX32 payloads
    kernels         the interface of a backend; tables on a device
    reference_kernels   the backend in plain torch operations, on any device
    launch          the backend in Triton
    triton_kernels  its kernels
    sass            what the compiler makes of them, without a GPU
    bench           throughput, beside a plain copy of the same bytes

triton is imported when a codec first uses it, not before.
"""

from __future__ import annotations

from hopsum.torch.codec.codec import TorchThc
from hopsum.torch.codec.feedback import TorchFeedback
from hopsum.torch.codec.ranges import pack_ranges, read_ranges

__all__ = ["TorchFeedback", "TorchThc", "pack_ranges", "read_ranges"]
