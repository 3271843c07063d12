# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench lossless`: elements per second, bytes and memory of codec `lossless` on a sparse vector.

One rank, no network: what it sends is handed back to it. "encode" is from the vector to the payloads of the sums,
sizing and peeling of the sketch included. "all" goes on to the mean. Settings take turns, so that other load on the
machine hits them alike.
"""

from __future__ import annotations

import argparse
import json
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from hopsum.codec import CodecError, ReductionContext, make_codec
from hopsum.codec.lossless import Lossless, LosslessReduction
from hopsum.codec.lossless.sizing import GAMMA
from hopsum_evaluation.bench.timing import Rate, commit, machine, measure, versions

ELEMENTS = 1 << 24
_GAMMAS = (GAMMA, 0.0)


@dataclass(frozen=True, slots=True)
class LosslessSetting:
    """A codec that is measured, on so many threads."""

    codec: Lossless
    gamma: float
    threads: int

    @property
    def label(self) -> str:
        """Names it among the others."""
        return f"gamma={self.gamma:g}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench lossless", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument(
        "--elements", type=int, default=ELEMENTS, help="number of elements of the vector (default %(default)s)"
    )
    parser.add_argument("--density", type=float, default=0.05, help="share of nonzero elements (default %(default)s)")
    parser.add_argument("--index", default="auto", help="index: auto, bitmap or bloom (default %(default)s)")
    parser.add_argument(
        "--codec-backend", default="auto", help="back end of the codec: numpy, numba or auto (default %(default)s)"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads (default 1 2)")
    parser.add_argument("--runs", type=int, default=7, help="runs of each subject (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the vector (default %(default)s)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 0."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.elements < 1 or options.runs < 1 or not 0 < options.density <= 1:
        parser.error("at least 1 element, 1 run, and a density above 0 up to 1")
    try:
        settings = [_setting(options, gamma, threads) for gamma in _GAMMAS for threads in options.threads]
    except CodecError as error:
        parser.error(str(error))
    rng = np.random.default_rng(options.seed)
    x = rng.standard_normal(options.elements, dtype=np.float32)
    x[rng.random(options.elements, dtype=np.float32) >= options.density] = 0
    report = run(settings, x, options.runs, options.seed)
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def run(settings: Sequence[LosslessSetting], x: NDArray[np.float32], runs: int, seed: int) -> dict[str, Any]:
    """Measure all settings in turn, and return what --json prints."""
    actions: dict[str, Callable[[], object]] = {}
    for setting in settings:
        actions[f"{setting.label} encode"] = partial(reduce_alone, setting.codec, x, seed, 2)
        actions[f"{setting.label} all"] = partial(reduce_alone, setting.codec, x, seed, 3)
    rates = measure(actions, x.size, runs)
    return {
        "settings": [_row(setting, rates, x, seed) for setting in settings],
        "elements": x.size,
        "nonzero": int(np.count_nonzero(x)),
        "runs": runs,
        "seed": seed,
        "machine": machine(),
        "versions": versions("hopsum", "numpy", "numba", "llvmlite"),
        "commit": commit(),
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the table."""
    density = report["nonzero"] / report["elements"]
    title = (
        f"{report['elements']:,} elements, {density:.3%} not zero; M elements/s, median (min-max of {report['runs']})"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("encode", "all", "lanes", "bytes", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report["settings"]:
        rates = [
            f"{row[f'{key}'] / 1e6:,.0f} ({row[f'{key}_min'] / 1e6:,.0f}-{row[f'{key}_max'] / 1e6:,.0f})"
            for key in ("encode_elements_per_s", "all_elements_per_s")
        ]
        ratios = (row["lanes_per_nonzero"], row["bytes_of_dense"], row["memory_of_dense"])
        table.add_row(row["setting"], *rates, *(f"{ratio:.3f}" for ratio in ratios))
    console.print(table)
    where = report["machine"]
    console.print("lanes per non-zero element; bytes up (index and sums) and memory per byte of the dense vector")
    console.print(f"{where['processor']}, {where['cores']} cores, load {where['load_1min']}")


def _setting(options: argparse.Namespace, gamma: float, threads: int) -> LosslessSetting:
    made = make_codec(
        "lossless", workers=1, backend=options.codec_backend, threads=threads, gamma=gamma, index=options.index
    )
    assert isinstance(made, Lossless)
    return LosslessSetting(made, gamma, threads)


def reduce_alone(codec: Lossless, x: NDArray[np.float32], seed: int, phases: int) -> LosslessReduction:
    """Return the reduction of one rank after so many of its phases: two are its encoding, three all of it."""
    reduction = codec.start(x, ReductionContext(seed, 0, 0))
    for _ in range(phases):
        assert reduction.phase is not None
        payloads = reduction.phase.payloads
        reduction.take(payloads, np.ones(len(payloads), np.uint64))
    return reduction


def _row(setting: LosslessSetting, rates: dict[str, Rate], x: NDArray[np.float32], seed: int) -> dict[str, Any]:
    row: dict[str, Any] = {"setting": setting.label, "gamma": setting.gamma, "threads": setting.threads}
    row["backend"] = setting.codec.backend
    for action in ("encode", "all"):
        row |= rates[f"{setting.label} {action}"].as_json(f"{action}_elements_per_s")
    sent = [_phase_bytes(reduce_alone(setting.codec, x, seed, phase)) for phase in range(3)]
    plan = reduce_alone(setting.codec, x, seed, 2).plan
    assert plan is not None
    row["lanes_per_nonzero"] = round(plan.lanes / int(np.count_nonzero(x)), 4)
    for name, count in zip(("ranges", "index", "sums"), sent, strict=True):
        row[f"{name}_bytes"] = count
    row["bytes_of_dense"] = round((sent[1] + sent[2]) / x.nbytes, 5)
    row["memory_of_dense"] = round(_memory(setting.codec, x, seed) / x.nbytes, 3)
    return row


def _phase_bytes(reduction: LosslessReduction) -> int:
    assert reduction.phase is not None
    return reduction.phase.payloads.nbytes


def _memory(codec: Lossless, x: NDArray[np.float32], seed: int) -> int:
    """Return the most bytes that numpy held at a time beyond payloads, results, input and mean."""
    most = 0
    tracemalloc.start()
    reduction = codec.start(x, ReductionContext(seed, 0, 0))
    while reduction.phase is not None:
        results = reduction.phase.payloads
        tracemalloc.reset_peak()
        reduction.take(results, np.ones(len(results), np.uint64))
        made = x.nbytes if reduction.phase is None else reduction.phase.payloads.nbytes
        most = max(most, tracemalloc.get_traced_memory()[1] - results.nbytes - made)
    tracemalloc.stop()
    return most
