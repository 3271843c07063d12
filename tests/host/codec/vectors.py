# SPDX-License-Identifier: Apache-2.0
"""Vectors and errors that several tests use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.codec import ErrorFeedback, ReductionContext, SharedRanges
from hopsum.codec.backends.kernels import BlockKeys, Form
from hopsum.codec.dither import Dither
from hopsum.codec.hashing import block_keys, lane_bits
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.simulate import simulate_switch
from hopsum_evaluation.simulated_allreduce import simulate_allreduce

Floats = NDArray[np.float32]


def normal(elements: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)


def layered(elements: int, seed: int = 1) -> Floats:
    """Heavy tails, and a scale that changes by six orders of magnitude along the vector."""
    rng = np.random.default_rng(seed)
    return (rng.standard_t(3, elements) * np.logspace(-3, 3, elements)).astype(np.float32)


def nmse(found: NDArray[Any], right: NDArray[Any]) -> float:
    error = found.astype(np.float64) - right
    return float(error @ error / (right.astype(np.float64) @ right))


def require_given_back(found: Floats, expected: Floats) -> None:
    """Require a vector of which a contribution was subtracted and added again: float32 rounds both times."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-22 * float(np.abs(expected).max()))


def dither_error(dither: Dither, rank: int = 0) -> float:
    """Return the variance that a rank's rounding adds to a coordinate, in distances of levels.

    It is 1/12 with a dither that is known exactly. What is not known of it counts too: its own bits, and what rounding
    of the known part to integers leaves.
    """
    known = ((np.arange(16) + dither.shifts[rank]) % 16 + 0.5) / 16 - 0.5
    unknown = known - dither.own[rank] / dither.unit
    return float(1 / 12 + 1 / 12 / 16**2 + np.mean(unknown**2))


def encode_alone(codec: RangeCodec, x: Floats, context: ReductionContext) -> tuple[NDArray[np.uint8], SharedRanges]:
    """Encode with the own ranges as shared ones."""
    own = codec.ranges(x)
    shared = SharedRanges(own.view(np.float32).copy())
    return codec.encode(x, own, shared, context), shared


def phases(codec: RangeCodec, x: Floats, context: ReductionContext, stretch: float) -> list[bytes]:
    """Return what the last rank makes of x, where contributions of ranks are missing, other ones in every chunk."""
    own = codec.ranges(x)
    shared = SharedRanges(own.view(np.float32) * np.float32(stretch))
    payloads = codec.encode(x, own, shared, context)
    others = codec.encode(x, own, shared, ReductionContext(context.seed, context.step, 0))
    present = np.random.default_rng(x.size).random((codec.workers, len(payloads))) < 0.7
    present[-1] |= ~present.any(axis=0)
    ranks = [*[others] * (codec.workers - 1), payloads]
    results, contributors = simulate_switch(codec.op, ranks, codec.lookup, present)
    mean = codec.decode(results, contributors, shared, x.size, context)
    some = np.arange(len(payloads)) % 3 != 1
    mine = codec.dequantize_own(payloads, shared, x.size, context, some)
    left = x.copy()
    codec.subtract_dequantized(left, payloads, shared, context, None)
    return [array.tobytes() for array in (own, payloads, mine, left, mean)]


def only(rank: int, chunks: int) -> NDArray[np.uint64]:
    return np.full(chunks, 1 << rank, np.uint64)


def means_and_residuals(codec: RangeCodec, vectors: list[Floats], seed: int) -> tuple[bytes, ...]:
    """Return the bytes of the one mean of all ranks, and of each rank's residual."""
    kept = [ErrorFeedback(x.size) for x in vectors]
    means = simulate_allreduce(codec, vectors, seed=seed, step=1, feedback=kept)
    assert means is not None
    assert len({mean.tobytes() for mean in means}) == 1
    return means[0].tobytes(), *(each.residual.tobytes() for each in kept)


def require_equal_backends(make: Callable[[str, int], RangeCodec], elements: int) -> None:
    """Hold numba, with one thread and with two, to numpy's bytes. `make` takes a backend and a number of threads."""
    pytest.importorskip("numba")
    vectors = [layered(elements, seed=rank) for rank in range(3)]
    ways = (("numpy", 1), ("numba", 1), ("numba", 2))
    assert len({means_and_residuals(make(*way), vectors, seed=5) for way in ways}) == 1


def sylvester(order: int) -> NDArray[np.int64]:
    matrix = np.ones((1, 1), np.int64)
    while len(matrix) < order:
        matrix = np.kron(np.array([[1, 1], [1, -1]]), matrix)
    return matrix


def signed_hadamard(keys: BlockKeys, form: Form, block: int) -> NDArray[np.int64]:
    """Return H D as the definition has it, rows in the wire's order."""
    elements = form.block_elements
    lanes = lane_bits(block_keys(keys.rotation, block, 1), 32)[0]
    signs = np.array([-1 if lanes[e % 32] >> np.uint32(e // 32) & np.uint32(1) else 1 for e in range(elements)])
    wire = np.arange(elements)
    return np.asarray(sylvester(elements)[wire % (elements // 16) * 16 + wire // (elements // 16)] * signs)
