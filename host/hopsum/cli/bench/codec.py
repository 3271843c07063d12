# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench codec`: elements per second and error of every codec and backend, beside memcpy of the same run.

Encoding includes the ranges, decoding the counting of contributors. One thread, no network: the switch is numpy.
All ranks have the same N(0, 1) vector, which is what the expected error is for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hopsum.cli.bench.timing import Rate, commit, machine, measure, versions
from hopsum.codec import CODECS, CodecError, Context, SharedRanges, make_codec
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.simulate import simulate_allreduce, simulate_switch
from hopsum.codec.table import expected_nmse
from hopsum.codec.thc import Thc

ELEMENTS = 1 << 22
NMSE_ELEMENTS = 1 << 20
MIN_RUNS = 5


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench codec", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument("--workers", type=int, default=8, help="of the job (default %(default)s)")
    parser.add_argument("--runs", type=int, default=7, help=f"at least {MIN_RUNS} (default %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help=f"times {ELEMENTS} elements (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 0."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    elements = round(ELEMENTS * options.scale)
    if options.runs < MIN_RUNS or elements < 1024:
        parser.error(f"at least {MIN_RUNS} runs and 1024 elements, not {options.runs} and {elements}")
    backends = ["numpy", *(["numba"] if find_spec("numba") else [])]
    try:
        made = [make_codec(name, workers=options.workers, backend=b) for name in CODECS for b in backends]
    except CodecError as error:
        parser.error(str(error))
    codecs = [codec for codec in made if isinstance(codec, RangeCodec)]
    report = run(codecs, elements, options.runs, options.seed)
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def run(codecs: Sequence[RangeCodec], elements: int, runs: int, seed: int) -> dict[str, Any]:
    """Measure codecs and return what --json prints."""
    x = np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)
    copy = np.empty_like(x)
    actions: dict[str, Callable[[], object]] = {"memcpy": lambda: np.copyto(copy, x)}
    for codec in codecs:
        actions |= _actions(codec, x, seed)
    rates = measure(actions, elements, runs)
    sample = x[:NMSE_ELEMENTS]
    return {
        "codecs": [_row(codec, rates, sample, seed) for codec in codecs],
        **rates["memcpy"].as_json("memcpy_elements_per_s"),
        "elements": elements,
        "workers": codecs[0].workers,
        "runs": runs,
        "seed": seed,
        "machine": machine(),
        "versions": versions("hopsum", "numpy", "numba", "llvmlite"),
        "commit": commit(),
    }


def _label(codec: RangeCodec, action: str) -> str:
    return f"{codec.name} {codec.backend} {action}"


def _actions(codec: RangeCodec, x: NDArray[np.float32], seed: int) -> dict[str, Callable[[], object]]:
    """Return what is timed of a codec; the payloads of all ranks are this rank's."""
    context = Context(seed, 0, 0)
    own = codec.ranges(x)
    shared = SharedRanges(own.view(np.float32))
    payloads = codec.encode(x, own, shared, context)
    parts = [simulate_switch(codec.op, [part] * codec.workers, codec.lookup) for part in np.array_split(payloads, 64)]
    results = np.ascontiguousarray(np.concatenate([part for part, _ in parts]))
    contributors = np.concatenate([part for _, part in parts])
    return {
        _label(codec, "encode"): lambda: codec.encode(x, codec.ranges(x), shared, context),
        _label(codec, "decode"): lambda: codec.decode(results, contributors, shared, x.size, context),
        _label(codec, "contribution"): lambda: codec.contribution(payloads, shared, x.size, context),
    }


def _row(codec: RangeCodec, rates: dict[str, Rate], sample: NDArray[np.float32], seed: int) -> dict[str, Any]:
    means = simulate_allreduce(codec, [sample] * codec.workers, seed=seed, step=1)
    assert means is not None
    row: dict[str, Any] = {"codec": codec.name, "backend": codec.backend}
    for action in ("encode", "decode", "contribution"):
        row |= rates[_label(codec, action)].as_json(f"{action}_elements_per_s")
    error = means[0].astype(np.float64) - sample
    row["nmse"] = float(error @ error / (sample.astype(np.float64) @ sample))
    row["nmse_expected"] = expected_nmse(codec.table, codec.workers) if isinstance(codec, Thc) else None
    row["granularity"] = codec.table.granularity if isinstance(codec, Thc) else None
    row["truncated"] = codec.table.truncated if isinstance(codec, Thc) else None
    return row


def show(report: dict[str, Any], console: Console) -> None:
    """Print the table."""
    title = f"{report['workers']} workers, {report['elements']:,} elements; M elements/s, median (min-max of {{}})"
    table = Table(title=title.format(report["runs"]), title_justify="left")
    table.add_column("codec", no_wrap=True)
    for name in ("encode", "decode", "NMSE", "theory"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report["codecs"]:
        expected = "" if row["nmse_expected"] is None else f"{row['nmse_expected']:.5f}"
        rates = (_millions(row, f"{action}_elements_per_s") for action in ("encode", "decode"))
        table.add_row(f"{row['codec']} {row['backend']}", *rates, f"{row['nmse']:.3g}", expected)
    table.add_section()
    table.add_row("memcpy", _millions(report, "memcpy_elements_per_s"))
    console.print(table)
    where = report["machine"]
    console.print(f"{where['processor']}, {where['cores']} cores, load {where['load_1min']}; one thread measured")


def _millions(row: dict[str, Any], key: str) -> str:
    return f"{row[key] / 1e6:,.0f} ({row[f'{key}_min'] / 1e6:,.0f}-{row[f'{key}_max'] / 1e6:,.0f})"
