# SPDX-License-Identifier: Apache-2.0
"""Tensors give the bytes that numpy gives, in plain operations and in the Triton kernels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hopsum.codec import ErrorFeedback, LookupTable, ReductionContext
from hopsum.codec.backends import load_kernels
from hopsum.codec.hashing import ROTATION, block_keys, derive_key, lane_bits
from hopsum.codec.lookup_table import best_table
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import Thc
from hopsum.codec.vector_reduction import SharedRanges
from hopsum.torch.codec import TorchThc
from hopsum.torch.codec.torch_kernels import FLOAT_LIMIT, DeviceTable, TritonKernels
from hopsum.torch.device_reduction import DeviceFeedback
from hopsum_evaluation.torch import bench

pytestmark = pytest.mark.system
Floats = NDArray[np.float32]
CPU = torch.device("cpu")
ODD_TABLES = [(0, *range(1, 15), 127), (*range(15), 16), (*range(0, 120, 8), 127)]


def vector(elements: int, seed: int = 1) -> Floats:
    """Heavy tails over six orders of magnitude, a spike, zeros of both signs, and values half way between integers."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_t(3, elements) * np.logspace(-3, 3, elements)).astype(np.float32)
    x[: elements // 8] = 0.0
    x[elements // 16 : elements // 8] = -0.0
    x[0] = 3.0
    return x


def pair(workers: int, backend: str, table: LookupTable | None = None, **form: int) -> tuple[Thc, TorchThc]:
    numpy = Thc(workers, table=table, kernels=load_kernels("numpy"), **form)
    return numpy, TorchThc(workers, table=table, backend=backend, **form)


def compare_phases(numpy: Thc, tensors: TorchThc, x: Floats, context: ReductionContext, stretch: float) -> None:
    own, own_tensor = numpy.ranges(x), tensors.ranges(torch.from_numpy(x))
    assert own_tensor.numpy().tobytes() == own.tobytes()
    values = own.view(np.float32) * np.float32(stretch)
    shared, shared_tensor = SharedRanges(values), torch.from_numpy(values)
    payloads = numpy.encode(x, own, shared, context)
    found = bench.encode(tensors, torch.from_numpy(x), own_tensor, shared_tensor, context)
    np.testing.assert_array_equal(found.numpy(), payloads)
    results, contributors = simulate_switch(numpy.op, [payloads] * numpy.workers, numpy.lookup)
    contributors = contributors.repeat(numpy.chunk_blocks)[: len(own)]
    mean = numpy.decode(results, contributors, shared, x.size, context)
    counts = torch.full((len(own),), numpy.workers, dtype=torch.int32)
    decoded = bench.decode(tensors, torch.from_numpy(results), counts, shared_tensor, context, x.size)
    assert decoded.numpy().tobytes() == mean.tobytes()
    left, left_tensor = x.copy(), torch.from_numpy(x.copy())
    numpy.subtract_contribution(left, payloads, shared, context)
    bench.subtract(tensors, found, shared_tensor, context, left_tensor)
    assert left_tensor.numpy().tobytes() == left.tobytes()


@pytest.mark.parametrize(("workers", "elements"), [(1, 5 * 1024 + 7), (4, 1024), (8, 1023), (8, 6 * 1024 + 1), (17, 1)])
def test_equals_numpy(backend: str, workers: int, elements: int) -> None:
    """Tables of all four have other granularities; that of one worker rotates in int32."""
    numpy, tensors = pair(workers, backend)
    context = ReductionContext(seed=-(1 << 69) + elements, step=1 << 40, rank=workers - 1)
    compare_phases(numpy, tensors, vector(elements), context, 1.7)


@pytest.mark.parametrize(
    ("workers", "form"), [(2, {"bits": 2}), (7, {"bits": 2}), (4, {"result_bits": 6}), (9, {"result_bits": 6})], ids=str
)
@pytest.mark.parametrize("elements", [1, 1024, 2047, 5 * 1024 + 7, 6 * 1024])
def test_forms_equal_numpy(backend: str, workers: int, form: dict[str, int], elements: int) -> None:
    """Paired codes and packed results: tables of 4, 3, 16 and 8 values; odd and even numbers of blocks."""
    numpy, tensors = pair(workers, backend, **form)
    assert (tensors.op, tensors.lookup, tensors.chunk_blocks) == (numpy.op, numpy.lookup, numpy.chunk_blocks)
    compare_phases(numpy, tensors, vector(elements), ReductionContext(seed=3, step=elements, rank=1), 1.7)


@pytest.mark.parametrize("values", ODD_TABLES)
def test_equals_numpy_for_odd_tables(backend: str, values: tuple[int, ...]) -> None:
    numpy, tensors = pair(2, backend, LookupTable(values, 1e-3))
    compare_phases(numpy, tensors, vector(3000), ReductionContext(1, 2, 0), 1.0)


@pytest.mark.parametrize("scale", [1e-42, 1e-31, 1e31])
def test_equals_numpy_at_the_ends_of_float32(backend: str, scale: float) -> None:
    numpy, tensors = pair(8, backend)
    compare_phases(
        numpy, tensors, (vector(2500) * np.float32(scale)).astype(np.float32), ReductionContext(1, 2, 0), 1.0
    )


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("stretch", [0.3, 1e-12])
def test_equals_numpy_for_ranges_that_came_too_late(backend: str, workers: int, stretch: float) -> None:
    numpy, tensors = pair(workers, backend)
    compare_phases(numpy, tensors, vector(4096), ReductionContext(7, 8, 0), stretch)


def rotated(coordinates: NDArray[np.float64], context: ReductionContext) -> Floats:
    """Vectors whose rotation is these coordinates, in H's order, float64[blocks, 1024]; flat."""
    matrix = np.ones((1, 1))
    while len(matrix) < 1024:
        matrix = np.kron(np.array([[1, 1], [1, -1]]), matrix)
    keys = block_keys(derive_key(context.seed, context.step, ROTATION), 0, len(coordinates))
    bits = lane_bits(keys, 32)[:, None, :] >> np.arange(32, dtype=np.uint32)[None, :, None] & np.uint32(1)
    return (coordinates @ matrix * (1.0 - 2.0 * bits.reshape(-1, 1024))).astype(np.float32).reshape(-1)


@pytest.mark.parametrize(
    ("values", "float32"),
    [((*range(15), 127), False), ((*range(0, 120, 8), 127), False), ((*range(15), 72), True), (tuple(range(16)), True)],
)
def test_sums_beyond_float32_give_the_same_codes(backend: str, values: tuple[int, ...], float32: bool) -> None:
    """All of a block's energy in one element, or in one or two coordinates of the rotation: the largest sums."""
    table = LookupTable(values, 2.0**-6.75)
    assert DeviceTable.of(values, table.bound, CPU).exact_float is float32
    numpy, tensors = pair(1, backend, table)
    context, rng = ReductionContext(3, 4, 0), np.random.default_rng(5)
    delta = np.zeros((2, 1024))
    delta[[0, 1], [0, 999]] = (1.0, -1e20)
    pairs = np.zeros((10, 1024))
    for stage in range(10):
        first = int(rng.integers(1024))
        pairs[stage, [first, first ^ 1 << stage]] = (1.0, (0.0, 1.0, rng.uniform(-1, 1))[stage % 3])
    x = np.concatenate((delta.astype(np.float32).reshape(-1), rotated(np.concatenate((delta, pairs)), context)[2048:]))
    compare_phases(numpy, tensors, np.ascontiguousarray(x), context, 1.0)


@pytest.mark.parametrize("warps", [1, 8])
@pytest.mark.skipif(torch.cuda.is_available(), reason="triton compiles for the GPU of this machine: test_cuda.py")
def test_warps_of_a_program_change_no_byte(warps: int) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    numpy, tensors = pair(8, "triton")
    tensors.kernels = TritonKernels(warps)
    compare_phases(numpy, tensors, vector(3 * 1024), ReductionContext(1, 2, 0), 1.0)


def test_error_feedback_equals_numpy(backend: str) -> None:
    """Residuals of three steps, with blocks that miss their sum."""
    numpy, tensors = pair(8, backend)
    elements = 3 * 1024 + 100
    right, found = ErrorFeedback(elements), DeviceFeedback(elements)
    for step in range(3):
        x = vector(elements, seed=step)
        context = ReductionContext(5, step, 2)
        included = np.array([True, step == 0, step != 1, step != 2])
        pending = right.compensate(x)
        own_tensor = found.compensate(tensors, torch.from_numpy(x))
        own = numpy.ranges(pending)
        assert own_tensor.numpy().tobytes() == own.tobytes()
        shared = torch.from_numpy(own.view(np.float32).copy())
        payloads = bench.encode(tensors, found.pending, own_tensor, shared, context)
        sent = numpy.encode(pending, own, SharedRanges(shared.numpy()), context)
        delivered = numpy.contribution(sent, SharedRanges(shared.numpy()), elements, context, included)
        right.commit(delivered)
        factors = tensors.factors(shared, torch.ones(4, dtype=torch.int32)) * torch.from_numpy(included)
        tensors.subtract_blocks(payloads, factors, context, found.pending)
        found.commit()
        assert found.residual.numpy().tobytes() == right.residual.tobytes()


def test_cells_give_the_code_of_every_position() -> None:
    """At both ends of each cell, with random bits below, at and above what rounds up."""
    for values in ODD_TABLES:
        cells = DeviceTable.of(values, 3.0, CPU).cells.tolist()
        for cell in range(128):
            for q in (cell << 16, (cell << 16) + 12345, (cell + 1 << 16) - 1):
                for u in (0, 1, 777, 65535):
                    reached = [q + u * (high - low) >= high << 16 for low, high in pairwise(values)]
                    width = cells[cell] & 0xFF
                    found = (0x3F800000 + q + (u + 1) * width - cells[cell] & 0xFFFFFFFF) >> 28
                    assert found == sum(reached), (values, q, u)


def test_the_best_tables_of_four_workers_and_more_rotate_in_float32() -> None:
    for workers in range(4, 18):
        table = best_table(workers)
        assert DeviceTable.of(table.values, table.bound, CPU).exact_float


def clamped(v: NDArray[np.int64], dtype: type) -> NDArray[np.int64]:
    """Rotate in the order of the kernels, with sums of a type, and clamp to the ends of the widest table."""
    y = v.astype(dtype)
    for stage in (5, 6, 7, 8, 9, 0, 1, 2, 3, 4):
        halves = y.reshape(len(y), -1, 2, 1 << stage)
        y = np.stack((halves[:, :, 0] + halves[:, :, 1], halves[:, :, 0] - halves[:, :, 1]), axis=2)
        y = y.reshape(len(v), 1024)
    return np.clip(y, -127 << 15, 127 << 15).astype(np.int64)


@pytest.mark.parametrize(("ratio", "equal"), [(FLOAT_LIMIT, True), (FLOAT_LIMIT + 4, False)])
def test_the_limit_of_float32_rotations(ratio: float, equal: bool) -> None:
    """Blocks near one row of H, at the largest norm: two values of stage 9 are the largest, and nearly cancel."""
    rng = np.random.default_rng(9)
    rows = rng.integers(1024, size=64)
    parity = np.array([[(int(row) & e).bit_count() & 1 for e in range(1024)] for row in rows])
    v = rng.integers(-40, 41, (64, 1024)) + int(2.0**11 * ratio) * (1 - 2 * parity)
    norm = np.sqrt((v.astype(np.float64) ** 2).sum(axis=1))
    v = np.rint(v * (2.0**16 * ratio / norm)[:, None]).astype(np.int64)
    assert bool((clamped(v, np.float32) == clamped(v, np.int64)).all()) is equal
