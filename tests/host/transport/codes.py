# SPDX-License-Identifier: Apache-2.0
"""Codes without a codec, with machine code that makes payloads and reads sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopsum.codec.backends.jit import kernel
from hopsum.codec.interface import ChunkStream, address_of
from hopsum.protocol.worker import AllReduceDone
from hopsum_base.record_kernels import bits_at, octets_at, record_at, types
from hopsum_base.records import Address, Bool, Int64, Record, record
from hopsum_wire import Op, down_bytes

RANGE_BYTES = down_bytes(Op.MAX32)


@record
class CopiedRun(Record):
    """The memory of a stream without a codec."""

    __slots__ = ()
    has_fault: Bool
    source: Address
    payloads: Address
    up_bytes: Int64
    mean: Address
    down_bytes: Int64
    contributors: Address
    sums: Address
    sums_bytes: Int64


_run_at = record_at(CopiedRun)


@kernel(types.int64, types.int64, types.int64, types.int64, types.int64)
def compare_sums(address: int, sent: int, before: int, first: int, rest: int) -> None:
    """Begin if the sums of the ranges are those that were told, and the lanes before them as sent."""
    run = _run_at(address)
    run.has_fault = True
    for j in range(4 * before):
        if octets_at(sent)[j] != octets_at(first)[j]:
            return
    for j in range(run.sums_bytes):
        if octets_at(run.sums)[j] != octets_at(first + j if j < RANGE_BYTES else rest + j - RANGE_BYTES)[0]:
            return
    run.has_fault = False


@kernel(types.int64, types.int64, types.int64)
def copy_codes(address: int, first: int, end: int) -> None:
    """Make the payloads of chunks by copying them."""
    run = _run_at(address)
    for j in range(first * run.up_bytes, end * run.up_bytes):
        octets_at(run.payloads)[j] = octets_at(run.source)[j]


@kernel(types.int64, types.int64, types.int64, types.int64, types.int64)
def copy_sums(address: int, first: int, end: int, results: int, contributors: int) -> None:
    """Read the sums of chunks by copying them."""
    run = _run_at(address)
    for j in range(first * run.down_bytes, end * run.down_bytes):
        octets_at(run.mean)[j] = octets_at(results)[j]
    for chunk in range(first, end):
        bits_at(run.contributors)[chunk] = bits_at(contributors)[chunk]


class Codes:
    """A vector in the place of a codec's reduction: payloads are copied from `source`, and sums to `mean`."""

    phase = ()
    """As of a reduction that is not over."""

    def __init__(self, payloads: Any, op: int, sums: Any = None) -> None:
        """With `sums`, codes begin once these are the sums of the ranges."""
        self.source = payloads
        self.mean = np.zeros((len(payloads), down_bytes(op)), np.uint8)
        run = CopiedRun()
        self.stream = ChunkStream(np.zeros_like(payloads), np.zeros(len(payloads), np.uint64), run=run)
        self.stream.begun, self.stream.scale_kernel = sums is None, compare_sums
        if sums is not None:
            run.sums, run.sums_bytes = address_of(sums), sums.nbytes
        self.stream.encoder, self.stream.decoder = copy_codes, copy_sums
        run.source, run.payloads = address_of(payloads), address_of(self.stream.payloads)
        run.up_bytes, run.down_bytes = payloads.shape[1], self.mean.shape[1]
        run.mean, run.contributors = address_of(self.mean), address_of(self.stream.contributors)

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

    def on_part(self, first: int, results: Any, contributors: Any) -> None:
        """Take results early, as `Reduction.on_part`."""
        assert first == (self.stream.taken if len(results) else 0)
        end = first + len(results)
        self.mean[first:end], self.stream.contributors[first:end] = results, contributors
        self.stream.taken = end

    def check(self, done: AllReduceDone) -> None:
        """Compare what was read early with the results in the end."""
        assert np.array_equal(self.mean[: self.stream.taken], done.results[: self.stream.taken])
        assert np.array_equal(self.stream.contributors[: self.stream.taken], done.contributors[: self.stream.taken])
