# SPDX-License-Identifier: Apache-2.0
"""The figures in docs/codecs.md are what is measured here; when one is not, the failure shows the new row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum.codec import make_codec
from hopsum.codec.backends import load_kernels
from hopsum.codec.lookup_table import expected_nmse
from hopsum.codec.simulate import simulate_allreduce
from hopsum.codec.thc import LookupTableCodec, Thc
from hopsum.plan.traffic import summed_traffic
from hopsum_wire import Op

from .vectors import Floats, nmse, normal

pytestmark = pytest.mark.system
DOCS = Path(__file__).resolve().parents[3] / "docs" / "codecs.md"
ELEMENTS = 1 << 17
WAYS = [(rotation, scale) for rotation in ("block", "full", "none") for scale in ("block", "tensor")]
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("thc", {}),
    ("thc", {"lane_bits": 16}),
    ("uhc", {"bits": 2}),
    ("uhc", {"bits": 4}),
    ("uhc", {"bits": 6}),
    ("uhc", {"bits": 8}),
]


def vector(shape: str) -> Floats:
    rng = np.random.default_rng(5)
    if shape == "N(0, 1)":
        return normal(ELEMENTS)
    if shape == "Laplace":
        return rng.laplace(size=ELEMENTS).astype(np.float32)
    if shape == "Student t, 3 degrees":
        return rng.standard_t(3, ELEMENTS).astype(np.float32)
    if shape == "Student t, 2 degrees":
        return rng.standard_t(2, ELEMENTS).astype(np.float32)
    if shape == "1 % of N(0, 1), else 0":
        return normal(ELEMENTS) * (rng.random(ELEMENTS) < 0.01).astype(np.float32)
    if shape == "blocks of scales 1e-3 to 1e3":
        return (normal(ELEMENTS) * np.repeat(np.logspace(-3, 3, 128), 1024)).astype(np.float32)
    assert shape == "one block of 128 a hundred times larger"
    x = normal(ELEMENTS)
    x[7 * 1024 : 8 * 1024] *= 100
    return x


@pytest.mark.parametrize(
    "shape",
    [
        "N(0, 1)",
        "Laplace",
        "Student t, 3 degrees",
        "Student t, 2 degrees",
        "1 % of N(0, 1), else 0",
        "blocks of scales 1e-3 to 1e3",
        "one block of 128 a hundred times larger",
    ],
)
def test_errors_with_and_without_rotation(shape: str) -> None:
    x, cells = vector(shape), []
    for rotation, scale in WAYS:
        codec = make_codec("thc", workers=8, rotation=rotation, scale=scale)
        means = simulate_allreduce(codec, [x] * 8, seed=3, step=1)
        assert means is not None
        cells.append(f"{nmse(means[0], x):.2g}")
    require_row([shape, *cells])


@pytest.mark.parametrize("workers", [1, 8, 17, 32, 64])
def test_expected_errors(workers: int) -> None:
    cells = []
    for name, options in KINDS:
        codec = make_codec(name, workers=workers, backend="numpy", **options)
        assert isinstance(codec, LookupTableCodec)
        lanes = {Op.LOOKUP_ADD8: "8", Op.ADD8: "8", Op.LOOKUP_ADD16: "16", Op.ADD16: "16"}[codec.op]
        cells.append(f"{expected_nmse(codec.table, workers):.1e} ({codec.table.bits}, {lanes})")
    require_row([str(workers), *cells])


@pytest.mark.parametrize(("workers", "digits"), [(4, 8), (8, 5), (8, 6), (8, 7), (16, 6), (16, 7), (32, 6)])
def test_the_table_of_digits_is_what_the_codec_has(workers: int, digits: int) -> None:
    kept, left = (
        Thc(workers, digits=digits, error_feedback=each, kernels=load_kernels("numpy")) for each in (True, False)
    )
    traffic = summed_traffic(kept, 1 << 20, 1, 1.0)
    assert traffic.up_bytes == traffic.down_bytes
    bits = [32 / digits, 8 * traffic.up_bytes / (1 << 20)]
    errors = [(kept, 1), (kept, workers), (left, workers)]
    cells = [f"{workers}", f"{digits}", f"{len(kept.table.values)}", *(f"{each:.2f}" for each in bits)]
    require_row([*cells, *(f"{expected_nmse(codec.table, counted):.3f}" for codec, counted in errors)])


def require_row(cells: list[str]) -> None:
    row = f"| {' | '.join(cells)} |"
    assert row in DOCS.read_text(encoding="utf-8").splitlines(), row
