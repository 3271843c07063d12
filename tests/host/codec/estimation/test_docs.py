# SPDX-License-Identifier: Apache-2.0
"""The table in docs/lossless-and-estimation.md has the measured values; else the failure shows the new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum.codec.estimation import bounds
from hopsum_evaluation.baselines.estimators import make_estimator

from .cases import Floats, gaussian, measure

pytestmark = pytest.mark.system
DOCS = Path(__file__).resolve().parents[4] / "docs" / "lossless-and-estimation.md"
ELEMENTS, WORKERS, STEPS = 4096, 4, 30
CASES: list[tuple[str, int | None, dict[str, Any]]] = [
    ("sb", 2, {}),
    ("sk", 4, {"levels": 4}),
    ("sk", 16, {"levels": 16}),
    ("srk", 4, {"levels": 4}),
    ("srk", 16, {"levels": 16}),
    ("svk", 2, {"levels": 2}),
    ("svk", 16, {"levels": 16}),
    ("svk", 65, {}),
    ("svk", 257, {"levels": 257}),
    ("fp16", None, {}),
    ("topk", None, {"fraction": 0.05}),
    ("terngrad", None, {}),
    ("terngrad", None, {"clip_sigma": 2.5}),
]


def one_huge() -> list[Floats]:
    vectors = gaussian(ELEMENTS, WORKERS)
    for rank, x in enumerate(vectors):
        x[100 * rank] = 100
    return vectors


def bound_cells(name: str, levels: int | None) -> list[str]:
    """The bounds of MSE / F and of bits an element; the latter where it is not just what is sent."""
    if levels is None:
        return ["", ""]
    options = () if name == "sb" else (levels,)
    mse = getattr(bounds, f"mse_bound_{name}")(ELEMENTS, WORKERS, 1.0, *options)
    return [f"{mse:.3g}", f"{bounds.bits_bound_svk(ELEMENTS, levels) / ELEMENTS:.3f}" if name == "svk" else ""]


def row(name: str, levels: int | None, options: dict[str, Any]) -> list[str]:
    label = {"topk": " 5 %", "terngrad": ", clip 2.5 sigma" if options else ""}.get(name, "")
    cells = [f"`{name}`{label}", "" if levels is None else str(levels)]
    mse_bound, bits_bound = bound_cells(name, levels)
    found = [
        measure(make_estimator(name, **options), made, STEPS) for made in (gaussian(ELEMENTS, WORKERS), one_huge())
    ]
    energies = [bounds.mean_energy(made) for made in (gaussian(ELEMENTS, WORKERS), one_huge())]
    cells += [f"{one.mse / energy:.3g}" for one, energy in zip(found, energies, strict=True)] + [mse_bound]
    return [*cells, *(f"{one.bits / ELEMENTS:.3f}" for one in found), bits_bound]


def close(written: str, measured: str) -> bool:
    try:
        return bool(np.isclose(float(written), float(measured), rtol=0.02))
    except ValueError:
        return written == measured


def test_the_table_is_what_is_measured() -> None:
    pytest.importorskip("constriction")
    fresh = [row(*case) for case in CASES]
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    written = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    same = [len(a) == len(b) and all(map(close, a, b)) for a, b in zip(written, fresh, strict=False)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in fresh)
    assert same == [True] * len(fresh), f"measured:\n{table}"
