# SPDX-License-Identifier: Apache-2.0
"""Codes without a codec, with machine code that makes payloads and reads sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopsum.codec.backends.jit import kernel, pointer, types
from hopsum.codec.interface import ChunkStream, address_of
from hopsum.protocol.worker import AllReduceDone
from hopsum_wire import down_bytes

_integers, _octets, _bits = pointer(types.int64), pointer(types.uint8), pointer(types.uint64)
# The memory of a stream without a codec: a fault, then addresses, and the bytes of payloads and results.
SOURCE, PAYLOADS, UP_BYTES, MEAN, DOWN_BYTES, TAKEN = range(1, 7)


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

    def __init__(self, payloads: Any, op: int) -> None:
        self.source = payloads
        self.mean = np.zeros((len(payloads), down_bytes(op)), np.uint8)
        memory = np.zeros(7, np.int64)
        self.stream = ChunkStream(np.zeros_like(payloads), np.zeros(len(payloads), np.uint64), memory=memory)
        self.stream.encoder, self.stream.decoder = copy_codes, copy_sums
        memory[SOURCE], memory[PAYLOADS] = address_of(payloads), address_of(self.stream.payloads)
        memory[UP_BYTES], memory[DOWN_BYTES] = payloads.shape[1], self.mean.shape[1]
        memory[MEAN], memory[TAKEN] = address_of(self.mean), address_of(self.stream.contributors)

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
