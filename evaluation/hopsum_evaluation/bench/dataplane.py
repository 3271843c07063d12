# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench dataplane`: LOOKUP_ADD8 codes per second of the switches, and what bounds them.

pipeline: the embedded engine by itself, frames handed over in memory. sockets: the embedded switch over UDP on
loopback, the workers on one core and the switch on another, beside the same datagrams without a switch. bmv2:
simple_switch_grpc over veth pairs. naive, naive-native: a program that works lane by lane, on all of them. start: the
switch process until it is ready, and its memory. shards: one engine alone and two at the same time, each on a core of
its own. Only when asked for. Workers and switches share this machine's cores. Codes are counted
as they arrive from the workers. Every sum that comes back is waited for and compared with numpy's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hopsum.codec import best_table
from hopsum_controlplane import ControlPlaneError
from hopsum_evaluation.bench.load import LoadError
from hopsum_evaluation.bench.report import Findings, describe, show
from hopsum_evaluation.bench.startup import MEMORY_SLOTS, StartError
from hopsum_evaluation.bench.subjects import DEFAULT_PARTS, PARTS, DataplaneSetting, Subjects
from hopsum_evaluation.bench.timing import Rate
from hopsum_evaluation.bench.traffic import WrongResultError
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.worker_pool import WorkerDiedError
from hopsum_wire import MAX_SLOTS

SLOTS = 248
"""Four trains of RESULTs, of which 62 fit one send."""
RUNS_TO_QUOTE = 5
FAILURES = (ControlPlaneError, TopologyError, LoadError, StartError, WorkerDiedError, WrongResultError, OSError)
"""The errors of `run` where this machine cannot do it, or a switch is wrong."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench dataplane", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument(
        "--only",
        action="append",
        choices=PARTS,
        metavar="PART",
        help=f"part to measure, of {', '.join(PARTS)}; may be repeated (default: {', '.join(DEFAULT_PARTS)})",
    )
    parser.add_argument("--workers", type=int, default=4, help="number of workers, 1 to 16 (default %(default)s)")
    parser.add_argument(
        "--slots", type=int, default=SLOTS, help=f"slots of the socket part, up to {MAX_SLOTS} (default %(default)s)"
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=RUNS_TO_QUOTE,
        help="runs of each subject; a figure to quote needs five (default %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="length of one run of one subject (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the vectors (default %(default)s)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 0."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.seconds <= 0:
        parser.error("at least one run, of more than 0 seconds")
    if not 1 <= options.workers <= 16 or not 1 <= options.slots <= MAX_SLOTS:
        parser.error(f"1 to 16 workers and 1 to {MAX_SLOTS} slots, not {options.workers} and {options.slots}")
    table = best_table(options.workers).values
    setting = DataplaneSetting(options.only or DEFAULT_PARTS, options.workers, options.slots, options.seed, table)
    start = time.perf_counter()
    try:
        findings = run(setting, options.runs, options.seconds)
    except FAILURES as error:
        parser.exit(1, f"hopsum bench dataplane: {error}\n")
    report = describe(findings, setting, options.runs, time.perf_counter() - start)
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def run(setting: DataplaneSetting, runs: int, seconds: float) -> Findings:
    """Measure all subjects in turn, once to warm up and `runs` times. Show the progress on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # It draws between runs only: a thread that refreshes would take time from what is measured.
    console = Console(stderr=True)
    with ExitStack() as stack, Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        progress.refresh()
        subjects = Subjects(stack, setting)
        samples: dict[str, list[float]] = {name: [] for name in subjects.actions}
        progress.update(task, total=(runs + 1) * len(samples))
        for number in range(runs + 1):
            for name, action in subjects.actions.items():
                progress.update(task, description=name)
                progress.refresh()
                samples[name].append(action(seconds))
                progress.advance(task)
            if number == 0:  # that was to warm up
                for name in samples:
                    samples[name].clear()
                for socket_run in subjects.sockets.values():
                    socket_run.forget()
        memory = {}
        if subjects.startup is not None:
            progress.update(task, description=f"memory with {MEMORY_SLOTS} slots")
            progress.refresh()
            memory = subjects.startup.memory(setting.workers, setting.table, setting.seed, seconds)
        rates = {name: Rate(median(found), min(found), max(found)) for name, found in samples.items()}
        effort = {name: engine.effort() for name, engine in subjects.engines.items()}
        busy = {name: socket_run.busy() for name, socket_run in subjects.sockets.items()}
        return Findings(rates, effort, busy, memory, samples)
