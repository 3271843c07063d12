# SPDX-License-Identifier: Apache-2.0
"""Factors of low rank: an orthonormal basis, products in one order, and equal bytes of all backends and processors."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hopsum.codec import CodecError, low_rank
from hopsum.codec.backends.factor_kernels import FactorKernels
from hopsum.codec.low_rank import load_factor_kernels, orthonormalize, random_columns, sample_output

pytest.importorskip("numba", reason="numba is not installed")

RECORDED = "b5316011884619aa0bdd41b0daf9c2ef49b5a96824acab3f20c2cf2d6cecb0b1"
"""SHA-256 of `sample_output`, recorded on processors with AVX2 and with AVX-512. All have to make these bytes."""
LONGER = (8, 1043, 1501)
"""A matrix whose columns and rows are worked on in several runs."""
RECORDED_LONGER = "d9f45338191b4562f488d7bf13c1c3b99b77a330b8246396436cfe58b1c2e083"
NUMPY = FactorKernels()
NUMBA = load_factor_kernels("numba")


def random_factor(rank: int, length: int, decay: float = 1.0, seed: int = 0) -> np.ndarray:
    """Return columns whose norms fall by a factor from one to the next."""
    drawn = np.random.default_rng(seed).standard_normal((rank, length))
    return (drawn * decay ** np.arange(rank)[:, None]).astype(np.float32)


@pytest.mark.parametrize("kernels", [NUMPY, NUMBA], ids=["numpy", "numba"])
def test_the_bytes_are_those_that_were_recorded(kernels: FactorKernels) -> None:
    assert hashlib.sha256(sample_output(kernels)).hexdigest() == RECORDED
    assert hashlib.sha256(sample_output(kernels, LONGER)).hexdigest() == RECORDED_LONGER


@pytest.mark.system
@pytest.mark.parametrize("features", ["+sse,+sse2", "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+avx,+avx2,+fma"])
def test_older_processors_make_the_same_bytes(features: str, tmp_path: Path) -> None:
    """Without vectors of 8, and with instructions that multiply and add in one rounding."""
    if platform.machine() != "x86_64":
        pytest.skip("features of x86")
    target = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    assert digests_elsewhere("numba", target) == [RECORDED, RECORDED_LONGER]


def test_numpy_makes_the_same_bytes_without_its_vector_instructions() -> None:
    """As on a processor without AVX-512 and AVX2."""
    dispatched = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # type: ignore[index]
    assert digests_elsewhere("numpy", {"NPY_DISABLE_CPU_FEATURES": " ".join(dispatched)}) == [RECORDED, RECORDED_LONGER]


def digests_elsewhere(backend: str, environment: dict[str, str]) -> list[str]:
    """Return both digests by a process with these variables."""
    code = (
        "import hashlib; from hopsum.codec import low_rank as l; "
        f"k = l.load_factor_kernels({backend!r}); "
        f"print(*(hashlib.sha256(d).hexdigest() for d in (l.sample_output(k), l.sample_output(k, {LONGER}))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, check=True, timeout=300, capture_output=True,
        text=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(
    ("rank", "length", "decay"), [(1, 1, 1.0), (1, 5, 1.0), (3, 17, 0.1), (8, 1040, 0.5), (32, 700, 0.7), (5, 64, 1e-3)]
)
def test_backends_make_equal_bytes_of_a_basis(rank: int, length: int, decay: float) -> None:
    factor = random_factor(rank, length, decay)
    before = factor.copy()
    reference, compiled = orthonormalize(NUMPY, factor, 3), orthonormalize(NUMBA, factor, 3)
    assert reference.columns.tobytes() == compiled.columns.tobytes()
    assert reference.norms.tobytes() == compiled.norms.tobytes()
    assert np.array_equal(factor, before)
    products = reference.columns.astype(np.float64) @ reference.columns.T.astype(np.float64)
    np.testing.assert_allclose(products, np.eye(rank), atol=1e-5)
    np.testing.assert_allclose(reference.norms, np.linalg.norm(factor, axis=1), rtol=1e-5)
    # The columns before a column span what they spanned.
    left = np.linalg.qr(factor.T.astype(np.float64))[0]
    np.testing.assert_allclose(np.abs(np.sum(left.T * reference.columns, axis=1)), 1, atol=1e-4)


@pytest.mark.parametrize(("rank", "rows", "columns"), [(1, 1, 1), (4, 7, 1024), (7, 33, 1500), (8, 20, 2049)])
def test_backends_make_equal_bytes_of_products(rank: int, rows: int, columns: int) -> None:
    left, mean, own = (
        random_factor(rank, length, seed=length + at) for at, length in enumerate((rows, columns, columns))
    )
    rest = random_factor(rows, columns, seed=9)
    kept, outs = [rest.copy(), rest.copy()], [np.empty_like(rest), np.empty_like(rest)]
    for kernels, each, out in zip((NUMPY, NUMBA), kept, outs, strict=True):
        kernels.reconstruct(left, mean, own, each, out)
    assert outs[0].tobytes() == outs[1].tobytes()
    assert kept[0].tobytes() == kept[1].tobytes()
    np.testing.assert_allclose(outs[0], left.T.astype(np.float64) @ mean, atol=rank * 1e-5)
    np.testing.assert_allclose(kept[0], rest - left.T.astype(np.float64) @ own, atol=rank * 1e-5)


DEPENDENT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "zero": lambda factor: factor * 0,
    "twice": lambda factor: factor[[0, 0, 1, 1]],
    "sum": lambda factor: np.stack([factor[0], factor[1], factor[0] + factor[1], factor[2]]),
    "one zero": lambda factor: factor * np.array([[1], [0], [1], [1]], np.float32),
    "tiny": lambda factor: factor * np.float32(1e-42),
    "huge": lambda factor: factor * np.float32(1e37),
}


@pytest.mark.parametrize("kind", DEPENDENT)
def test_columns_in_the_span_of_others_are_replaced(kind: str) -> None:
    factor = DEPENDENT[kind](random_factor(4, 90)).astype(np.float32)
    found = orthonormalize(NUMBA, factor, 3)
    assert found.columns.tobytes() == orthonormalize(NUMPY, factor, 3).columns.tobytes()
    products = found.columns.astype(np.float64) @ found.columns.T.astype(np.float64)
    np.testing.assert_allclose(products, np.eye(4), atol=1e-3 if kind == "tiny" else 1e-5)
    again = orthonormalize(NUMBA, factor, 4).columns
    assert (again.tobytes() == found.columns.tobytes()) == (kind in ("tiny", "huge")), (
        "random ones follow from the salt"
    )


def test_random_columns_follow_from_their_arguments() -> None:
    found = random_columns(5, 3, 1000)
    assert found.dtype == np.float32
    assert np.array_equal(found, random_columns(5, 3, 1000))
    assert not np.array_equal(found, random_columns(6, 3, 1000))
    # A uniform number of -1 to 1 has the variance 1/3: 3000 of them.
    assert abs(float(found.mean())) < 5 * (1 / 3 / 3000) ** 0.5
    assert float(np.abs(found).max()) <= 1


def test_a_backend_that_makes_other_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose compiler makes one operation of a multiplication and an addition."""
    monkeypatch.setattr(low_rank, "sample_output", lambda kernels: kernels.name.encode())
    with pytest.raises(CodecError, match="compiled code made other bytes than numpy"):
        load_factor_kernels("numba")


def test_compiled_code_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSUM_COMPILED", "0")
    assert load_factor_kernels().name == "numpy"
    monkeypatch.delenv("HOPSUM_COMPILED")
    assert load_factor_kernels().name == "numba"
