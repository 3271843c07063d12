# SPDX-License-Identifier: Apache-2.0
"""The cost and gain of gzip on gradients recorded from the demo's model, measured here: the counter-example."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import numpy as np

from hopsum.plan import Repeated
from hopsum_evaluation.compare.vectors import GRADIENTS

LEVEL: Final = 6
"""gzip's own default, as the publication names none."""
_RUNS: Final = 3

_T = TypeVar("_T")


class GzipCost(NamedTuple):
    """Of the recorded gradients, float32, one thread: processor time, the shortest of a few runs."""

    size_bytes: int
    compressed_bytes: int
    compress_s: float
    decompress_s: float

    def of(self, size_bytes: float) -> Repeated:
        """Return ratio and seconds for so many bytes, in proportion."""
        scale = size_bytes / self.size_bytes
        return Repeated(self.compressed_bytes / self.size_bytes, scale * self.compress_s, scale * self.decompress_s)


def measure_gzip() -> GzipCost:
    """Compress and decompress all recorded gradients, early and late ones, in about half a second."""
    with np.load(GRADIENTS) as file:
        data = b"".join(file[name].tobytes() for name in ("early", "late"))
    compress_s, packed = _shortest(lambda: gzip.compress(data, LEVEL))
    decompress_s, unpacked = _shortest(lambda: gzip.decompress(packed))
    assert unpacked == data
    return GzipCost(len(data), len(packed), compress_s, decompress_s)


def _shortest(action: Callable[[], _T]) -> tuple[float, _T]:
    seconds = []
    for _ in range(_RUNS):
        start = time.process_time()
        result = action()
        seconds.append(time.process_time() - start)
    return min(seconds), result
