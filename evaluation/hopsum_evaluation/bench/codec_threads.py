# SPDX-License-Identifier: Apache-2.0
"""The gain of two threads of a codec over one, on cores of their own. Codecs on numba only: numpy has no threads.

Cores of a virtual machine differ in speed for seconds on end (by 1.5 times where this was written), and change
it: so one thread runs on each of two cores, two threads on both, by turns, and the rate of one is the mean of both
cores. There are more rounds than elsewhere. Each run follows one in the same place that is not timed: to move a
thread costs time too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import CODECS, make_codec
from hopsum.codec.range_codec import RangeCodec
from hopsum_evaluation.bench.codec_subjects import Subject
from hopsum_evaluation.bench.timing import Rate

THREADS = 2
_ACTIONS = ("encode", "decode", "encode_feedback")
_ROUNDS = 5
"""The rounds for each run that was asked for."""


def measure_threads(x: NDArray[np.float32], workers: int, runs: int, seed: int) -> list[dict[str, Any]]:
    """Return rates of each codec on two threads, and their ratio to those on one, taken in turn.

    Nothing without numba or a second core.
    """
    if not find_spec("numba") or len(os.sched_getaffinity(0)) < THREADS:
        return []
    found = []
    for name in CODECS:
        codecs = [make_codec(name, workers=workers, backend="numba", threads=threads) for threads in (1, THREADS)]
        subjects = [Subject(codec, x, seed) for codec in codecs if isinstance(codec, RangeCodec)]
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
    """Return the rates of one thread on each of two cores, and of two threads."""
    allowed = os.sched_getaffinity(0)
    cores = sorted(allowed)[-THREADS:]
    places = [({core}, one) for core in cores] + [(set(cores), two)]
    seconds: list[list[float]] = [[] for _ in places]
    try:
        for _ in range(rounds):
            for took, (where, action) in zip(seconds, places, strict=True):
                os.sched_setaffinity(0, where)  # of this thread: helpers keep theirs
                action()
                start = time.perf_counter()
                action()
                took.append(time.perf_counter() - start)
    finally:
        os.sched_setaffinity(0, allowed)
    return [Rate(units / median(took), units / max(took), units / min(took)) for took in seconds]
