# SPDX-License-Identifier: Apache-2.0
"""Codec `lossless`: the exact sum of sparse vectors, in bytes that grow with their non-zero elements.

Source: Li et al., arXiv 2402.07529 (lossless homomorphic compression: count sketch, index, peeling). Integers in
place of floats make the sum exact. What else differs stands in layout.py and sizing.py, and in docs/lossless.md.

    codec       the codec and its options
    reduction   one all-reduce as a state machine: ranges, index, sums
    index       bitmap or Bloom filter
    sizing      how large sketches are; what is packed
    layout      hash functions: where an element lies
    work        kernels over whole vectors, on several threads
    kernels     what a backend does; reference (numpy), compiled (numba)
"""

from __future__ import annotations

from hopsum.codec.lossless.codec import Lossless
from hopsum.codec.lossless.reduction import LosslessReduction
from hopsum.codec.lossless.sizing import Sizing

__all__ = ["Lossless", "LosslessReduction", "Sizing"]
