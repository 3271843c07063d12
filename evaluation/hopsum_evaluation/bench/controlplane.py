# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench controlplane`: jobs made and ended, table entries written, jobs adopted by a new controller.

Each target has a switch process of its own, and they take turns. A round makes all jobs and ends them in another
order, two batches of writes for each job and way. batched: 512 updates in one RPC, single: one. adoption: from opening
a session to a controller that has found every entry of all jobs. What is left over on a switch is counted after each
round. Anything but 0 is an error. Controller and switches share this machine's cores.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from google.protobuf.internal import api_implementation
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from hopsum_controlplane import ControlPlaneError
from hopsum_evaluation.bench.controlplane_run import AdoptionError, SwitchUnderTest, available
from hopsum_evaluation.bench.timing import Rate, commit, machine, versions
from hopsum_topologies.bmv2_process import bmv2_versions
from hopsum_topologies.errors import TopologyError
from hopsum_wire import MAX_JOBS, MAX_SLOTS, MAX_WORKERS

TARGETS = ("native", "bmv2")
# By key: what the table calls it, its digits.
FIGURES = {
    "job_writes_per_s": ("writes/s, jobs", 0),
    "batched_writes_per_s": ("writes/s, batched", 0),
    "single_writes_per_s": ("writes/s, one by one", 0),
    "create_job_s": ("s to make a job", 4),
    "delete_job_s": ("s to end one", 4),
    "adoption_s": ("s to adopt all", 3),
    "audit_s": ("s to audit them", 3),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench controlplane", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument("--target", choices=TARGETS, help="switch to measure on (default: all that are installed)")
    parser.add_argument("--jobs", type=int, default=MAX_JOBS, help="jobs at a time (default %(default)s)")
    parser.add_argument("--workers", type=int, default=8, help="number of workers of each job (default %(default)s)")
    parser.add_argument(
        "--iterations",
        type=int,
        default=100,
        help="number of times that all jobs are made and ended (default %(default)s)",
    )
    parser.add_argument("--runs", type=int, default=7, help="runs of everything else (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the order in which jobs end (default %(default)s)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure and print. Return 0, or 1 when something was left over."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if not 1 <= options.jobs <= MAX_JOBS or not 1 <= options.workers <= MAX_WORKERS:
        parser.error(f"1 to {MAX_JOBS} jobs of 1 to {MAX_WORKERS} workers, not {options.jobs} of {options.workers}")
    if options.iterations < 1 or options.runs < 1:
        parser.error("at least once, and one run")
    names = [name for name in available() if options.target in (None, name)]
    start = time.perf_counter()
    try:
        with ExitStack() as stack:
            targets = [SwitchUnderTest(name, stack, options.jobs, options.workers, options.seed) for name in names]
            run(targets, options.iterations, options.runs)
    except (ControlPlaneError, TopologyError, AdoptionError) as error:
        parser.exit(1, f"hopsum bench controlplane: {error}\n")
    report = describe(targets, options, time.perf_counter() - start)
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return int(any(target.leaks for target in targets))


def run(targets: Sequence[SwitchUnderTest], times: int, runs: int) -> None:
    """Let the targets take turns, once to warm up. Show the progress on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
        task = progress.add_task("starting", total=len(targets) * (times + 2 * runs + 3))
        for number, (what, target, action) in enumerate(_steps(targets, times, runs)):
            progress.update(task, description=f"{target.name}: {what}")
            progress.refresh()
            action()
            progress.advance(task)
            if number + 1 == 3 * len(targets):  # that was to warm up
                for warm in targets:
                    warm.samples.clear()


def _steps(
    targets: Sequence[SwitchUnderTest], times: int, runs: int
) -> Iterator[tuple[str, SwitchUnderTest, Callable[[], None]]]:
    for what, count in (("warm", 1), ("jobs", times), ("runs", runs)):
        for _ in range(count):
            for target in targets:  # in turn, so that the load of the machine meets all of them
                if what != "runs":
                    yield "jobs", target, target.cycle
                if what != "jobs":
                    yield "writes", target, target.batch
                    yield "adoption", target, target.adopt


def describe(targets: Sequence[SwitchUnderTest], options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Return what --json prints. A figure that was not measured is null."""
    report: dict[str, Any] = {}
    measured = {target.name: target for target in targets}
    for name in TARGETS:
        target = measured.get(name)
        for figure, (_, digits) in FIGURES.items():
            report |= _figure(f"{name}.{figure}", None if target is None else target.samples[figure], digits)
        for leak in ("entries", "slots", "generations_used_twice"):
            key = leak if leak.startswith("generations") else f"leaked_{leak}"
            report[f"{name}.{key}"] = None if target is None else getattr(target.leaks, leak)
    return {
        **report,
        **{name: getattr(options, name) for name in ("jobs", "workers", "runs", "seed")},
        "times": options.iterations,
        "slots_per_job": MAX_SLOTS // options.jobs,
        "seconds": round(seconds, 2),
        "machine": machine(),
        "versions": {
            **versions("hopsum", "grpcio", "protobuf", "p4runtime-shell"),
            **(bmv2_versions() if "bmv2" in measured else {}),
        },
        "protobuf_in": api_implementation.Type(),
        "commit": commit(),
    }


def _figure(key: str, samples: list[float] | None, digits: int) -> dict[str, float | None]:
    if samples is None:
        return {key: None}
    return dict(Rate(median(samples), min(samples), max(samples)).as_json(key, digits or None))


def show(report: dict[str, Any], console: Console) -> None:
    """Print the table."""
    names = [name for name in TARGETS if report[f"{name}.adoption_s"] is not None]
    title = f"{report['jobs']} jobs of {report['workers']} workers, made and ended {report['times']} times"
    table = Table(title=f"{title}; median (min-max)", title_justify="left")
    for name in ("", *names):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for figure, (label, digits) in FIGURES.items():
        table.add_row(label, *(_range(report, f"{name}.{figure}", digits) for name in names))
    for leak in ("leaked_entries", "leaked_slots", "generations_used_twice"):
        table.add_row(leak.replace("_", " "), *(str(report[f"{name}.{leak}"]) for name in names))
    console.print(table)
    where, of = report["machine"], ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    console.print(f"{where['processor']}, {where['cores']} cores, load {where['load_1min']}, {where['system']}")
    console.print(f"{of}, protobuf in {report['protobuf_in']}; seed {report['seed']}, commit {report['commit']}")


def _range(report: dict[str, Any], key: str, digits: int) -> str:
    middle, low, high = (f"{report[name]:,.{digits}f}" for name in (key, f"{key}_min", f"{key}_max"))
    return f"{middle} ({low}-{high})"
