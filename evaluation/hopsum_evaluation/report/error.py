# SPDX-License-Identifier: Apache-2.0
"""Section `error`: the error that every method makes of the mean, against bits and workers, by `hopsum codec compare`.

NMSE of the mean, |mean' - mean|^2 / |mean|^2, over some all-reduces with rotations and roundings of their own, one
vector per worker. Bits are those of payloads, per element and worker. sb, sk, srk, svk, fp16, top-k and TernGrad are
yardsticks: a switch cannot add their messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from hopsum.codec import Codec, CollectivePhase, make_codec
from hopsum.codec.lookup_table import expected_nmse
from hopsum_base.units import format_number
from hopsum_evaluation.baselines import thc_published
from hopsum_evaluation.compare.compare import BUDGETS, as_json, error_plots, least_errors
from hopsum_evaluation.compare.measure import ComparisonPlan, measure_all
from hopsum_evaluation.compare.methods import CANDIDATES
from hopsum_evaluation.compare.vectors import TITLES, make_vectors
from hopsum_evaluation.experiment import ReportTable, Result, SectionView, Settings, Tell
from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_wire import Op

THC: Final = "Li et al., THC (NSDI 2024)"
CLAIMS: Final = (
    Claim(
        "homomorphic",
        "NMSE between the decoded sum and the mean of the decoded contributions",
        f"{THC}, definition of homomorphic compression",
        Basis.RECALLED,
        0.0,
        Relation.WITHIN,
        1e-10,
    ),
    Claim(
        "table-error",
        "measured over expected NMSE of the published table, mean over 1, 4, 8 workers with one vector",
        "the authors' code (BytePS_THC, tables/)",
        Basis.THEORY,
        1.0,
        Relation.WITHIN,
        0.05,
    ),
    Claim(
        "table-choice",
        "NMSE of the table chosen for 8 workers over that of the published table",
        "docs/codecs.md",
        Basis.OWN,
        1.0,
        Relation.AT_MOST,
    ),
)
_EQUAL_WORKERS: Final = (1, 4, 8)
_STEPS: Final = 4
_CHOSEN: Final = "thc:rounding=stochastic"
"""Label of the method that chooses a lookup table for the job."""
_PUBLISHED: Final = "thc-published"
_FEW: Final = (
    "thc", _CHOSEN, _PUBLISHED, "two-shot:bits=4", "uhc", "srk 16 levels", "svk", "lossless", "terngrad",
    "top 10 %",
)  # fmt: skip
"""Methods of the small size."""


def run(settings: Settings, tell: Tell) -> Result:
    """Compare all methods, then the published table with its formula and with the chosen table. Return the figures."""
    vectors = settings.pick(("gradient",), ("gradient", "gaussian"), tuple(TITLES))
    workers = settings.pick((1, 4), (1, 4, 16), (1, 2, 4, 8, 16, 32, 64))
    repeats, elements = settings.pick(3, 3, 5), settings.pick(1 << 12, 1 << 14, 1 << 14)
    chosen = settings.pick([each for each in CANDIDATES if each.label in _FEW], list(CANDIDATES), list(CANDIDATES))
    kept: list[Any] = []
    for repeat in range(repeats):
        # Vectors and roundings anew in each repeat: the claim's interval is over both.
        seed = settings.derive_seed("codec", repeat)
        plan = ComparisonPlan(chosen, vectors, workers, elements, _STEPS, seed, identical=False)
        measured = []
        for cell in measure_all(plan):
            measured.append(cell)
            done = (repeat + len(measured) / plan.cell_count) / repeats
            tell(0.95 * done, f"{cell.vectors}, {cell.workers} workers")
        kept.append(as_json(measured, plan, [], 0.0)["cells"])
    tell(0.95, "one vector for all")
    equal = [
        _equal_workers(settings.derive_seed("codec", "equal", repeat), settings.pick(1 << 12, 1 << 16, 1 << 16))
        for repeat in range(repeats)
    ]
    apart = [homomorphic_error(settings.derive_seed("codec", "sum", repeat), elements) for repeat in range(repeats)]
    return {"cells": _join(kept), "elements": elements, "equal": equal, "homomorphic": apart, "steps": _STEPS}


def _join(repeats: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the cells of all repeats: each cell once, its errors as a list over repeats."""
    kept = ("vectors", "method", "family", "workers", "bits_up", "bits_down", "reason")
    return [
        {**{key: same[0][key] for key in kept}, "nmse": [each["nmse"] for each in same]}
        for same in zip(*repeats, strict=True)
    ]


def _equal_workers(seed: int, elements: int) -> list[dict[str, float]]:
    """Measure the published table and the table of a job, all workers with one Gaussian vector."""
    chosen = [each for each in CANDIDATES if each.label in (_CHOSEN, _PUBLISHED)]
    plan = ComparisonPlan(chosen, ("gaussian",), _EQUAL_WORKERS, elements, _STEPS, seed, identical=True)
    by_workers: dict[int, dict[str, float]] = defaultdict(dict)
    for cell in measure_all(plan):
        assert cell.nmse is not None
        by_workers[cell.workers][cell.method] = cell.nmse
    return [
        {
            "workers": n,
            "ours": found[_CHOSEN],
            "published": found[_PUBLISHED],
            "expected": expected_nmse(thc_published.PUBLISHED, n),
        }
        for n, found in by_workers.items()
    ]


def homomorphic_error(seed: int, elements: int, workers: int = 4) -> float:
    """Return |decoded sum - mean of decoded contributions|^2 over |that mean|^2, for THC as published.

    The contributions are Gaussian vectors.
    """
    codec = make_codec(thc_published.NAME, workers=workers)
    vectors = make_vectors("gaussian", workers, elements, seed, identical=False)
    joint = _decoded(codec, vectors, seed, range(workers))
    alone = np.mean([_decoded(codec, vectors, seed, [rank]) for rank in range(workers)], axis=0)
    return float(np.square(joint - alone).sum() / np.square(alone).sum())


def _decoded(codec: Codec, vectors: Any, seed: int, ranks: Iterable[int]) -> Any:
    """Decode the sum of the contributions of `ranks`, with the ranges of all. Return the mean, float64[elements]."""

    def present(_: int, phase: CollectivePhase) -> Any:
        if phase.op == Op.MAX32:
            return None
        # Ranges come from all workers also for one contribution alone: codes of other ranges could not be added.
        mask = np.zeros((len(vectors), len(phase.payloads)), np.bool_)
        mask[list(ranks)] = True
        return mask

    means = simulate_allreduce(codec, vectors, seed=seed, step=1, present=present)
    assert means is not None
    return means[0].astype(np.float64)


def make_view(result: Result) -> SectionView:
    """Make tables, plots and the samples of the claims from a result of `run`."""
    cells = [{**cell, "nmse": _mean(cell["nmse"])} for cell in result["cells"]]
    kinds = list(dict.fromkeys(cell["vectors"] for cell in cells))
    eight = [next(row for row in rows if row["workers"] == 8) for rows in result["equal"]]
    ratios = [[row["published"] / row["expected"] for row in rows] for rows in result["equal"]]
    return SectionView(
        tables=[least_error_table(cells), *(_table(cells, kind) for kind in kinds)],
        plots=error_plots(cells, TITLES),
        samples={
            "homomorphic": result["homomorphic"],
            "table-error": [sum(row) / len(row) for row in ratios],
            "table-choice": [row["ours"] / row["published"] for row in eight],
        },
    )


def least_error_table(cells: Sequence[dict[str, Any]]) -> ReportTable:
    """Tabulate the method with the least error of each kind of vectors, by bits in the busier direction.

    cells: as `compare.as_json` makes them.
    """
    workers, found = least_errors(cells)
    heads = (f"vectors, {workers} workers", *(f"at most {most:g} bits" for most in BUDGETS))
    return ReportTable("error-least", heads, [[TITLES[kind], *methods] for kind, methods in found.items()])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _table(cells: Sequence[dict[str, Any]], kind: str) -> ReportTable:
    here = [cell for cell in cells if cell["vectors"] == kind]
    workers = sorted({cell["workers"] for cell in here})
    by_method: dict[str, dict[int, Any]] = defaultdict(dict)
    for cell in here:
        by_method[cell["method"]][cell["workers"]] = cell
    rows = []
    for method, found in by_method.items():
        up = next((cell["bits_up"] for cell in found.values() if cell["bits_up"] is not None), None)
        down = next((cell["bits_down"] for cell in found.values() if cell["bits_down"] is not None), None)
        rows.append(
            [method, format_number(up), format_number(down), *(format_number(found[n]["nmse"], 2) for n in workers)]
        )
    return ReportTable(f"error-{kind}", ("", "bits up", "bits down", *(f"n = {n}" for n in workers)), rows)
