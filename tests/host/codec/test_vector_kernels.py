# SPDX-License-Identifier: Apache-2.0
"""Kernels as vector code give the bytes of the plain loops and of numpy, and the loops are there where they do not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.codec.backends.kernels import BlockKeys, Form, TableSteps
from hopsum.codec.backends.numpy_kernels import NumpyKernels
from hopsum.codec.lookup_table import optimal_table
from hopsum_wire import CODE_GROUPS, pack_codes

pytest.importorskip("numba")

from hopsum.codec.backends import compiled, compiled_decode, compiled_thc, jit, vector_choice, vectors
from hopsum.codec.backends.jit import LazyKernel

TABLES = [tuple(range(16)), (0, 1), (0, 1, 2, 3), *(optimal_table(g, 1e-3) for g in (21, 61, 127))]
LONG_TABLE = tuple(range(0, 80, 4))
"""More values than a look-up takes; such codes travel as lanes."""
EDGES = np.array([0.0, -0.0, 1e-45, -1e-40, 1.1754944e-38, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan], np.float32)


LOOPS = compiled.NumbaKernels(1, lambda name, loop: loop)
VECTORS = compiled.NumbaKernels(1, lambda name, loop: getattr(vectors, name))


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
    x = drawn(seed, blocks, columns)
    if finite:
        x = np.where(np.isfinite(x), x, np.float32(1))
    with np.errstate(all="ignore"):
        expected = NumpyKernels().root_mean_square(x)
    for kernels in (LOOPS, VECTORS):
        found = kernels.root_mean_square(x)
        assert (np.isnan(found) == np.isnan(expected)).all()
        assert found[~np.isnan(found)].tobytes() == expected[~np.isnan(expected)].tobytes()


@settings(deadline=None, max_examples=120)
@given(
    seed=st.integers(0, 9999),
    blocks=st.integers(1, 5),
    values=st.sampled_from(TABLES) | st.lists(st.integers(1, 100), min_size=1, max_size=15).map(any_table),
    group=st.sampled_from((*CODE_GROUPS, 0)),
    shift=st.integers(0, 23),
)
def test_codes_are_numpys(seed: int, blocks: int, values: tuple[int, ...], group: int, shift: int) -> None:
    values = LONG_TABLE if not group and seed % 2 else values
    rng, steps = np.random.default_rng(seed), TableSteps.of(values)
    form = Form(packed=group > 0, group_codes=group or 512)
    x = rng.standard_normal((blocks, 1024)).astype(np.float32) * np.float32(10) ** rng.integers(-30, 30, (blocks, 1))
    x = x.astype(np.float32)
    x[rng.random(x.shape) < 0.05] = rng.choice(EDGES[:5])
    spread = np.sqrt(np.square(x, dtype=np.float64).mean(axis=1))
    scales = (values[-1] / 3 * 65536 / 32 / np.maximum(spread, 1e-36) / 2.0**shift).astype(np.float32)
    shifts = np.where(rng.random(blocks) < 0.5, 0, shift).astype(np.int32)
    x[0] *= rng.random() < 0.9  # a block of zeros lies in the middle of the table
    keys = BlockKeys(seed * 7919, seed * 104729, 5)
    found = []
    for kernels in (NumpyKernels(), LOOPS, VECTORS):
        out = np.empty((blocks, form.up_bytes), np.uint8)
        kernels.thc_encode(x, scales, shifts, steps, form, keys, out)
        found.append(out.tobytes())
    assert found[0] == found[1] == found[2]


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 9999),
    blocks=st.integers(1, 5),
    values=st.sampled_from(TABLES),
    first=st.integers(0, 1 << 40),
)
def test_sums_decode_to_numpys_bytes(seed: int, blocks: int, values: tuple[int, ...], first: int) -> None:
    rng, granularity = np.random.default_rng(seed), values[-1]
    counts = rng.integers(0, 255 // granularity + 1, blocks).astype(np.int32)
    sums = rng.integers(0, counts[:, None] * granularity + 1, (blocks, 1024)).astype(np.uint8)
    factors = drawn(seed, 1, 512)[0, :blocks].copy()
    keys = BlockKeys(seed * 7919, 1, first)
    found = []
    for kernels in (NumpyKernels(), LOOPS, VECTORS):
        out = np.full((blocks, 1024), 7, np.float32)
        with np.errstate(all="ignore"):
            peaks = kernels.thc_decode(sums, counts, factors, granularity, Form(), keys, out)
        found.append((peaks.tobytes(), np.nan_to_num(out, nan=1.5).tobytes()))
    assert found[0] == found[1] == found[2]


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 9999),
    blocks=st.integers(1, 5),
    values=st.sampled_from(TABLES),
    group=st.sampled_from((*CODE_GROUPS, 0)),
    subtract=st.booleans(),
)
def test_payloads_decode_and_leave_numpys_residual(
    seed: int, blocks: int, values: tuple[int, ...], group: int, subtract: bool
) -> None:
    rng = np.random.default_rng(seed)
    form = Form(packed=group > 0, group_codes=group or 512)
    codes = rng.integers(0, len(values), (blocks, 1024), dtype=np.uint8)
    payloads = pack_codes(codes, group=group) if group else codes
    factors, before = rng.standard_normal(blocks).astype(np.float32), drawn(seed, blocks, 1024)
    found = []
    for kernels in (NumpyKernels(), LOOPS, VECTORS):
        out = before.copy()
        with np.errstate(all="ignore"):
            kernels.thc_dequantize(payloads, factors, TableSteps.of(values), form, BlockKeys(seed, 1, 3), out, subtract)
        found.append(np.nan_to_num(out, nan=1.5).tobytes())
    assert found[0] == found[1] == found[2]


@pytest.fixture
def fresh() -> Any:
    """Let the choice be made anew, and once more afterwards."""
    vector_choice.block_kernel.cache_clear()
    yield
    vector_choice.block_kernel.cache_clear()


def no_kernel(*_: Any) -> None:
    """Stand for a plain loop that is not to be called."""
    raise AssertionError("called")


def test_the_environment_turns_vector_code_off(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSUM_COMPILED", "0")
    assert vector_choice.block_kernel("encode8", no_kernel) is no_kernel


@pytest.mark.parametrize("broken", ["import", "compile"])
def test_loops_remain_where_vector_code_does_not_compile(
    broken: str, fresh: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if broken == "import":
        monkeypatch.setitem(sys.modules, "hopsum.codec.backends.vectors", None)
    else:
        monkeypatch.setattr(vectors.decode8, "compile", no_kernel)
    assert vector_choice.block_kernel("decode8", no_kernel) is no_kernel
    assert "vector code decode8 of the codecs does not compile here: a plain loop is used" in caplog.text


def test_with_avx2_vector_code_is_taken_and_no_loop_called(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_choice, "HAS_AVX2", True)
    assert vector_choice.block_kernel("dequantize8", no_kernel) is vectors.dequantize8


@pytest.mark.parametrize("loop_is_slower", [True, False])
def test_without_avx2_a_measurement_chooses(loop_is_slower: bool, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_choice, "HAS_AVX2", False)
    now = [0.0]
    monkeypatch.setattr(vector_choice, "perf_counter", lambda: now[0])

    def loop(*arguments: Any) -> None:
        compiled._root_mean_square(*arguments)
        now[0] += loop_is_slower

    monkeypatch.setattr(vectors, "root_mean_square", StandIn(vectors.root_mean_square, now, not loop_is_slower))
    chosen = vector_choice.block_kernel("root_mean_square", loop)
    assert chosen is (vectors.root_mean_square if loop_is_slower else loop)


class StandIn(LazyKernel):
    """A kernel that moves a clock, which nothing else does."""

    def __init__(self, kernel: LazyKernel, now: list[float], seconds: float) -> None:
        self._kernel, self._now, self._seconds = kernel, now, seconds

    def __call__(self, *arguments: Any) -> None:
        self._kernel(*arguments)
        self._now[0] += self._seconds

    def compile(self) -> Callable[..., None]:
        return self._kernel.compile()


def test_a_kernel_that_gains_nothing_is_not_taken(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice goes by the clock, here by one that the kernels themselves move."""
    now = [0.0]
    monkeypatch.setattr(vector_choice, "perf_counter", lambda: now[0])

    def taking(seconds: float) -> Callable[..., None]:
        def kernel(*_: Any) -> None:
            now[0] += seconds

        return kernel

    slow, quick = taking(2.0), taking(1.0)
    assert vector_choice.faster(slow, quick, lambda: ()) is quick
    assert vector_choice.faster(quick, slow, lambda: ()) is quick


def test_probes_are_arguments_of_the_kernels() -> None:
    loops = {
        "root_mean_square": compiled._root_mean_square,
        "encode8": compiled_thc.encode8,
        "decode8": compiled_decode.decode8,
        "dequantize8": compiled_decode.dequantize8,
    }
    probes = vector_choice.probes()
    assert probes.keys() == loops.keys()
    for name, arguments in probes.items():
        loops[name](*arguments())
        getattr(vectors, name)(*arguments())


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
