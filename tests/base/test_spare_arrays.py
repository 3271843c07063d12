# SPDX-License-Identifier: Apache-2.0
"""Spare arrays: memory serves again once no view is left, and not before."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hopsum_base.spare_arrays import KEPT_EVENTS, LEAST_BYTES, keep_spare_arrays, spare_array

SHAPE = (4, LEAST_BYTES)


def test_memory_serves_again_when_the_last_view_is_gone() -> None:
    spares = keep_spare_arrays()
    spares.clear()
    first = spare_array(SHAPE)
    at, view = first.ctypes.data, first[1:].view(np.float32)[::2]
    del first
    assert spare_array(SHAPE).ctypes.data != at, "a view is left"
    spares.clear()
    del view
    less = spare_array((3, LEAST_BYTES // 4), np.float32)
    assert (less.ctypes.data, less.shape, less.dtype) == (at, (3, LEAST_BYTES // 4), np.float32)


def test_all_memory_is_what_was_in_use_and_what_nobody_takes_is_freed() -> None:
    spares = keep_spare_arrays()
    spares.clear()
    tracemalloc.start()
    try:
        for size in range(1, 65):
            spare_array((size, LEAST_BYTES))
        assert 64 <= tracemalloc.get_traced_memory()[0] // LEAST_BYTES < 96
        for _ in range(KEPT_EVENTS):
            spare_array((1, LEAST_BYTES))
        assert tracemalloc.get_traced_memory()[0] < 2 * LEAST_BYTES
        assert spares
    finally:
        tracemalloc.stop()


def test_threads_never_share_memory() -> None:
    spares = keep_spare_arrays()

    def work(number: int) -> bool:
        for _ in range(200):
            held = spare_array((LEAST_BYTES // 8,), np.int64)
            held[::512] = number
            if (held[::512] != number).any():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert spares
