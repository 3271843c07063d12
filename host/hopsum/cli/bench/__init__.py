# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench WHAT`: measurements, each with the machine, versions, commit and seed that made it.

codec      elements per second and error of every codec and backend, on one core
  codec_subjects   what is timed of a codec; codec_threads: on two threads; codec_lossless: on sparse vectors
  codec_report     their figures as JSON and as tables
  published        the published worker in plain torch, as a process beside them
lossless   elements per second, bytes and memory of codec lossless on a sparse vector
allreduce  seconds of an all-reduce over links of a given rate, beside gloo on the same links
  allreduce_run    links, switch, workers taking turns; allreduce_worker: their processes; allreduce_report: figures
dataplane  codes per second of the switches
  subjects   what is measured, all of it standing at the same time
  pipeline   engines in memory; sockets, load, echo: switch processes under load; startup: until `ready`, and memory
  naive      the program of benchmarks/naive behind the shipped one's control plane
  traffic    datagrams made beforehand, and the sums they must bring
  report     figures as JSON and as a table
controlplane   jobs made and ended, table writes, adoption; controlplane_run: what is done to each switch
placement  cores: who works where, and how busy they are
timing     medians of alternating runs; where they ran
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module

BENCHMARKS = {
    "allreduce": ("an all-reduce over shaped links, beside gloo fp32 and fp16 (root)", "hopsum.cli.bench.allreduce"),
    "dataplane": ("codes per second of the embedded switch and of bmv2", "hopsum.cli.bench.dataplane"),
    "codec": ("encode, decode and error of the codecs, without a network", "hopsum.cli.bench.codec"),
    "controlplane": ("jobs made and ended, table writes and adoption by a controller", "hopsum.cli.bench.controlplane"),
    "lossless": ("speed, bytes and memory of codec lossless on a sparse vector", "hopsum.cli.bench.lossless"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's name; the rest belongs to the benchmark."""
    lines = "\n".join(f"  {name:12} {summary}" for name, (summary, _) in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="hopsum bench",
        description="Measure a part of hopsum on this machine.",
        epilog=f"benchmarks:\n{lines}\n\n`hopsum bench WHAT --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benchmark", choices=BENCHMARKS, metavar="WHAT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark and return its exit status."""
    options = build_parser().parse_args(arguments)
    benchmark: Callable[[Sequence[str]], int] = import_module(BENCHMARKS[options.benchmark][1]).main
    return benchmark(options.arguments)
