# SPDX-License-Identifier: Apache-2.0
"""Codec `lossless`: the exact sum of sparse vectors, in bytes that grow with their non-zero elements.

Source: Li et al., arXiv 2402.07529 (lossless homomorphic compression: count sketch, index, peeling). Integers in
place of floats make the sum exact. The other differences are in sketch_kernels.py and sketch_plan.py, and in
docs/lossless.md.

    lossless_codec   the codec, and one all-reduce as a state machine: ranges, index, sums
    sketch_plan      the index (bitmap or Bloom filter), sizes of sketches, kernels over whole vectors
    sketch_kernels   cells and hash functions, the interface of a backend, and numpy
    sketch_numba     the same in numba
"""

from __future__ import annotations

from hopsum.codec.lossless.lossless_codec import Lossless, LosslessReduction

__all__ = ["Lossless", "LosslessReduction"]
