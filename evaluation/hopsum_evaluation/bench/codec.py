# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench codec`: elements per second and error of every codec and backend, on one core, in one run.

Encoding includes the ranges, decoding the counting of contributors. One thread on one core, no network: the switch
is numpy. All ranks have the same N(0, 1) vector, which is what the expected error is for. Beside them, in turn with
them and on the same core: memcpy of the vector, and the published worker in plain torch operations. Then two
threads on all cores, beside one, and codec lossless on a sparse vector.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from rich.console import Console

from hopsum.codec import CODECS, CodecError, make_codec
from hopsum.codec.range_codec import RangeCodec
from hopsum_evaluation.bench.codec_lossless import measure_lossless
from hopsum_evaluation.bench.codec_report import describe, show
from hopsum_evaluation.bench.codec_subjects import Subject
from hopsum_evaluation.bench.codec_threads import measure_threads
from hopsum_evaluation.bench.placement import one_core
from hopsum_evaluation.bench.published import PublishedRunError, published_worker
from hopsum_evaluation.bench.timing import measure

ELEMENTS = 1 << 22
BLOCK = 1024
"""The published worker takes whole blocks."""
MIN_RUNS = 5


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench codec", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument("--workers", type=int, default=8, help="number of workers of the job (default %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=7, help=f"runs of each codec, at least {MIN_RUNS} (default %(default)s)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help=f"factor of the {ELEMENTS} elements (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the vectors (default %(default)s)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 0."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    elements = round(ELEMENTS * options.scale / BLOCK) * BLOCK
    if options.runs < MIN_RUNS or elements < BLOCK:
        parser.error(f"at least {MIN_RUNS} runs and {BLOCK} elements, not {options.runs} and {elements}")
    backends = ["numpy", *(["numba"] if find_spec("numba") else [])]
    try:
        made = [make_codec(name, workers=options.workers, backend=b) for name in CODECS for b in backends]
    except CodecError as error:
        parser.error(str(error))
    x = np.random.default_rng(options.seed).standard_normal(elements, dtype=np.float32)
    subjects = [Subject(codec, x, options.seed) for codec in made if isinstance(codec, RangeCodec)]
    try:
        report = run(subjects, options.runs, options.seed)
        report["lossless"] = measure_lossless(options.runs, options.scale, options.seed)
    except PublishedRunError as error:
        print(f"hopsum bench codec: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def run(subjects: Sequence[Subject], runs: int, seed: int) -> dict[str, Any]:
    """Measure all subjects in turn on one core, and return what --json prints."""
    x = subjects[0].x
    copy = np.empty_like(x)
    actions: dict[str, Callable[[], object]] = {"memcpy": lambda: np.copyto(copy, x)}
    for subject in subjects:
        actions |= {f"{subject.label} {name}": action for name, action in subject.actions().items()}
    workers = subjects[0].codec.workers
    with one_core() as core, published_worker(x.size, workers, seed) as published:
        actions |= {f"published {name}": action for name, action in published.items()}
        rates = measure(actions, x.size, runs)
    return describe(rates, subjects, seed) | {
        "threads": measure_threads(x, workers, runs, seed),
        "runs": runs,
        "core": core,
    }
