# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench codec`: elements per second and error of every codec and backend, on one core, in one run.

Encoding includes the ranges, decoding the counting of contributors. One thread on one core, no network: the switch
is numpy. All ranks have the same N(0, 1) vector, which is what the expected error is for. In turn with the codecs and
on the same core: memcpy of the vector. Then two threads on all cores, compared with one, and codec lossless on a sparse
vector.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hopsum.codec import CodecError, ErrorFeedback, ReductionContext, SharedRanges, make_codec
from hopsum.codec.lossless import Lossless
from hopsum.codec.lossless.sketch_plan import GAMMA
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import LookupTableCodec
from hopsum_base.units import real, whole
from hopsum_evaluation.bench.lossless_rate import measure_reduction
from hopsum_evaluation.bench.timing import Rate, machine, measure, one_core, source_commit, versions
from hopsum_evaluation.command_options import figure_table
from hopsum_evaluation.expected_error import expected_normal_nmse
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_wire import MAX_WORKERS
from hopsum_wire.payload import SHAPES

ELEMENTS = 1 << 22
BLOCK = 1024
"""Vectors are whole blocks of the codecs."""
MIN_RUNS = 5
MEASURED = ("thc", "thc:bits=3", "thc:bits=2", "thc:result_bits=8", "thc:rounding=stochastic", "uhc", "fixed")
"""Codecs by their spelling."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench codec", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument(
        "--workers", type=whole(1, MAX_WORKERS), default=8, help="number of workers of the job (default %(default)s)"
    )
    parser.add_argument(
        "--runs", type=whole(MIN_RUNS), default=7, help=f"runs of each codec, at least {MIN_RUNS} (default %(default)s)"
    )
    parser.add_argument(
        "--scale",
        type=real(0, 64, above=True),
        default=1.0,
        help=f"factor of the {ELEMENTS} elements (default %(default)s)",
    )
    parser.add_argument("--seed", type=whole(0), default=1, help="seed of the vectors (default %(default)s)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command: measure, and print tables or JSON. Return 0."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    elements = round(ELEMENTS * options.scale / BLOCK) * BLOCK
    if elements < BLOCK:
        parser.error(f"--scale {options.scale:g}: at least {BLOCK} elements, not {elements}")
    backends = ["numpy", *(["numba"] if find_spec("numba") else [])]
    try:
        made = [(name, make_codec(name, workers=options.workers, backend=b)) for name in MEASURED for b in backends]
    except CodecError as error:
        parser.error(str(error))
    x = np.random.default_rng(options.seed).standard_normal(elements, dtype=np.float32)
    subjects = [Subject(name, codec, x, options.seed) for name, codec in made if isinstance(codec, RangeCodec)]
    report = run(subjects, options.runs, options.seed)
    report["lossless"] = measure_lossless(options.runs, options.scale, options.seed)
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def run(subjects: Sequence[Subject], runs: int, seed: int) -> dict[str, Any]:
    """Measure all subjects in turn on one core, then codecs on two threads. Return the object of --json.

    Its part about codec lossless is not in it.
    """
    x = subjects[0].x
    copy = np.empty_like(x)
    actions: dict[str, Callable[[], object]] = {"memcpy": lambda: np.copyto(copy, x)}
    for subject in subjects:
        actions |= {f"{subject.label} {name}": action for name, action in subject.actions().items()}
    workers = subjects[0].codec.workers
    with one_core() as core:
        rates = measure(actions, x.size, runs)
    return describe(rates, subjects, seed) | {
        "threads": measure_threads(x, workers, runs, seed),
        "runs": runs,
        "core": core,
    }


NMSE_ELEMENTS = 1 << 20
ACTIONS = ("encode", "decode", "encode_feedback", "residual_read", "residual_write", "contribution")


class Subject:
    """A codec to time, with one vector for all ranks, its payloads, and the results of a simulated switch."""

    def __init__(self, name: str, codec: RangeCodec, x: NDArray[np.float32], seed: int) -> None:
        self.name = name
        self.codec = codec
        self.x = x
        self.label = f"{name} {codec.backend}"
        self._context = ReductionContext(seed, 0, 0)
        own = codec.ranges(x)
        self._shared = SharedRanges(own.view(np.float32))
        self._payloads = codec.encode(x, own, self._shared, self._context)
        # In parts: the payloads of all ranks together would need much memory.
        parts = np.array_split(self._payloads, 64)
        sums = [simulate_switch(codec.op, [part] * codec.workers, codec.lookup) for part in parts]
        self._results = np.ascontiguousarray(np.concatenate([part for part, _ in sums]))
        self._contributors = np.concatenate([part for _, part in sums])
        self._feedback = ErrorFeedback(x.size)
        self._sum = x.copy()

    def actions(self) -> dict[str, Callable[[], object]]:
        """Return the functions to time, by the names of ACTIONS. A call does the work for the whole vector once."""
        codec, x, shared, context = self.codec, self.x, self._shared, self._context
        return {
            "encode": self._encode,
            "decode": lambda: codec.decode(self._results, self._contributors, shared, x.size, context),
            "contribution": lambda: codec.dequantize_own(self._payloads, shared, x.size, context),
            "residual_read": self._read,
            "residual_write": self._write,
            "encode_feedback": self._encode_feedback,
        }

    def least_bytes(self) -> dict[str, float]:
        """Return, by action, the bytes per element that any implementation must read and write once.

        float32 in and out are 4 each. `residual_read` takes vector and residual and leaves their sum.
        """
        shape = SHAPES[self.codec.op]
        up, down = shape.up_bytes / shape.elements, shape.down_bytes / shape.elements
        return {
            "encode": 4 + up,
            "decode": down + 4,
            "contribution": up + 4,
            "residual_read": 4 + 4 + 4,
            "residual_write": up + 4 + 4,
            "encode_feedback": 4 + 4 + up + 4,
        }

    def facts(self, seed: int) -> dict[str, Any]:
        """Measure the error on the first NMSE_ELEMENTS. Return the NMSE, the expected one and facts of the codec.

        Expected NMSE and facts of a lookup table are None for codecs without a table.
        """
        codec, sample = self.codec, self.x[:NMSE_ELEMENTS]
        means = simulate_allreduce(codec, [sample] * codec.workers, seed=seed, step=1)
        assert means is not None
        error = means[0].astype(np.float64) - sample
        table = codec.table if isinstance(codec, LookupTableCodec) else None
        expected = expected_normal_nmse(codec) if isinstance(codec, LookupTableCodec) else None
        return {
            "codec": self.name,
            "backend": codec.backend,
            "nmse": float(error @ error / (sample.astype(np.float64) @ sample)),
            "nmse_expected": expected,
            "granularity": None if table is None else table.granularity,
            "truncated": None if table is None else table.truncated,
        }

    def _encode(self) -> None:
        self.codec.encode(self.x, self.codec.ranges(self.x), self._shared, self._context)

    def _read(self) -> None:
        """Add the residual to the vector, as error feedback does before the ranges are computed."""
        self._feedback.compensate(self.x)
        self._feedback.rollback()

    def _write(self) -> None:
        """Subtract the contribution from the vector, which leaves the residual: error feedback after the results.

        The vector is a copy here, from which the same contribution is subtracted again and again.
        """
        self.codec.subtract_dequantized(self._sum, self._payloads, self._shared, self._context)

    def _encode_feedback(self) -> None:
        """Do all work of a worker for a gradient but decoding the mean."""
        codec, context = self.codec, self._context
        whole = self._feedback.compensate(self.x)
        own = codec.ranges(whole)
        shared = SharedRanges(own.view(np.float32))
        payloads = codec.encode(whole, own, shared, context)
        codec.subtract_dequantized(whole, payloads, shared, context)
        self._feedback.commit(None)


COPY_BYTES = 8
"""The bytes of memcpy for each float32: read and written."""
_SHOWN = ("encode", "decode", "residual_read", "residual_write", "encode_feedback")


def describe(rates: Mapping[str, Rate], subjects: Sequence[Subject], seed: int) -> dict[str, Any]:
    """Measure the errors, and return the object of --json without runs, core and threads: a row a codec, and memcpy."""
    return {
        "codecs": [_row(subject, rates, seed) for subject in subjects],
        **rates["memcpy"].as_json("memcpy_elements_per_s"),
        "memcpy_bytes_per_s": round(rates["memcpy"].median * COPY_BYTES),
        "elements": subjects[0].x.size,
        "workers": subjects[0].codec.workers,
        "seed": seed,
        "machine": machine(),
        "versions": versions("hopsum", "numpy", "numba", "llvmlite", "torch"),
        "commit": source_commit(),
    }


def _row(subject: Subject, rates: Mapping[str, Rate], seed: int) -> dict[str, Any]:
    """Make the row of a codec: rates of its actions, and their bytes compared with memcpy's."""
    row, least = subject.facts(seed), subject.least_bytes()
    copied = rates["memcpy"].median * COPY_BYTES
    for action in ACTIONS:
        rate = rates[f"{subject.label} {action}"]
        row |= rate.as_json(f"{action}_elements_per_s")
        row[f"{action}_bytes_per_element"] = least[action]
        row[f"{action}_bytes_per_s"] = round(rate.median * least[action])
        row[f"{action}_of_memcpy"] = round(rate.median * least[action] / copied, 4)
    return row


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report of --json as tables."""
    console.print(_rates(report))
    console.print(_bounds(report))
    for row in report["threads"]:
        console.print(
            f"{row['codec']} on {row['threads']} threads: encode {_millions(row, 'encode_elements_per_s')}, "
            f"x {row['encode_of_one_thread']:.2f} of one; decode {_millions(row, 'decode_elements_per_s')}, "
            f"x {row['decode_of_one_thread']:.2f}",
            highlight=False,
        )
    console.print(_lossless(report["lossless"]), highlight=False)
    where = report["machine"]
    console.print(
        f"{where['processor']}, core {report['core']} of {where['cores']}, load {where['load_1min']}; one thread"
    )


def _lossless(row: dict[str, Any]) -> str:
    return (
        f"lossless on {row['threads']} threads: {row['elements']:,} elements, {row['density']:.0%} not zero; encode "
        f"{_millions(row, 'encode_elements_per_s')}, encode to mean {_millions(row, 'all_elements_per_s')}; "
        f"bytes up {row['bytes_of_dense']:.4f} of float32's, gamma d + 1/32 = {row['bytes_formula']:.4f}"
    )


def _rates(report: dict[str, Any]) -> Table:
    title = f"{report['workers']} workers, {report['elements']:,} elements; M elements/s, median (min-max of {{}})"
    table = figure_table(title.format(report["runs"]), "encode", "decode", "NMSE", "theory")
    for row in report["codecs"]:
        expected = "" if row["nmse_expected"] is None else f"{row['nmse_expected']:.3g}"
        # The backend first: a narrow window cuts the end of a long name.
        table.add_row(f"{row['backend']} {row['codec']}", *_coded(row), f"{row['nmse']:.3g}", expected)
    table.add_section()
    table.add_row("memcpy", _millions(report, "memcpy_elements_per_s"))
    return table


def _bounds(report: dict[str, Any]) -> Table:
    """Tabulate the bytes that each action has to move, at which rate, compared with memcpy."""
    title = f"bytes that must be moved, compared with memcpy's {report['memcpy_bytes_per_s'] / 1e9:.1f} GB/s"
    table = figure_table(title, "M/s", "B each", "GB/s", "memcpy")
    for row in report["codecs"]:
        for action in _SHOWN:
            table.add_row(
                f"{row['backend']} {row['codec']}: {action.replace('_', ' ')}",
                f"{row[f'{action}_elements_per_s'] / 1e6:,.0f}",
                f"{row[f'{action}_bytes_per_element']:g}",
                f"{row[f'{action}_bytes_per_s'] / 1e9:.2f}",
                f"{row[f'{action}_of_memcpy']:.0%}",
            )
        table.add_section()
    return table


def _coded(row: dict[str, Any]) -> tuple[str, str]:
    return _millions(row, "encode_elements_per_s"), _millions(row, "decode_elements_per_s")


def _millions(row: dict[str, Any], key: str) -> str:
    return f"{row[key] / 1e6:,.0f} ({row[f'{key}_min'] / 1e6:,.0f}-{row[f'{key}_max'] / 1e6:,.0f})"


# The cores of a virtual machine differ in speed for seconds on end (by 1.5 times where this was written). So one thread
# runs on each of two cores, two threads on both, in turn, and the rate of one thread is the mean of both cores. Each
# timed run follows one in the same place that is not timed: to move a thread costs time too.
THREADS = 2
_ACTIONS = ("encode", "decode", "encode_feedback")
_ROUNDS = 5
"""The rounds for each run that was asked for."""


def measure_threads(x: NDArray[np.float32], workers: int, runs: int, seed: int) -> list[dict[str, Any]]:
    """Measure each codec on two threads and on one, in turn. Return a row for each codec.

    No rows without a second core, or without numba: kernels of numpy work on one thread.
    """
    if not find_spec("numba") or len(os.sched_getaffinity(0)) < THREADS:
        return []
    found = []
    for name in MEASURED:
        codecs = [make_codec(name, workers=workers, backend="numba", threads=threads) for threads in (1, THREADS)]
        subjects = [Subject(name, codec, x, seed) for codec in codecs if isinstance(codec, RangeCodec)]
        if subjects:
            rounds = _ROUNDS * runs
            found.append({"codec": name, "threads": THREADS, "runs": rounds, **_compare(subjects, rounds)})
    return found


def _compare(subjects: list[Subject], rounds: int) -> dict[str, Any]:
    """Measure a codec on one thread and on two."""
    row: dict[str, Any] = {}
    for name in _ACTIONS:
        one, two = (subject.actions()[name] for subject in subjects)
        *alone, both = _measure(one, two, subjects[0].x.size, rounds)
        row |= both.as_json(f"{name}_elements_per_s")
        row[f"{name}_one_thread_by_core"] = [round(rate.median) for rate in alone]
        row[f"{name}_of_one_thread"] = round(both.median / fmean(rate.median for rate in alone), 3)
        row[f"{name}_best_of_one_thread"] = round(both.high / fmean(rate.high for rate in alone), 3)
    return row


def _measure(one: Callable[[], object], two: Callable[[], object], units: int, rounds: int) -> list[Rate]:
    """Measure one thread on each of two cores, and two threads on both. Return three rates."""
    allowed = os.sched_getaffinity(0)
    cores = sorted(allowed)[-THREADS:]
    places = [({core}, one) for core in cores] + [(set(cores), two)]
    seconds: list[list[float]] = [[] for _ in places]
    try:
        for _ in range(rounds):
            for took, (where, action) in zip(seconds, places, strict=True):
                # Of this thread alone: helper threads keep both cores.
                os.sched_setaffinity(0, where)
                action()
                start = time.perf_counter()
                action()
                took.append(time.perf_counter() - start)
    finally:
        os.sched_setaffinity(0, allowed)
    return [Rate(units / median(took), units / max(took), units / min(took)) for took in seconds]


SPARSE_ELEMENTS = 1 << 24
LEAST_ELEMENTS = 1 << 12
SPARSE_DENSITY = 0.05
SPARSE_THREADS = 2
_BITS = 32


def measure_lossless(runs: int, scale: float, seed: int) -> dict[str, Any]:
    """Measure codec lossless on a sparse vector, and compare its bytes with gamma d + 1/32 of float32.

    That is a sketch of gamma cells per non-zero element, d their share, and a bit of index per element.
    """
    elements = max(LEAST_ELEMENTS, round(SPARSE_ELEMENTS * scale))
    rng = np.random.default_rng([seed, elements])
    x = np.zeros(elements, np.float32)
    used = rng.choice(elements, round(SPARSE_DENSITY * elements), replace=False)
    x[used] = rng.standard_normal(used.size, dtype=np.float32)
    threads = min(SPARSE_THREADS, len(os.sched_getaffinity(0)))
    codec = make_codec("lossless", workers=1, threads=threads)
    assert isinstance(codec, Lossless)
    row = measure_reduction(codec, x, runs, seed)
    formula = GAMMA * used.size / elements + 1 / _BITS
    return {
        "gamma": GAMMA,
        "threads": threads,
        **row,
        "elements": elements,
        "density": used.size / elements,
        "bytes_formula": round(formula, 5),
        "bytes_of_formula": round(row["bytes_of_dense"] / formula, 4),
    }
