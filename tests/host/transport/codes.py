# SPDX-License-Identifier: Apache-2.0
"""Codes without a codec, with machine code that makes payloads and reads sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopsum.codec.backends.jit import kernel, pointer, types
from hopsum.codec.interface import ChunkStream, address_of
from hopsum.protocol.worker import AllReduceDone
from hopsum_wire import Op, down_bytes

RANGE_BYTES = down_bytes(Op.MAX32)
_integers, _octets, _bits = pointer(types.int64), pointer(types.uint8), pointer(types.uint64)
# The memory of a stream without a codec: a fault, then addresses, and the bytes of payloads and results.
SOURCE, PAYLOADS, UP_BYTES, MEAN, DOWN_BYTES, TAKEN, SUMS, SUMS_BYTES = range(1, 9)


@kernel(types.int64, types.int64, types.int64, types.int64, types.int64)
def compare_sums(memory: Any, sent: Any, before: Any, first: Any, rest: Any) -> None:
    """Begin if the sums of the ranges are those that were told, and the lanes before them as sent."""
    w = _integers(memory)
    w[0] = 1
    for j in range(4 * before):
        if _octets(sent)[j] != _octets(first)[j]:
            return
    for j in range(w[SUMS_BYTES]):
        if _octets(w[SUMS])[j] != _octets(first + j if j < RANGE_BYTES else rest + j - RANGE_BYTES)[0]:
            return
    w[0] = 0


@kernel(types.int64, types.int64, types.int64)
def copy_codes(memory: Any, first: Any, end: Any) -> None:
    """Make the payloads of chunks by copying them."""
    w = _integers(memory)
    for j in range(first * w[UP_BYTES], end * w[UP_BYTES]):
        _octets(w[PAYLOADS])[j] = _octets(w[SOURCE])[j]


@kernel(types.int64, types.int64, types.int64, types.int64, types.int64)
def copy_sums(memory: Any, first: Any, end: Any, results: Any, contributors: Any) -> None:
    """Read the sums of chunks by copying them."""
    w = _integers(memory)
    for j in range(first * w[DOWN_BYTES], end * w[DOWN_BYTES]):
        _octets(w[MEAN])[j] = _octets(results)[j]
    for chunk in range(first, end):
        _bits(w[TAKEN])[chunk] = _bits(contributors)[chunk]


class Codes:
    """A vector in the place of a codec's reduction: payloads are copied from `source`, and sums to `mean`."""

    phase = ()
    """As of a reduction that is not over."""

    def __init__(self, payloads: Any, op: int, sums: Any = None) -> None:
        """With `sums`, codes begin once these are the sums of the ranges."""
        self.source = payloads
        self.mean = np.zeros((len(payloads), down_bytes(op)), np.uint8)
        memory = np.zeros(9, np.int64)
        self.stream = ChunkStream(np.zeros_like(payloads), np.zeros(len(payloads), np.uint64), memory=memory)
        self.stream.begun, self.stream.beginner = sums is None, compare_sums
        if sums is not None:
            memory[SUMS], memory[SUMS_BYTES] = address_of(sums), sums.nbytes
        self.stream.encoder, self.stream.decoder = copy_codes, copy_sums
        memory[SOURCE], memory[PAYLOADS] = address_of(payloads), address_of(self.stream.payloads)
        memory[UP_BYTES], memory[DOWN_BYTES] = payloads.shape[1], self.mean.shape[1]
        memory[MEAN], memory[TAKEN] = address_of(self.mean), address_of(self.stream.contributors)

    @property
    def is_begun(self) -> bool:
        return self.stream.begun

    @property
    def encoded(self) -> int:
        return self.stream.encoded

    def encode_part(self) -> Any:
        """Make the next payloads, as `Reduction.encode_part`."""
        chunks = slice(self.stream.encoded, min(self.stream.encoded + 20, len(self.source)))
        self.stream.payloads[chunks] = self.source[chunks]
        self.stream.encoded = chunks.stop
        return self.stream.payloads[chunks]

    def take_part(self, first: int, results: Any, contributors: Any) -> None:
        """Take results early, as `Reduction.take_part`."""
        assert first == (self.stream.taken if len(results) else 0)
        end = first + len(results)
        self.mean[first:end], self.stream.contributors[first:end] = results, contributors
        self.stream.taken = end

    def check(self, done: AllReduceDone) -> None:
        """Compare what was read early with the results in the end."""
        assert np.array_equal(self.mean[: self.stream.taken], done.results[: self.stream.taken])
        assert np.array_equal(self.stream.contributors[: self.stream.taken], done.contributors[: self.stream.taken])
