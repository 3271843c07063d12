# SPDX-License-Identifier: Apache-2.0
"""Methods that need no aggregator: endpoints exchange what they have among themselves.

Bits are those of a worker's link in each direction, payload only. What a worker keeps for itself does not travel.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import CodecError
from hopsum_evaluation.baselines.two_shot import BLOCK, block_bytes, dequantise, padded, quantise
from hopsum_evaluation.compare.methods import FLOAT_BITS, Bits, MethodResult, Theory, Vectors


class TwoShotMethod:
    """The two-shot all-reduce with codes of 4 or 8 bits: see `hopsum_evaluation.baselines.two_shot`."""

    def __init__(self, workers: int, bits: int) -> None:
        """Raise CodecError unless there are two workers at least."""
        require_two(workers, "two-shot")
        self.bits = bits

    def run(self, vectors: Vectors, seed: int, step: int) -> MethodResult:
        """See `MeanMethod`. Nothing is random. Without error feedback, as all methods here."""
        workers, elements = len(vectors), vectors[0].size
        sent = [quantise(padded(x, workers), self.bits) for x in vectors]
        total = np.zeros(sent[0].shape[0] * BLOCK, np.float32)
        for blocks in sent:
            total += dequantise(blocks, self.bits) / np.float32(workers)
        mean = dequantise(quantise(total, self.bits), self.bits)[:elements]
        each = 2 * (workers - 1) / workers * 8 * block_bytes(self.bits) / BLOCK
        return MethodResult(mean, Bits(each, each, each * (sent[0].shape[0] * BLOCK / elements - 1)))

    def theory(self, x: NDArray[np.float32], workers: int, seed: int) -> Theory | None:
        """See `MeanMethod`: none, since equal vectors are rounded alike."""
        return None


class PowerSgdMethod:
    """PowerSGD (Vogels et al., NeurIPS 2019): the vector as a matrix M, its mean as P Q^T of low rank.

    Q is kept from all-reduce to all-reduce, as torch's hook keeps it: repeated on the same vectors, a power iteration.
    Both P and Q are all-reduced in float32, by a ring. A vector of no known shape is a matrix that is nearly square.
    """

    def __init__(self, workers: int, rank: int) -> None:
        """Raise CodecError unless there are two workers at least."""
        require_two(workers, "powersgd")
        self.rank = rank
        self._q: NDArray[np.float32] | None = None

    def run(self, vectors: Vectors, seed: int, step: int) -> MethodResult:
        """See `MeanMethod`. `seed` decides where Q begins."""
        workers, elements = len(vectors), vectors[0].size
        columns = 1 << round(np.log2(elements) / 2)
        rows = -(-elements // columns)
        matrices = [np.pad(x, (0, rows * columns - elements)).reshape(rows, columns) for x in vectors]
        if self._q is None or self._q.shape != (columns, self.rank):
            self._q = np.random.default_rng(seed).standard_normal((columns, self.rank), dtype=np.float32)
        p = np.linalg.qr(np.mean([matrix @ self._q for matrix in matrices], axis=0))[0]
        self._q = np.mean([matrix.T @ p for matrix in matrices], axis=0)
        mean = (p @ self._q.T).reshape(-1)[:elements].astype(np.float32)
        each = 2 * (workers - 1) / workers * FLOAT_BITS * self.rank * (rows + columns) / elements
        return MethodResult(mean, Bits(each, each, 0.0))

    def theory(self, x: NDArray[np.float32], workers: int, seed: int) -> Theory | None:
        """See `MeanMethod`: none."""
        return None


def require_two(workers: int, name: str) -> None:
    """Raise CodecError where a worker has nobody to exchange with."""
    if workers < 2:
        raise CodecError(f"{name}: {workers} worker has nobody to exchange with; 2 at least")
