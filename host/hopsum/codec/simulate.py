# SPDX-License-Identifier: Apache-2.0
"""A switch in numpy: it sums payloads, for checks of codecs and for measurements without a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.interface import Bytes, Codec, CodecError, CollectivePhase, Flags
from hopsum_wire import LANE_GROUP_CODES, Op
from hopsum_wire.payload import SHAPES, lanes, pack_codes, requantize, unpack_codes


def lane_values(
    op: int, payloads: Bytes, table: Sequence[int] | None = None, code_group: int = LANE_GROUP_CODES
) -> NDArray[Any]:
    """Return the lanes that a switch adds for UPDATE payloads, in element order, of the op's lane type.

    Args:
        op: any of the switch program's.
        payloads: uint8[..., up_bytes(op)], contiguous.
        table: the codec's `lookup`, for ops with codes. It gives the values of codes.
        code_group: of the codec that made them.

    Returns:
        A view of the payloads for ops without codes, else a new array.

    Raises:
        CodecError: an op with codes, and no table.
    """
    if not SHAPES[op].has_codes:
        return lanes(op, payloads)
    if table is None:
        raise CodecError(f"{Op(op).name} needs a table")
    dtype, bits = np.dtype(SHAPES[op].lane_dtype), SHAPES[op].code_bits
    # Signed values are two's complement in a lane. Thresholds follow the values.
    values = (np.array(table[: 1 << bits]) & (1 << 8 * dtype.itemsize) - 1).astype(dtype)
    return np.asarray(values[unpack_codes(payloads, 8 * dtype.itemsize, code_group, bits=bits)])


def simulate_phase(
    codec: Codec, phases: Sequence[CollectivePhase], present: Flags | None = None
) -> tuple[Bytes, NDArray[np.uint64]]:
    """Sum one phase as a switch does, or as the ranks do where these add. Return RESULT payloads and contributors.

    Args:
        codec: of the phases.
        phases: of the ranks that take part, in order; contributors number them from 0. Where ranks add, of all ranks.
        present: see `simulate_switch`. Where ranks add, all contributions arrive.
    """
    payloads = [phase.payloads for phase in phases]
    if phases[0].add is None:
        return simulate_switch(phases[0].op, payloads, codec.lookup, present, codec.code_group)
    parts = np.stack(payloads).reshape(len(phases), len(phases), -1, payloads[0].shape[1])
    owners = enumerate(phase.add for phase in phases if phase.add is not None)
    results = np.concatenate([add(np.ascontiguousarray(parts[:, rank])) for rank, add in owners])
    return results, np.full(len(results), (1 << len(phases)) - 1, np.uint64)


def simulate_switch(
    op: int,
    payloads: Sequence[Bytes],
    table: Sequence[int] | None = None,
    present: Flags | None = None,
    code_group: int = LANE_GROUP_CODES,
) -> tuple[Bytes, NDArray[np.uint64]]:
    """Sum the payloads of all ranks as a switch does. Return RESULT payloads, and contributors, uint64[chunks].

    Args:
        op: any of the switch program's.
        payloads: one uint8[chunks, up_bytes(op)] per rank; contributors number them from 0.
        table: the codec's `lookup`, for ops that look up.
        present: contributions that arrive, bool[ranks, chunks], all by default. Every chunk has one at least.
        code_group: codes that the codec packed as a group.

    Raises:
        CodecError: an op with codes, and no table.
    """
    # All ranks at once: for measurements of some megabytes, not for large jobs.
    stacked = np.stack(payloads)
    if present is None:
        present = np.ones(stacked.shape[:2], np.bool_)
    values = lane_values(op, stacked, table, code_group)
    # 0 is neutral for sums, OR, and the maximum of non-negative ranges.
    masked = np.where(present[:, :, None], values, values.dtype.type(0))
    if op == Op.MAX32:
        total = masked.max(axis=0)
    elif op == Op.OR:
        total = np.bitwise_or.reduce(masked, axis=0)
    else:
        # Native byte order adds faster. Lanes wrap modulo their width, as in the switch.
        total = masked.sum(axis=0, dtype=values.dtype.newbyteorder("="))
    bits = np.uint64(1) << np.arange(len(stacked), dtype=np.uint64)
    contributors = np.where(present, bits[:, None], np.uint64(0)).sum(axis=0, dtype=np.uint64)
    results = np.ascontiguousarray(total.astype(values.dtype)).view(np.uint8)
    return result_payloads(op, results, table), contributors


def result_payloads(op: int, sums: Bytes, table: Sequence[int] | None) -> Bytes:
    """Return RESULT payloads, uint8[..., down_bytes(op)], for lanes, uint8[..., 1024], as the op makes them.

    `table` is as for `lane_values`.
    """
    shape = SHAPES[op]
    if not shape.down_codes:
        return sums
    assert table is not None
    return pack_codes(requantize(sums, table[1 << shape.code_bits :]), bits=shape.code_bits)
