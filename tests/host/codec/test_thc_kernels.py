# SPDX-License-Identifier: Apache-2.0
"""Kernels as vector code give the bytes of numpy, on every processor, for both widths of lanes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import BlockKeys, CodeTable, Form, Kernels
from hopsum.codec.lookup_table import optimal_table
from hopsum_wire import CODE_GROUPS, pack_codes

pytest.importorskip("numba")

from hopsum.codec.backends import jit
from hopsum.codec.backends.numba_kernels import NumbaKernels

TABLES = [tuple(range(16)), (0, 1), (0, 1, 2, 3), *(optimal_table(g, 1e-3) for g in (21, 61, 127))]
LONG_TABLE = tuple(range(200))
"""The identity, with more values than a look-up takes; such codes travel as lanes."""
EDGES = np.array([0.0, -0.0, 1e-45, -1e-40, 1.1754944e-38, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan], np.float32)
VECTORS = NumbaKernels(1)
LANES = st.sampled_from((8, 16))


def any_table(gaps: list[int]) -> tuple[int, ...]:
    """Return the longest table that begins with these gaps and that kernels take: g and the widest gap within 255."""
    values = [0]
    for number, gap in enumerate(gaps, 1):
        if values[-1] + gap + max(gaps[:number]) <= 255:
            values.append(values[-1] + gap)
    return tuple(values)


def drawn(seed: int, blocks: int, columns: int) -> NDArray[np.float32]:
    """Return any bit patterns, among them values at the edges of float32."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 1 << 32, (blocks, columns), dtype=np.uint64).astype(np.uint32).view(np.float32)
    x[rng.random(x.shape) < 0.01] = rng.choice(EDGES)
    return x


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 9999), blocks=st.integers(1, 5), columns=st.sampled_from((512, 1024)), finite=st.booleans())
def test_ranges_are_numpys(seed: int, blocks: int, columns: int, finite: bool) -> None:
    x = drawn(seed, blocks, columns).reshape(-1)[seed % 512 :]
    if finite:
        x = np.where(np.isfinite(x), x, np.float32(1))
    with np.errstate(all="ignore"):
        expected = Kernels().root_mean_square(x, columns)
    require_equal_numbers(VECTORS.root_mean_square(x, columns), expected)
    y = x[::-1].copy()
    with np.errstate(all="ignore"):
        expected = Kernels().root_mean_square_of_sum(x, y, columns)
    require_equal_numbers(VECTORS.root_mean_square_of_sum(x, y, columns), expected)


def require_equal_numbers(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Require equal bytes, but for the bits of NaN."""
    assert (np.isnan(found) == np.isnan(expected)).all()
    assert found[~np.isnan(found)].tobytes() == expected[~np.isnan(expected)].tobytes()


@settings(deadline=None, max_examples=120)
@given(
    seed=st.integers(0, 9999),
    blocks=st.integers(1, 5),
    values=st.sampled_from(TABLES) | st.lists(st.integers(1, 100), min_size=1, max_size=15).map(any_table),
    group=st.sampled_from((*CODE_GROUPS, 0)),
    shift=st.integers(0, 23),
    lane_bits=LANES,
)
def test_codes_are_numpys(
    seed: int, blocks: int, values: tuple[int, ...], group: int, shift: int, lane_bits: int
) -> None:
    values = LONG_TABLE if not group and seed % 2 else values
    rng, steps = np.random.default_rng(seed), CodeTable.from_values(values)
    form = Form(lane_bits, packed=group > 0, group_codes=group or 512)
    magnitudes = np.float32(10) ** rng.integers(-30, 30, (blocks, 1))
    x = (rng.standard_normal((blocks, form.block_elements)).astype(np.float32) * magnitudes).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = rng.choice(EDGES[:5])
    spread = np.sqrt(np.square(x, dtype=np.float64).mean(axis=1))
    scales = (values[-1] / 3 * 65536 / 32 / np.maximum(spread, 1e-36) / 2.0**shift).astype(np.float32)
    shifts = np.where(rng.random(blocks) < 0.5, 0, shift).astype(np.int32)
    x[0] *= rng.random() < 0.9  # a block of zeros lies in the middle of the table
    keys = BlockKeys(seed * 7919, seed * 104729, 5)
    found = []
    for kernels in (Kernels(), VECTORS):
        out = np.empty((blocks, form.up_bytes), np.uint8)
        kernels.thc_encode(x, scales, shifts, steps, form, keys, out)
        found.append(out.tobytes())
    assert found[0] == found[1]


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 9999),
    blocks=st.integers(1, 5),
    values=st.sampled_from(TABLES),
    first=st.integers(0, 1 << 40),
    lane_bits=LANES,
)
def test_sums_decode_to_numpys_bytes(
    seed: int, blocks: int, values: tuple[int, ...], first: int, lane_bits: int
) -> None:
    rng, granularity, form = np.random.default_rng(seed), values[-1], Form(lane_bits)
    counts = rng.integers(0, min(64, (2**lane_bits - 1) // granularity) + 1, blocks).astype(np.int32)
    sums = rng.integers(0, counts[:, None] * granularity + 1, (blocks, form.block_elements))
    sums = sums.astype(form.lane_dtype).view(np.uint8)
    factors = drawn(seed, 1, 512)[0, :blocks].copy()
    keys = BlockKeys(seed * 7919, 1, first)
    found = []
    for kernels in (Kernels(), VECTORS):
        out = np.full((blocks, form.block_elements), 7, np.float32)
        with np.errstate(all="ignore"):
            peaks = kernels.thc_decode(sums, counts, factors, granularity, form, keys, out)
        found.append((peaks.tobytes(), np.nan_to_num(out, nan=1.5).tobytes()))
    assert found[0] == found[1]


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 9999),
    blocks=st.integers(1, 5),
    values=st.sampled_from(TABLES),
    group=st.sampled_from((*CODE_GROUPS, 0)),
    subtract=st.booleans(),
    lane_bits=LANES,
)
def test_payloads_decode_and_leave_numpys_residual(
    seed: int, blocks: int, values: tuple[int, ...], group: int, subtract: bool, lane_bits: int
) -> None:
    rng = np.random.default_rng(seed)
    form = Form(lane_bits, packed=group > 0, group_codes=group or 512)
    codes = rng.integers(0, len(values), (blocks, form.block_elements), dtype=np.uint8)
    payloads = codes.astype(form.lane_dtype).view(np.uint8)
    if group:
        payloads = pack_codes(codes, lane_bits, group)
    factors, before = rng.standard_normal(blocks).astype(np.float32), drawn(seed, blocks, form.block_elements)
    found = []
    for kernels in (Kernels(), VECTORS):
        out = before.copy()
        with np.errstate(all="ignore"):
            kernels.thc_dequantize(
                payloads, factors, CodeTable.from_values(values), form, BlockKeys(seed, 1, 3), out, subtract
            )
        found.append(np.nan_to_num(out, nan=1.5).tobytes())
    assert found[0] == found[1]


@pytest.mark.system
@pytest.mark.parametrize("features", ["+sse,+sse2", "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+avx,+avx2"])
def test_older_processors_run_the_same_vector_code(features: str, tmp_path: Path) -> None:
    """LLVM splits the vectors, also for processors without AVX2 and without a byte look-up: `make_codec` compares."""
    if platform.machine() != "x86_64":
        pytest.skip("features of x86")
    codecs = ["thc", "thc:bits=3", "thc:bits=2", "thc:result_bits=8", "thc:rounding=stochastic", "uhc"]
    code = f"from hopsum.codec import make_codec; [make_codec(c, workers=4, backend='numba') for c in {codecs}]"
    target = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=os.environ | target, check=True, timeout=300)


def test_the_environment_turns_compiled_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSUM_COMPILED", "0")
    assert load_kernels("auto").name == "numpy"
    assert load_kernels("numba").name == "numba"


def test_a_part_is_emitted_in_its_kernels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """To optimise and emit each part by itself too took a third of the time to compile."""
    emitted: list[str] = []
    library = jit.codegen.JITCodeLibrary
    finalize = library._finalize_specific
    monkeypatch.setattr(library, "_finalize_specific", lambda made: (emitted.append(made.name), finalize(made)))
    part: Any = jit.inner(lambda value: value + value)
    part.compile((jit.types.int64,))
    assert set(emitted) <= {"nrt"}, "numba's own runtime"
    assert jit.numba.njit("int64(int64)")(lambda value: part(part(value)))(5) == 20


def test_a_kernel_is_compiled_once_when_threads_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compilations = []
    njit = jit._numba.njit
    monkeypatch.setattr(jit._numba, "njit", lambda *given, **options: compilations.append(1) or njit(*given, **options))

    @jit.kernel(jit.filled(jit.types.int64, 1))
    def count(out: Any) -> None:
        out[0] += 1

    assert not compilations, "a kernel that nobody calls costs nothing"
    outs = [np.zeros(1, np.int64) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, outs))
    assert len(compilations) == 1
    assert [out[0] for out in outs] == [1, 1, 1, 1]
