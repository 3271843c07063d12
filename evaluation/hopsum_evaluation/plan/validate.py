# SPDX-License-Identifier: Apache-2.0
"""`hopsum plan --validate`: predictions beside what `hopsum bench allreduce` measures, rate by rate.

Workers, switch and everything else share this machine's cores, and the prediction is of such a machine. Where it is
off by more than the goal, the row says what of it was: processor time, or time in which nothing was busy.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hopsum.plan import Costs, PlanError, PlannedJob, Prediction, predict_ring, predict_summed
from hopsum.plan.setting import MOST_BITS_PER_S
from hopsum_controlplane import ControlPlaneError
from hopsum_evaluation.bench.allreduce import (
    SUBJECTS,
    UNSHAPED,
    AllReduceSetting,
    RateFinding,
    WrongMeanError,
    run,
    unavailable,
)
from hopsum_evaluation.bench.placements import PLACEMENTS
from hopsum_evaluation.bench.timing import commit, machine, versions
from hopsum_evaluation.plan.arguments import costs_of
from hopsum_evaluation.plan.forecast import codec_of
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.worker_pool import WorkerDiedError

GOAL = 0.25
"""The goal, as a share of the measured time, either way."""
ELEMENTS = 25_000_000
"""The elements of the documented figures."""
_WINDOW = 512
_AGGREGATORS = {"fabric": "embedded", "server": "server", "hosts": "hosts"}
"""The aggregators of the planner, by placement of the benchmark."""


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One subject at one rate."""

    rate: str
    subject: str
    predicted_s: float
    measured_s: float
    measured_min_s: float
    measured_max_s: float
    error: float
    """predicted / measured - 1"""
    binds: str
    predicted_cpu_s: float
    """Processor time of all workers and the switch."""
    measured_cpu_s: float
    within_goal: bool
    reason: str
    """The part that was not as predicted where the goal was missed, else empty."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of this part."""
    parser = argparse.ArgumentParser(prog="hopsum plan --validate", description=(__doc__ or "").partition("\n\n")[2])
    rates = f"200mbit,1gbit,{UNSHAPED}"
    parser.add_argument("--rates", default=rates, help="rates of every link (default %(default)s)")
    parser.add_argument("--elements", type=int, default=ELEMENTS, help="float32 elements (default %(default)s)")
    parser.add_argument("--placement", choices=PLACEMENTS, default="fabric", help="place of the switches")
    parser.add_argument("--workers", type=int, default=4, help="number of workers (default %(default)s)")
    parser.add_argument("--buckets", type=int, default=8, help="vectors of an all-reduce (default %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each subject (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the vectors (default %(default)s)")
    parser.add_argument("--costs", type=Path, help="file of costs, as --calibrate writes it (default: those shipped)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.set_defaults(calibrate=None)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, compare, print. Return 0 if every prediction is within the goal. Raises PlanError for bad arguments."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if reason := unavailable():
        parser.exit(1, f"hopsum plan --validate: {reason}\n")
    if options.runs < 1 or not 2 <= options.workers <= 16:
        raise PlanError(f"--validate: at least 1 run and 2 to 16 workers, not {options.runs} and {options.workers}")
    costs = costs_of(options)
    job = PlannedJob(
        options.elements, options.workers, 0.0, MOST_BITS_PER_S, vectors=options.buckets,
        shared_cores=len(os.sched_getaffinity(0)),
    )  # fmt: skip
    before = machine()
    try:
        findings = run(_setting(options), Console(stderr=True))
    except (ControlPlaneError, TopologyError, WorkerDiedError, WrongMeanError, OSError) as error:
        parser.exit(1, f"hopsum plan --validate: {error}\n")
    rows = [compare(found, job, costs, options.placement) for found in findings]
    if options.json:
        print(json.dumps(as_json(rows, job, costs, before)))
    else:
        show(rows, job, before, Console())
    return 0 if all(row.within_goal for row in rows) else 1


def _setting(options: argparse.Namespace) -> AllReduceSetting:
    subjects = [name for name in SUBJECTS if find_spec("torch") is not None or not name.startswith("gloo")]
    rates = [None if rate == UNSHAPED else rate for rate in options.rates.split(",")]
    return AllReduceSetting(
        rates, options.workers, options.elements, options.buckets, _WINDOW, options.runs, options.seed, subjects,
        "auto", options.placement,
    )  # fmt: skip


def predict(subject: str, job: PlannedJob, costs: Costs, placement: str = "fabric") -> Prediction:
    """Return the prediction of a subject of `hopsum bench allreduce`, with its switches in a placement."""
    if subject.startswith("gloo"):
        return predict_ring(job, costs, subject.rpartition("-")[2])
    own = replace(job, codec_overlap=subject == "thc")
    return predict_summed(own, costs, codec_of("thc", job.workers), _AGGREGATORS[placement])


def compare(found: RateFinding, job: PlannedJob, costs: Costs, placement: str = "fabric") -> ValidationRow:
    """Return the row of what was measured: `job` has everything but the rate."""
    rate = found.rate_bits_per_s or MOST_BITS_PER_S
    expected = predict(found.subject, replace(job, link_bits_per_s=rate), costs, placement)
    measured_s = median(found.seconds)
    error = expected.allreduce_s / measured_s - 1
    ring = found.subject.startswith("gloo")  # the switch does nothing then, but its clock runs
    switch_s = 0.0 if ring else fmean(found.switch_cpu_s)
    predicted_cpu_s = job.workers * expected.worker_cpu_s + expected.aggregator_cpu_s
    measured_cpu_s = job.workers * fmean(found.worker_cpu_s) + switch_s
    links_s = max((busy for name, busy in expected.busy_s.items() if name.startswith(("link", "server"))), default=0.0)
    within = abs(error) <= GOAL
    reason = "" if within else _reason(job, measured_s, error, links_s, predicted_cpu_s, measured_cpu_s)
    return ValidationRow(
        found.rate or UNSHAPED, found.subject, expected.allreduce_s, measured_s, min(found.seconds), max(found.seconds),
        error, expected.allreduce_binds, predicted_cpu_s, measured_cpu_s, within, reason,
    )  # fmt: skip


def _reason(
    job: PlannedJob, measured_s: float, error: float, links_s: float, predicted_cpu_s: float, measured_cpu_s: float
) -> str:
    """Say what was not as predicted."""
    cores = job.shared_cores or 1
    if abs(predicted_cpu_s / measured_cpu_s - 1) > GOAL and (predicted_cpu_s < measured_cpu_s) == (error < 0):
        return f"processor time {measured_cpu_s:.2f} s, {predicted_cpu_s:.2f} s predicted"
    if error > 0:
        return f"faster than its parts: links {links_s:.2f} s, {cores} cores {measured_cpu_s / cores:.2f} s"
    links, busy = links_s / measured_s, measured_cpu_s / cores / measured_s
    return f"links busy {links:.0%}, {cores} cores {busy:.0%}: waiting, or other load"


def as_json(rows: Sequence[ValidationRow], job: PlannedJob, costs: Costs, before: dict[str, Any]) -> dict[str, Any]:
    """Return what --json prints. `machine` has the load before the run."""
    return {
        "rows": [{name: getattr(row, name) for name in ValidationRow.__slots__} for row in rows],
        "goal": GOAL,
        "within_goal": sum(row.within_goal for row in rows),
        "elements": job.elements,
        "workers": job.workers,
        "buckets": job.vectors,
        "costs": costs.as_json(),
        "machine": before,
        "versions": versions("hopsum", "numpy", "numba", "torch", "llvmlite"),
        "commit": commit(),
    }


def show(rows: Sequence[ValidationRow], job: PlannedJob, before: dict[str, Any], console: Console) -> None:
    """Print the table."""
    title = f"all-reduce of {job.elements:,} float32, {job.workers} workers on {job.shared_cores} cores"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("rate", "", "predicted", "measured", "(min-max)", "error", "binds"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("predicted", "measured", "error") else "left")
    for row in rows:
        error = f"{row.error:+.0%}" if row.within_goal else f"[red]{row.error:+.0%}"
        spread = f"({row.measured_min_s:.2f}-{row.measured_max_s:.2f})"
        table.add_row(
            row.rate, row.subject, f"{row.predicted_s:.2f} s", f"{row.measured_s:.2f} s", spread, error, row.binds
        )
    console.print(table)
    for row in rows:
        if row.reason:
            console.print(f"{row.rate}, {row.subject}: {row.reason}", highlight=False)
    good = sum(row.within_goal for row in rows)
    console.print(
        f"{good} of {len(rows)} within {GOAL:.0%}; {before['processor']}, load {before['load_1min']} before the run",
        highlight=False,
    )
