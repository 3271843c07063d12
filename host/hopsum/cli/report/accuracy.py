# SPDX-License-Identifier: Apache-2.0
"""Section `accuracy`: seconds to a test accuracy on shaped links, beside gloo in fp32 and fp16; needs root."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from importlib.util import find_spec
from math import nan
from statistics import mean
from typing import Any, Final

from hopsum.cli.report.claims import Basis, Claim, Relation
from hopsum.cli.report.interval import interval
from hopsum.cli.report.settings import NotRun, Result, Settings, Tell
from hopsum.cli.report.shown import Plot, Series, Shown, Table, figure

TARGET: Final = 0.9
RATE: Final = "200mbit"
BATCH: Final = 32
CLAIMS: Final = (
    Claim(
        "tta-best",
        f"seconds of the fastest other scheme measured to {TARGET:.0%} accuracy over those of thc, {RATE} links",
        "Li et al., THC, NSDI 2024 (arXiv 2302.08545), abstract: 1.40 to 1.47 with in-network aggregation",
        Basis.PUBLISHED,
        1.40,
        Relation.AT_LEAST,
    ),
    Claim(
        "tta-fp32",
        f"seconds of fp32 to {TARGET:.0%} accuracy over those of thc, {RATE} links, batches of {BATCH} a worker",
        "a goal of this project",
        Basis.OWN,
        2.0,
        Relation.AT_LEAST,
    ),
    Claim(
        "amdahl",
        f"speed-up of a step, fp32 over thc, over the bound by compute and all-reduce timed alone, {RATE} links",
        "a goal of this project",
        Basis.OWN,
        0.85,
        Relation.AT_LEAST,
    ),
)


def run(settings: Settings, tell: Tell) -> Result:
    """See `hopsum.cli.report.sections.Experiment`."""
    if reason := unavailable():
        raise NotRun(reason)
    from hopsum.cli.report.accuracy_run import Trainings, run_apart

    seeds = tuple(settings.stream("data", "accuracy", repeat) for repeat in range(settings.pick(2, 3, 5)))
    trainings = Trainings(
        workers=settings.pick(2, 4, 4),
        steps=settings.pick(4, 64, 200),
        batch=BATCH,
        every=settings.pick(2, 4, 4),
        rates=settings.pick((RATE,), (RATE,), ("100mbit", RATE, "1gbit")),
        schemes=settings.pick(("fp32", "thc"), ("fp32", "fp16", "thc"), ("fp32", "fp16", "powersgd", "thc")),
        seeds=seeds,
    )
    found = run_apart(trainings, tell)
    return {"workers": trainings.workers, "steps": trainings.steps, "batch": BATCH, **found}


def unavailable() -> str | None:
    """Return why this cannot run here."""
    if find_spec("torch") is None or find_spec("sklearn") is None:
        return "needs torch and scikit-learn: pip install 'hopsum[demo]'"
    if os.geteuid() != 0:
        return "network namespaces, veth pairs and token buckets need root: run it with sudo"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found: install iproute2" if missing else None


def show(result: Result) -> Shown:
    """See `hopsum.cli.report.sections.Experiment`."""
    runs = result["runs"]
    pairs = _by_repeat([run for run in runs if run["rate"] == RATE])
    others = [min(_to_target(run) for name, run in pair.items() if name != "thc") for pair in pairs]
    late = f"a training did not reach {TARGET:.0%} in {result['steps']} steps"
    return Shown(
        words=[
            f"A convolutional network of {result['parameters']:,} parameters on scikit-learn's digits, DDP of "
            f"{result['workers']} workers, batches of {result['batch']} each, {result['steps']} steps; each worker in "
            "a network namespace of its own, both directions of its link shaped, the embedded switch in the middle; "
            "fp32 and fp16 over gloo on the same links. All schemes train from the same parameters on the same "
            "batches, and all processes share this machine's cores. Looks at the test images are not in the seconds.",
            "The bound is (compute + all-reduce in fp32) / (compute + all-reduce by thc): a step without its "
            "all-reduce, all workers at the same time, and the all-reduce of one gradient alone. Overlap of both can "
            "exceed it. The communication share is all-reduce / (compute + all-reduce).",
            "Digits are easy: what is compared is time, not what a codec does to hard models.",
        ],
        plots=[_curves(runs, rate) for rate in dict.fromkeys(run["rate"] for run in runs)],
        tables=[_table(runs)],
        samples={
            "tta-best": [_ratio(best_s, pair) for best_s, pair in zip(others, pairs, strict=True)],
            "tta-fp32": [_ratio(_to_target(pair["fp32"]), pair) for pair in pairs],
            "amdahl": [_of_bound(pair) for pair in pairs],
        },
        reasons={"tta-best": late, "tta-fp32": late},
    )


def _by_repeat(runs: Sequence[dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    found: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for run in runs:
        found[run["repeat"]][run["scheme"]] = run
    return list(found.values())


def _to_target(run: dict[str, Any]) -> float:
    """Return the seconds to the target accuracy; infinity if it was not reached."""
    return next((float(seconds) for _, seconds, accuracy in run["points"] if accuracy >= TARGET), float("inf"))


def _ratio(other_s: float, pair: dict[str, dict[str, Any]]) -> float:
    """Return the ratio of seconds to the target; not a number where one of them did not reach it."""
    ours_s = _to_target(pair["thc"])
    return other_s / ours_s if max(other_s, ours_s) < float("inf") else nan


def _of_bound(pair: dict[str, dict[str, Any]]) -> float:
    fp32, thc = pair["fp32"], pair["thc"]
    compute_s = mean([fp32["compute_s"], thc["compute_s"]])
    bound = (compute_s + fp32["reduce_s"]) / (compute_s + thc["reduce_s"])
    return float(fp32["step_s"] / thc["step_s"] / bound)


def _curves(runs: Sequence[dict[str, Any]], rate: str) -> Plot:
    series = []
    for scheme in dict.fromkeys(run["scheme"] for run in runs):
        same = [run["points"] for run in runs if (run["rate"], run["scheme"]) == (rate, scheme)]
        points = [(mean(p[1] for p in each), 100 * mean(p[2] for p in each)) for each in zip(*same, strict=True)]
        series.append(Series.of(scheme, points))
    series.append(Series("target", [0, max(max(each.x) for each in series)], [100 * TARGET] * 2, reference=True))
    return Plot(f"accuracy-{rate}", f"Time to accuracy, {rate} links, mean of the seeds", "seconds of training",
                "test accuracy, %", series)  # fmt: skip


def _table(runs: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for rate, scheme in dict.fromkeys((run["rate"], run["scheme"]) for run in runs):
        same = [run for run in runs if (run["rate"], run["scheme"]) == (rate, scheme)]
        compute_s = mean(run["compute_s"] for run in same)
        step = interval([1000 * run["step_s"] for run in same])
        reduce = [run["reduce_s"] for run in same if run["reduce_s"] is not None]
        share = f"{mean(reduce) / (mean(reduce) + compute_s):.0%}" if reduce else "-"
        reached = [_to_target(run) for run in same]
        to_target = figure(mean(reached)) if max(reached) < float("inf") else "not reached"
        rows.append([
            rate, scheme, f"{figure(step.mean)} ± {figure(step.high - step.mean, 2)}", figure(1000 * compute_s),
            figure(1000 * mean(reduce)) if reduce else "-", share, to_target,
        ])  # fmt: skip
    heads = ("links", "scheme", "step, ms", "compute, ms", "all-reduce, ms", "communication", f"s to {TARGET:.0%}")
    return Table("Steps", heads, rows)
