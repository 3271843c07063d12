# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench scaling`: an all-reduce over more and more hosts, and the processor time that each host spends on it.

Workers are processes in network namespaces, as in `hopsum bench allreduce --placement hosts`, and the embedded switches
run on the first hosts, one for each shard. A host's processor time is that of its worker and its share of all switches:
it must not grow with the number of hosts. All hosts share this machine's cores, so the seconds of an all-reduce do
grow, with their number over that of the cores. Where processes wait for a core longer than the retransmission timeout,
packets are sent again, which costs processor time that hosts with cores of their own do not spend. Larger numbers of
hosts are for `hopsum plan`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hopsum_base.units import list_of, whole
from hopsum_controlplane import ControlPlaneError
from hopsum_evaluation.bench.allreduce import (
    UNSHAPED,
    AllReduceSetting,
    RateFinding,
    WrongMeanError,
    add_common_options,
    run,
)
from hopsum_evaluation.bench.made_datagrams import CODES
from hopsum_evaluation.bench.timing import machine, processors_of, source_commit, versions
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.local_cluster import links_unavailable
from hopsum_topologies.worker_pool import WorkerDiedError

ELEMENTS = 4_000_000


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench scaling", description=(__doc__ or "").partition("\n\n")[2])
    add_common_options(parser, UNSHAPED, 256)
    parser.add_argument(
        "--host-counts", type=list_of(whole(2, 16)), default=(2, 4, 8, 16), metavar="N,...",
        help="numbers of hosts with a worker each, 2 to 16 (default 2,4,8,16)",
    )  # fmt: skip
    parser.add_argument(
        "--shard-counts", type=list_of(whole(1)), default=(1, 2, 4), metavar="K,...",
        help="numbers of shards, no more than hosts (default 1,2,4)",
    )  # fmt: skip
    parser.add_argument(
        "--elements",
        type=whole(1),
        default=ELEMENTS,
        help="number of float32 elements of a tensor (default %(default)s)",
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command: measure, and print a table or JSON. Return 0. A failure prints a message and exits with 1."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    hosts, shards = options.host_counts, options.shard_counts
    if options.buckets > options.elements:
        parser.error(f"--buckets {options.buckets}: no more than elements")
    if reason := links_unavailable():
        parser.exit(1, f"hopsum bench scaling: {reason}\n")
    before, began_s = machine(), time.perf_counter()
    try:
        rows = [row for n in hosts for k in shards if k <= n for row in measure(options, n, k, Console(stderr=True))]
    except (ControlPlaneError, TopologyError, WorkerDiedError, WrongMeanError, OSError) as error:
        parser.exit(1, f"hopsum bench scaling: {error}\n")
    report = {
        "benchmark": "scaling",
        "processors": processors_of(max(hosts), max(shards), before["cores"]),
        "elements": options.elements,
        "buckets": options.buckets,
        "window": options.window,
        "runs": options.runs,
        "seed": options.seed,
        "rows": rows,
        "machine": before,
        "versions": versions("hopsum", "numpy", "numba", "llvmlite"),
        "commit": source_commit(),
        "elapsed_s": round(time.perf_counter() - began_s, 1),
    }
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def measure(options: argparse.Namespace, hosts: int, shards: int, console: Console) -> list[dict[str, Any]]:
    """Measure one number of hosts and shards at all rates. Return a row of figures for each rate. Raises as `run`."""
    setting = AllReduceSetting(
        options.rates, hosts, (options.elements,), options.buckets, options.window, options.runs, options.seed, ["thc"],
        "hosts", shards=shards,
    )  # fmt: skip
    return [_row(found, setting, shards) for found in run(setting, console)]


def _row(found: RateFinding, setting: AllReduceSetting, shards: int) -> dict[str, Any]:
    # Every chunk of codec thc has CODES elements, and the last chunk of a vector is sent whole.
    updates = setting.workers * setting.buckets * -(-found.elements // setting.buckets // CODES)
    worker_s, switches_s = median(found.worker_cpu_s), median(found.switch_cpu_s)
    return {
        "rate": found.rate or UNSHAPED,
        "hosts": setting.workers,
        "shards": shards,
        "seconds": round(median(found.seconds), 4),
        "cpu_s_per_host": round(worker_s + switches_s / setting.workers, 4),
        "worker_cpu_s": round(worker_s, 4),
        "switch_cpu_s_per_shard": round(switches_s / shards, 4),
        "busiest_bits_per_element": round(8 * found.busiest_wire_bytes / found.elements, 3),
        "sent_again": round(found.retransmits / (updates * found.all_reduces), 4),
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report of --json as a table."""
    title = f"all-reduce of {report['elements']:,} float32, switches on the hosts, medians"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("rate", "hosts", "shards", "s", "core-s", "worker", "switch", "bits", "again"):
        table.add_column(name, no_wrap=True, justify="right")
    for row in report["rows"]:
        table.add_row(
            row["rate"],
            str(row["hosts"]),
            str(row["shards"]),
            f"{row['seconds']:.3f}",
            f"{row['cpu_s_per_host']:.3f}",
            f"{row['worker_cpu_s']:.3f}",
            f"{row['switch_cpu_s_per_shard']:.3f}",
            f"{row['busiest_bits_per_element']:.2f}",
            f"{row['sent_again']:.1%}",
        )
    console.print(report["processors"], highlight=False)
    console.print(table)
    where = report["machine"]
    console.print("core-s: processor time of a host: its worker, and its share of the switches; switch: of one")
    console.print("bits: of an element, in the busiest direction of a host's link; again: UPDATEs sent once more")
    console.print(f"{where['processor']}, {where['cores']} cores, load {where['load_1min']}, {report['elapsed_s']} s")
