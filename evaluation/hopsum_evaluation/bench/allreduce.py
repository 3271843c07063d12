# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench allreduce`: seconds of an all-reduce over shaped links, beside gloo on the same links.

Workers are processes in network namespaces of their own, with a veth pair each to a bridge. A token bucket gives both
directions of every link a rate. `--placement` says where the embedded switch runs: in the middle with a link for each
worker (fabric), behind one link as a worker (server), or on every worker's host for its share of each vector (hosts).
Whatever leaves a host passes its link and counts. Subjects take turns: hopsum with codec thc
(with and without overlap of codec and network), gloo in fp32 and in fp16. All of them share this machine's cores. Every
mean is held against numpy's: the elements looked at must be equal on all ranks and as near as the codec promises.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec

from rich.console import Console

from hopsum.agent.timeline import draw
from hopsum.transport.offload import GSO
from hopsum_controlplane import ControlPlaneError
from hopsum_evaluation.bench.allreduce_report import OTHERS, Findings, as_json, show
from hopsum_evaluation.bench.allreduce_run import SUBJECTS, AllReduceSetting, WrongMeanError, run
from hopsum_evaluation.bench.placements import PLACEMENTS
from hopsum_evaluation.codec_argument import codec_argument
from hopsum_evaluation.plan.units import time_s
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.worker_pool import WorkerDiedError

ELEMENTS = 4_000_000
UNSHAPED = "unshaped"
CHOICES = (*SUBJECTS, *(name for name in OTHERS if name not in SUBJECTS))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench allreduce", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument(
        "--rates",
        default="200mbit,1gbit,2.5gbit,unshaped",
        help="rates of every link, as tc writes them (default %(default)s)",
    )
    parser.add_argument(
        "--elements",
        type=int,
        default=ELEMENTS,
        help="number of float32 elements of a tensor (default %(default)s); documented figures: 25000000",
    )
    parser.add_argument(
        "--placement", choices=PLACEMENTS, default="fabric",
        help="place of the switches of the benchmark (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, default=4, help="number of workers, 2 to 16 (default %(default)s)")
    parser.add_argument(
        "--round-trip", type=time_s, default=0.0, metavar="TIME",
        help="round-trip time added between two hosts, as in 10ms (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--window", type=int, default=512, help="packets in flight per worker and switch (default %(default)s)"
    )
    parser.add_argument(
        "--buckets", type=int, default=8,
        help="vectors that hopsum's tensor is cut into, as DDP does (default %(default)s); gloo has it whole",
    )  # fmt: skip
    parser.add_argument("--runs", type=int, default=3, help="runs of each subject at each rate (default %(default)s)")
    parser.add_argument(
        "--only",
        action="append",
        choices=CHOICES,
        metavar="SUBJECT",
        help=f"part to measure, of {', '.join(CHOICES)}; may be repeated (default: the first {len(SUBJECTS)})",
    )
    parser.add_argument(
        "--codec",
        action="append",
        type=codec_argument,
        default=[],
        help="codec to measure beside the others, as in thc:bits=2; may be repeated",
    )
    parser.add_argument(
        "--gso", choices=GSO, default="auto",
        help="many datagrams per system call of hopsum's workers (default %(default)s: where the kernel can)",
    )  # fmt: skip
    parser.add_argument(
        "--error-feedback", action="store_true", help="error feedback in hopsum's workers, as training has it"
    )
    parser.add_argument(
        "--timeline", action="store_true", help="draw the work of codec and network of rank 0 on stderr"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the vectors (default %(default)s)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 0."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.elements < 1 or not 1 <= options.buckets <= options.elements:
        parser.error("at least one run, of at least one element, in no more buckets than elements")
    if not 2 <= options.workers <= 16:
        parser.error(f"2 to 16 workers, not {options.workers}")
    if reason := unavailable():
        parser.exit(1, f"hopsum bench allreduce: {reason}\n")
    subjects = [name for name in CHOICES if name in (options.only or SUBJECTS)]
    subjects += [codec for codec in dict.fromkeys(options.codec) if codec not in subjects]
    if find_spec("torch") is None:
        subjects = [name for name in subjects if name not in OTHERS]
        print("torch is not installed: no gloo to compare with", file=sys.stderr)
    rates = [None if rate == UNSHAPED else rate for rate in options.rates.split(",")]
    setting = AllReduceSetting(
        rates, options.workers, options.elements, options.buckets, options.window, options.runs, options.seed, subjects,
        options.gso, options.placement, options.error_feedback, round_trip_s=options.round_trip,
    )  # fmt: skip
    start = time.perf_counter()
    try:
        findings = run(setting, Console(stderr=True))
    except (ControlPlaneError, TopologyError, WorkerDiedError, WrongMeanError, OSError) as error:
        parser.exit(1, f"hopsum bench allreduce: {error}\n")
    if options.timeline:
        _draw(findings)
    report = as_json(findings, setting, time.perf_counter() - start)
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def _draw(findings: Findings) -> None:
    for finding in findings:
        if finding.spans:
            print(f"{finding.subject}, {finding.rate or UNSHAPED}, rank 0, last run:", file=sys.stderr)
            print("\n".join(draw(finding.spans, 100)), file=sys.stderr)


def unavailable() -> str | None:
    """Return why this cannot run here."""
    if os.geteuid() != 0:
        return "network namespaces, veth pairs and token buckets need root: run it with sudo"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found: install iproute2" if missing else None
