# SPDX-License-Identifier: Apache-2.0
"""Tensors give the bytes that numpy gives, in plain operations and in the Triton kernels."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hopsum.codec import ErrorFeedback, LookupTable, ReductionContext
from hopsum.codec.backends.kernels import BlockKeys, Form, Kernels
from hopsum.codec.dither import CLASSES, ResultValues
from hopsum.codec.hashing import ROTATION, block_keys, derive_key, lane_bits
from hopsum.codec.lookup_table import best_table
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import Thc
from hopsum.codec.vector_reduction import SharedRanges
from hopsum.torch.codec import TorchThc
from hopsum.torch.codec.torch_kernels import (
    FLOAT_LIMIT,
    DeviceDither,
    DeviceTable,
    TritonKernels,
    load_torch_kernels,
    pack_codes,
    unpack_codes,
)
from hopsum.torch.device_reduction import DeviceFeedback
from hopsum_wire import payload as wire_payload

from .phases import FORMS, contributors, decode, encode, host_thc, subtract

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


def pair(workers: int, backend: str, **options: object) -> tuple[Thc, TorchThc]:
    numpy = host_thc(workers, **options)
    return numpy, TorchThc(numpy, backend=backend)


def stochastic(workers: int, backend: str, table: LookupTable | None = None) -> tuple[Thc, TorchThc]:
    return pair(workers, backend, table=table, rounding="stochastic")


def drawn_bitmaps(workers: int, blocks: int) -> NDArray[np.uint64]:
    """Contributors of blocks: all ranks in the first one, and in the others some, each time others."""
    rng = np.random.default_rng(blocks)
    present = rng.random((workers, blocks)) < 0.7
    present[rng.integers(workers, size=blocks), np.arange(blocks)] = True
    present[:, 0] = True
    bits = np.uint64(1) << np.arange(workers, dtype=np.uint64)
    return np.asarray(np.where(present, bits[:, None], np.uint64(0)).sum(axis=0, dtype=np.uint64))


def compare_phases(
    numpy: Thc,
    tensors: TorchThc,
    x: Floats,
    context: ReductionContext,
    stretch: float,
    bitmaps: NDArray[np.uint64] | None = None,
) -> None:
    """Compare all that is made of a vector. Every contributor, by default every rank, sends the codes of one."""
    own, own_tensor = numpy.ranges(x), tensors.ranges(torch.from_numpy(x))
    assert own_tensor.numpy().tobytes() == own.tobytes()
    values = own.view(np.float32) * np.float32(stretch)
    shared, shared_tensor = SharedRanges(values), torch.from_numpy(values)
    payloads = numpy.encode(x, own, shared, context)
    found = encode(tensors, torch.from_numpy(x), own_tensor, shared_tensor, context)
    np.testing.assert_array_equal(found.numpy(), payloads)
    if bitmaps is None:
        bitmaps = np.full(len(own), (1 << numpy.workers) - 1, np.uint64)
    present = (bitmaps >> np.arange(numpy.workers, dtype=np.uint64)[:, None] & np.uint64(1)).astype(np.bool_)
    results, told = simulate_switch(numpy.op, [payloads] * numpy.workers, numpy.lookup, present)
    np.testing.assert_array_equal(told, bitmaps)
    mean = numpy.decode(results, bitmaps, shared, x.size, context)
    decoded = decode(tensors, torch.from_numpy(results), bitmaps, shared_tensor, context, x.size)
    assert decoded.numpy().tobytes() == mean.tobytes()
    left, left_tensor = x.copy(), torch.from_numpy(x.copy())
    numpy.subtract_dequantized(left, payloads, shared, context)
    subtract(tensors, found, shared_tensor, context, left_tensor)
    assert left_tensor.numpy().tobytes() == left.tobytes()


@pytest.mark.parametrize(("workers", "elements"), [(1, 5 * 1024 + 7), (4, 1024), (8, 1023), (8, 9 * 1024 + 1), (17, 1)])
def test_equals_numpy(backend: str, workers: int, elements: int) -> None:
    """Tables of all four have other granularities; that of one worker rotates in int32."""
    numpy, tensors = stochastic(workers, backend)
    context = ReductionContext(seed=-(1 << 69) + elements, step=1 << 40, rank=workers - 1)
    compare_phases(numpy, tensors, vector(elements), context, 1.7)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(
    ("workers", "elements"), [(1, 2047), (3, 1), (4, 5 * 1024 + 7), (8, 1024), (9, 9 * 1024), (17, 3 * 1024 + 1)]
)
def test_forms_equal_numpy(backend: str, form: dict[str, object], workers: int, elements: int) -> None:
    """Units of 2, 4 and 8; levels 1 and 2 apart; blocks of zeros; contributors that miss in some blocks."""
    numpy, tensors = pair(workers, backend, **form)
    assert (tensors.op, tensors.lookup, tensors.result_bits) == (numpy.op, numpy.lookup, numpy.result_bits)
    context = ReductionContext(seed=3, step=elements, rank=workers - 1)
    compare_phases(numpy, tensors, vector(elements), context, 1.7, drawn_bitmaps(workers, -(-elements // 1024)))


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_means_of_unlike_norms_equal_numpy(backend: str, bits: int) -> None:
    """Their blocks are of the narrow classes, whose values are for one large worker."""
    workers, elements = 4, 16 * 1024
    numpy, tensors = pair(workers, backend, bits=bits, error_feedback=False)
    drawn = np.random.default_rng(bits).standard_normal((workers, elements)).astype(np.float32)
    drawn[-1] *= np.linspace(1, 8, elements, dtype=np.float32)
    shared = SharedRanges(np.max([numpy.ranges(x).view(np.float32) for x in drawn], axis=0))
    contexts = [ReductionContext(5, bits, rank) for rank in range(workers)]
    payloads = [numpy.encode(x, numpy.ranges(x), shared, each) for x, each in zip(drawn, contexts, strict=True)]
    results, bitmaps = simulate_switch(numpy.op, payloads, numpy.lookup)
    mean = numpy.decode(results, bitmaps, shared, elements, contexts[0])
    ranges = torch.from_numpy(shared.values)
    decoded = decode(tensors, torch.from_numpy(results), bitmaps, ranges, contexts[0], elements)
    assert decoded.numpy().tobytes() == mean.tobytes()
    true = drawn.mean(axis=0, dtype=np.float64)
    assert abs(float(mean @ true / (true @ true)) - 1) < 0.05


@pytest.mark.parametrize("form", [{"error_feedback": False}, {"bits": 2, "error_feedback": True}], ids=str)
def test_values_are_those_of_the_hosts_codec(backend: str, form: dict[str, object]) -> None:
    """Results have other values with error feedback and without, and both sides of a job have the same ones."""
    numpy, tensors = pair(4, backend, **form)
    other = host_thc(4, **form | {"error_feedback": not form["error_feedback"]})
    assert tensors.dither is numpy.dither
    assert numpy.facts != other.facts
    compare_phases(numpy, tensors, vector(4 * 1024), ReductionContext(1, 2, 3), 1.0)


@pytest.mark.parametrize(("workers", "form"), [(42, {"bits": 2}), (64, {}), (33, {"result_bits": 8})], ids=str)
def test_many_workers_equal_numpy(backend: str, workers: int, form: dict[str, object]) -> None:
    """The most workers of 2 bits, and bitmaps of all 64 bits."""
    numpy, tensors = pair(workers, backend, **form)
    context = ReductionContext(seed=3, step=4, rank=workers - 1)
    compare_phases(numpy, tensors, vector(5 * 1024), context, 1.0, drawn_bitmaps(workers, 5))


@pytest.mark.parametrize("values", ODD_TABLES)
def test_equals_numpy_for_odd_tables(backend: str, values: tuple[int, ...]) -> None:
    numpy, tensors = stochastic(2, backend, LookupTable(values, 1e-3))
    compare_phases(numpy, tensors, vector(3000), ReductionContext(1, 2, 0), 1.0)


@pytest.mark.parametrize("form", [{}, {"rounding": "stochastic"}], ids=str)
@pytest.mark.parametrize("scale", [1e-42, 1e-31, 1e31])
def test_equals_numpy_at_the_ends_of_float32(backend: str, form: dict[str, object], scale: float) -> None:
    numpy, tensors = pair(8, backend, **form)
    compare_phases(
        numpy, tensors, (vector(2500) * np.float32(scale)).astype(np.float32), ReductionContext(1, 2, 0), 1.0
    )


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("workers", "stretch"), [(1, 0.3), (8, 0.3), (1, 1e-12), (8, 1e-12)])
def test_equals_numpy_for_ranges_that_came_too_late(
    backend: str, form: dict[str, object], workers: int, stretch: float
) -> None:
    numpy, tensors = pair(workers, backend, **form)
    compare_phases(numpy, tensors, vector(3072), ReductionContext(7, 8, 0), stretch)


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
    assert DeviceTable.from_values(values, table.bound, CPU).exact_float is float32
    numpy, tensors = stochastic(1, backend, table)
    context, rng = ReductionContext(3, 4, 0), np.random.default_rng(5)
    delta = np.zeros((2, 1024))
    delta[[0, 1], [0, 999]] = (1.0, -1e20)
    pairs = np.zeros((10, 1024))
    for stage in range(10):
        first = int(rng.integers(1024))
        pairs[stage, [first, first ^ 1 << stage]] = (1.0, (0.0, 1.0, rng.uniform(-1, 1))[stage % 3])
    x = np.concatenate((delta.astype(np.float32).reshape(-1), rotated(np.concatenate((delta, pairs)), context)[2048:]))
    compare_phases(numpy, tensors, np.ascontiguousarray(x), context, 1.0)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("warps", [1, 8])
@pytest.mark.skipif(torch.cuda.is_available(), reason="triton compiles for the GPU of this machine: test_cuda.py")
def test_warps_of_a_program_change_no_byte(form: dict[str, object], warps: int) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    numpy, tensors = pair(8, "triton", **form)
    tensors.kernels = TritonKernels(warps)
    compare_phases(numpy, tensors, vector(3 * 1024), ReductionContext(1, 2, 0), 1.0, drawn_bitmaps(8, 3))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_error_feedback_equals_numpy(backend: str, form: dict[str, object]) -> None:
    """Residuals of three steps, with blocks that miss their sum."""
    numpy, tensors = pair(8, backend, **form)
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
        payloads = encode(tensors, found.pending, own_tensor, shared, context)
        sent = numpy.encode(pending, own, SharedRanges(shared.numpy()), context)
        delivered = numpy.dequantize_own(sent, SharedRanges(shared.numpy()), elements, context, included)
        right.commit(delivered)
        subtract(tensors, payloads, shared, context, found.pending, torch.from_numpy(included))
        found.commit()
        assert found.residual.numpy().tobytes() == right.residual.tobytes()


@pytest.mark.parametrize("form", [{"result_bits": 8}, {"rounding": "stochastic"}], ids=str)
def test_a_whole_sum_is_what_its_contributors_subtract(form: dict[str, object]) -> None:
    """The mean, times their number, and what they keep are together what they had: nothing is lost or doubled."""
    numpy, tensors = pair(5, "torch", **form)
    generator = torch.Generator().manual_seed(3)
    vectors = [torch.randn(3000, generator=generator) for _ in range(5)]
    own = [tensors.ranges(x) for x in vectors]
    shared = torch.stack(own).amax(dim=0)
    inside = (0, 2, 3)
    contexts = [ReductionContext(1, 2, rank) for rank in range(5)]
    payloads = [encode(tensors, vectors[rank], own[rank], shared, contexts[rank]) for rank in inside]
    results, _ = simulate_switch(numpy.op, [each.numpy() for each in payloads], numpy.lookup)
    bitmaps = np.full(3, sum(1 << rank for rank in inside), np.uint64)
    mean = decode(tensors, torch.from_numpy(results), bitmaps, shared, contexts[0], 3000)
    left = torch.stack([vectors[rank] for rank in inside]).double().sum(dim=0)
    for rank, sent in zip(inside, payloads, strict=True):
        kept = vectors[rank].clone()
        subtract(tensors, sent, shared, contexts[rank], kept)
        left -= kept.double()
    # float32 rounds each decoded value, and each difference.
    most = 2.0**-24 * float(torch.stack(vectors).abs().max() + mean.abs().max()) * 3 * 4
    assert float((left - 3 * mean.double()).abs().max()) <= most


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_codes_are_packed_as_on_the_wire(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(1 << bits, size=(5, 1024), dtype=np.uint8)
    payloads = wire_payload.pack_codes(codes, bits=bits)
    np.testing.assert_array_equal(pack_codes(torch.from_numpy(codes), bits).numpy(), payloads)
    np.testing.assert_array_equal(unpack_codes(torch.from_numpy(payloads), bits).numpy(), codes)


@pytest.mark.parametrize(("workers", "bits"), [(3, 2), (7, 3), (17, 4)])
def test_classes_end_at_their_bounds(backend: str, workers: int, bits: int) -> None:
    """Blocks whose energies are the bounds, and codes of all widths: every class."""
    rng, form, keys = np.random.default_rng(bits), Form(code_bits=bits, requantized=True), BlockKeys(7, 8, 9, 10)
    dither = host_thc(workers, bits=bits).dither
    assert dither is not None
    assert dither.results is not None
    blocks = CLASSES - 1
    widths = np.linspace(0.1, 1.5, blocks)[:, None] * 2 ** (bits - 1)
    codes = np.clip(rng.normal(2 ** (bits - 1) - 0.5, widths, (blocks, 1024)).round(), 0, 2**bits - 1).astype(np.uint8)
    payloads = wire_payload.pack_codes(codes, bits=bits)
    energies = np.sort(((2 * codes.astype(np.int32) - 2**bits + 1) ** 2).sum(axis=1))[::-1]
    values = rng.integers(-200, 201, (workers + 1, CLASSES, 16)).astype(np.int16)
    exact = ResultValues(np.tile(energies, (workers + 1, 1)).astype(np.int32), values)
    bitmaps, factors = drawn_bitmaps(workers, blocks), rng.random(blocks).astype(np.float32)
    for results in (dither.results, exact):
        given = replace(dither, results=results)
        right = np.empty((blocks, 1024), np.float32)
        Kernels().dither_decode(payloads, bitmaps, factors, given, form, keys, right)
        out = torch.empty((blocks, 1024))
        taken = contributors(TorchThc(host_thc(workers, bits=bits), backend="torch"), bitmaps)
        tensors = (torch.from_numpy(payloads), taken, torch.from_numpy(factors), DeviceDither.from_dither(given, CPU))
        assert load_torch_kernels(backend, CPU).dither_decode(*tensors, form, keys, out).item() == 0
        assert out.numpy().tobytes() == right.tobytes()


def test_cells_give_the_code_of_every_position() -> None:
    """At both ends of each cell, with random bits below, at and above what rounds up."""
    for values in ODD_TABLES:
        cells = DeviceTable.from_values(values, 3.0, CPU).cells.tolist()
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
        assert DeviceTable.from_values(table.values, table.bound, CPU).exact_float


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
