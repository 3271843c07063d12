# SPDX-License-Identifier: Apache-2.0
"""Section `error`: what every codec makes of the mean, against bits and workers.

It is built on `hopsum codec compare`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from hopsum.codec import Codec, CollectivePhase, make_codec
from hopsum.codec.lookup_table import expected_nmse
from hopsum.codec.simulate import simulate_allreduce
from hopsum_evaluation.baselines import thc_published
from hopsum_evaluation.baselines.thc_published import PUBLISHED
from hopsum_evaluation.compare.candidates import CANDIDATES
from hopsum_evaluation.compare.measure import ComparisonPlan, measure_all
from hopsum_evaluation.compare.report import as_json
from hopsum_evaluation.compare.vectors import TITLES, make_vectors
from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.report.settings import Result, Settings, Tell
from hopsum_evaluation.report.shown import Plot, Series, Shown, ShownTable, figure
from hopsum_evaluation.report.text_gradients import TITLES as TEXT_TITLES
from hopsum_evaluation.report.text_gradients import capture_text
from hopsum_wire import Op

THC: Final = "Li et al., THC, NSDI 2024 (arXiv 2302.08545)"
CLAIMS: Final = (
    Claim(
        "homomorphic",
        "NMSE between the decoded sum and the mean of the decoded contributions, which are equal up to float32",
        f"{THC}, definition of homomorphic compression",
        Basis.RECALLED,
        0.0,
        Relation.WITHIN,
        1e-10,
    ),
    Claim(
        "table-error",
        "measured over expected NMSE of the published table (g = 30, p = 1/32), mean over 1, 4, 8 equal workers",
        "table of the authors' code (BytePS_THC, tables/); its expected error by hopsum.codec.lookup_table",
        Basis.THEORY,
        1.0,
        Relation.WITHIN,
        0.05,
    ),
    Claim(
        "table-choice",
        "NMSE of the table chosen for 8 workers over that of the published table, 8 workers with one Gaussian vector",
        "docs/codecs.md",
        Basis.OWN,
        1.0,
        Relation.AT_MOST,
    ),
)
_EQUAL_WORKERS: Final = (1, 4, 8)
_STEPS: Final = 4
_EXACT: Final = 1e-9
"""NMSE below which a method is exact up to float32, and not in the figure."""
_BUDGETS: Final = (4.5, 6.5, 8.5, 16.5)
"""Bits per element in the busier direction: paired codes, packed results, lanes of 8 and 16 bits, with their ranges."""
_TITLES: Final = {**TITLES, **TEXT_TITLES}
_FEW: Final = ("thc", "thc published", "uhc 4 bits", "srk 16 levels", "svk", "lossless", "terngrad", "top 10 %")


def run(settings: Settings, tell: Tell) -> Result:
    """Measure the comparison of codecs of this section. Raises NotRunError where they cannot run here."""
    vectors = settings.pick(("gradient",), ("gradient", "gaussian"), tuple(TITLES))
    workers = settings.pick((1, 4), (1, 4, 16), (1, 2, 4, 8, 16, 32, 64))
    repeats, elements = settings.pick(2, 3, 5), settings.pick(1 << 12, 1 << 14, 1 << 14)
    chosen = settings.pick([each for each in CANDIDATES if each.label in _FEW], list(CANDIDATES), list(CANDIDATES))
    text_workers = settings.pick((4,), (4,), (4, 16))
    tell(0.0, "gradients of the transformer")
    text = capture_text(settings, settings.pick(4, 120, 240), max(text_workers))
    kept: list[Any] = []
    for repeat in range(repeats):
        seed = settings.stream("codec", repeat)
        plans = [
            ComparisonPlan(chosen, vectors, workers, elements, _STEPS, seed, identical=False),
            ComparisonPlan(chosen, tuple(text), text_workers, elements, _STEPS, seed, identical=False, given=text),
        ]
        cells: list[Any] = []
        count = sum(plan.cells for plan in plans)
        for plan in plans:
            measured = []
            for cell in measure_all(plan):
                measured.append(cell)
                done = (len(cells) + len(measured)) / count
                tell(0.9 * (repeat + done) / repeats, f"{cell.vectors}, {cell.workers} workers")
            cells += as_json(measured, plan, [], 0.0)["cells"]
        kept.append(cells)
    tell(0.95, "one vector for all")
    equal = [
        _equal_workers(settings.stream("codec", "equal", repeat), settings.pick(1 << 12, 1 << 16, 1 << 16))
        for repeat in range(repeats)
    ]
    apart = [homomorphic_error(settings.stream("codec", "sum", repeat), elements) for repeat in range(repeats)]
    return {"cells": _join(kept), "elements": elements, "equal": equal, "homomorphic": apart, "steps": _STEPS,
            "text_elements": next(iter(text.values())).shape[1] if text else 0}  # fmt: skip


def _join(repeats: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return each cell once, its errors as a list over repeats."""
    kept = ("vectors", "method", "family", "workers", "bits_up", "bits_down", "reason")
    return [
        {**{key: same[0][key] for key in kept}, "nmse": [each["nmse"] for each in same]}
        for same in zip(*repeats, strict=True)
    ]


def _equal_workers(seed: int, elements: int) -> list[dict[str, float]]:
    """Measure the published table and the one that a job takes, all workers having one Gaussian vector."""
    chosen = [each for each in CANDIDATES if each.label in ("thc", "thc published")]
    plan = ComparisonPlan(chosen, ("gaussian",), _EQUAL_WORKERS, elements, _STEPS, seed, identical=True)
    by_workers: dict[int, dict[str, float]] = defaultdict(dict)
    for cell in measure_all(plan):
        assert cell.nmse is not None
        by_workers[cell.workers][cell.method] = cell.nmse
    return [
        {
            "workers": n,
            "ours": found["thc"],
            "published": found["thc published"],
            "expected": expected_nmse(PUBLISHED, n),
        }
        for n, found in by_workers.items()
    ]


def homomorphic_error(seed: int, elements: int, workers: int = 4) -> float:
    """Return |decoded sum - mean of decoded contributions|^2 over |that mean|^2, of the published table."""
    codec = make_codec(thc_published.NAME, workers=workers)
    vectors = make_vectors("gaussian", workers, elements, seed, identical=False)
    joint = _decoded(codec, vectors, seed, range(workers))
    alone = np.mean([_decoded(codec, vectors, seed, [rank]) for rank in range(workers)], axis=0)
    return float(np.square(joint - alone).sum() / np.square(alone).sum())


def _decoded(codec: Codec, vectors: Any, seed: int, ranks: Iterable[int]) -> Any:
    """Return the mean, float64[elements], of what these ranks contribute, ranges being those of all."""

    def present(_: int, phase: CollectivePhase) -> Any:
        if phase.op == Op.MAX32:
            return None
        mask = np.zeros((len(vectors), len(phase.payloads)), np.bool_)
        mask[list(ranks)] = True
        return mask

    means = simulate_allreduce(codec, vectors, seed=seed, step=1, present=present)
    assert means is not None
    return means[0].astype(np.float64)


def show(result: Result) -> Shown:
    """Return what the page says of a result of `run`, and nothing else."""
    cells = [{**cell, "mean": _mean(cell["nmse"])} for cell in result["cells"]]
    kinds = list(dict.fromkeys(cell["vectors"] for cell in cells))
    eight = [next(row for row in rows if row["workers"] == 8) for rows in result["equal"]]
    ratios = [[row["published"] / row["expected"] for row in rows] for rows in result["equal"]]
    return Shown(
        words=[
            f"NMSE of the mean, |mean' - mean|² / |mean|², over {result['steps']} all-reduces with rotations and "
            f"roundings of their own, one vector per worker; random vectors have {result['elements']:,} elements. Bits "
            "are those of payloads, per element and worker, ranges and index included. sb, sk, srk, svk, fp16, top-k "
            "and TernGrad are yardsticks: a switch cannot add their messages. "
            "Figures leave out what is exact up to float32: lossless, fixed.",
            *_text_words(result.get("text_elements", 0)),
        ],
        plots=[plot for kind in kinds for plot in (_against_bits(cells, kind), _against_workers(cells, kind))],
        tables=[least_error(cells), *(_table(cells, kind) for kind in kinds)],
        samples={
            "homomorphic": result["homomorphic"],
            "table-error": [sum(row) / len(row) for row in ratios],
            "table-choice": [row["ours"] / row["published"] for row in eight],
        },
    )


def _text_words(elements: int) -> list[str]:
    if not elements:
        return []
    return [
        f"Gradients of the transformer: {elements:,} elements of each, after a twentieth, two fifths and all of a "
        "training. DynamiQ (arXiv 2602.08923) publishes an NMSE of 0.00096 to 0.0022 at about 5 bits, on gradients of "
        "language models with a billion parameters. Its code is not published, so that it was not run on these."
    ]


def least_error(cells: Sequence[dict[str, Any]]) -> ShownTable:
    """Return the method with the least error of each kind of vectors, for so many bits in the busier direction."""
    workers = min({cell["workers"] for cell in cells} - {1, 2})
    rows = []
    for kind in dict.fromkeys(cell["vectors"] for cell in cells):
        here = [cell for cell in cells if (cell["vectors"], cell["workers"]) == (kind, workers)]
        rows.append([_TITLES[kind], *(_least(here, most) for most in _BUDGETS)])
    heads = ("vectors", *(f"at most {most:g} bits" for most in _BUDGETS))
    return ShownTable(f"Least error at equal bits, the busier of both directions, {workers} workers", heads, rows)


def _least(cells: Sequence[dict[str, Any]], most_bits: float) -> str:
    fit = [
        (cell["mean"], cell["method"])
        for cell in cells
        if cell["mean"] is not None and max(cell["bits_up"], cell["bits_down"]) <= most_bits
    ]
    return f"{min(fit)[1]} ({figure(min(fit)[0], 2)})" if fit else "-"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _against_bits(cells: Sequence[dict[str, Any]], kind: str) -> Plot:
    workers = sorted({cell["workers"] for cell in cells})
    shown_at = workers[min(1, len(workers) - 1)]
    families: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for cell in cells:
        if (cell["vectors"], cell["workers"]) == (kind, shown_at) and cell["family"] and (cell["mean"] or 0) > _EXACT:
            families[cell["family"]].append((cell["bits_up"], cell["mean"]))
    series = [Series.of(name, points) for name, points in families.items()]
    title = f"Error against bits, {_TITLES[kind]}, {shown_at} workers"
    return Plot(f"error-bits-{kind}", title, "bits per element, up", "NMSE of the mean", series, True, True)


def _against_workers(cells: Sequence[dict[str, Any]], kind: str) -> Plot:
    named = ("thc", "thc 16-bit lanes", "thc published", "uhc 4 bits", "srk 16 levels", "svk", "terngrad", "top 10 %")
    series = []
    for name in named:
        points = [(cell["workers"], cell["mean"]) for cell in cells
                  if (cell["vectors"], cell["method"]) == (kind, name) and (cell["mean"] or 0) > _EXACT]  # fmt: skip
        if points:
            series.append(Series.of(name, points))
    return Plot(f"error-workers-{kind}", f"Error against workers, {_TITLES[kind]}", "workers", "NMSE of the mean",
                series, True, True)  # fmt: skip


def _table(cells: Sequence[dict[str, Any]], kind: str) -> ShownTable:
    here = [cell for cell in cells if cell["vectors"] == kind]
    workers = sorted({cell["workers"] for cell in here})
    by_method: dict[str, dict[int, Any]] = defaultdict(dict)
    for cell in here:
        by_method[cell["method"]][cell["workers"]] = cell
    rows = []
    for method, found in by_method.items():
        bits = next((cell["bits_up"] for cell in found.values() if cell["bits_up"] is not None), None)
        down = next((cell["bits_down"] for cell in found.values() if cell["bits_down"] is not None), None)
        rows.append([method, figure(bits), figure(down), *(figure(found[n]["mean"], 2) for n in workers)])
    heads = ("", "bits up", "bits down", *(f"n = {n}" for n in workers))
    return ShownTable(f"NMSE of the mean, {_TITLES[kind]}", heads, rows)
