# SPDX-License-Identifier: Apache-2.0
"""What two threads of a codec gain over one, on cores of their own; numba only, numpy has no threads to speak of.

One and two threads by turns, action by action: a virtual machine's cores change their speed from one tenth of a
second to the next, more than what is asked here. So there are more rounds than elsewhere, too.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.cli.bench.codec_subjects import Subject
from hopsum.cli.bench.timing import measure
from hopsum.codec import CODECS, make_codec
from hopsum.codec.range_codec import RangeCodec

THREADS = 2
_ACTIONS = ("encode", "decode", "encode_feedback")
_ROUNDS = 5
"""For each run that was asked for."""


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


def _compare(subjects: list[Subject], runs: int) -> dict[str, Any]:
    """Measure a codec on one thread and on two."""
    actions = {
        f"{number} {name}": subject.actions()[name] for name in _ACTIONS for number, subject in enumerate(subjects)
    }
    rates = measure(actions, subjects[0].x.size, runs)
    row: dict[str, Any] = {}
    for name in _ACTIONS:
        one, two = rates[f"0 {name}"], rates[f"1 {name}"]
        row |= two.as_json(f"{name}_elements_per_s")
        row[f"{name}_of_one_thread"] = round(two.median / one.median, 3)
        row[f"{name}_best_of_one_thread"] = round(two.high / one.high, 3)
    return row
