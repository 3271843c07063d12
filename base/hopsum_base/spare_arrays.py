# SPDX-License-Identifier: Apache-2.0
"""Arrays of megabytes in the memory of earlier ones that nobody refers to any more.

malloc gives memory of more than 32 MB back to the kernel, and smaller arrays at the end of its heap, and the kernel
fills each page with zeros when it is used again. A training needs arrays of the same sizes in every step.
"""

from __future__ import annotations

import weakref
from collections import deque
from itertools import count
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

LEAST_BYTES: Final = 1 << 20
"""The smallest array that is kept: malloc keeps smaller ones for less."""
KEPT_EVENTS: Final = 512
"""A spare array is freed by the first request behind so many requests and returns: sizes have changed."""

_events: Final = count()


class SpareArrays(deque[tuple[int, NDArray[np.uint8]]]):
    """Memory that no array uses, and the number of the event at which it was back. It goes with the last holder."""

    # Threads share it without a lock, which an array that goes while the lock is held would wait for: append and
    # popleft are atomic.


_SHARED: Final[weakref.WeakValueDictionary[str, SpareArrays]] = weakref.WeakValueDictionary()


def keep_spare_arrays() -> SpareArrays:
    """Return the process's one store of spare arrays. `spare_array` uses it as long as somebody holds this object."""
    return _SHARED.setdefault("", SpareArrays())


def spare_array(shape: tuple[int, ...], dtype: DTypeLike = np.uint8) -> NDArray[Any]:
    """Return a contiguous array with any content, in the memory of an earlier one where some is spare.

    Once no view of it is left, its memory is spare. Small arrays, and all arrays while nobody
    holds the store (`keep_spare_arrays`), are numpy's own.
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    spares = _SHARED.get("")
    if size < LEAST_BYTES or spares is None:
        return np.empty(shape, dtype)
    memory = _allocate(spares, size)
    # Views refer to this array and not to the memory, since a memoryview lies between: it dies with the last view.
    owner = np.frombuffer(memory.data, np.uint8)
    weakref.finalize(owner, _release, weakref.ref(spares), memory).atexit = False
    return owner[:size].view(dtype).reshape(shape)


def _release(shared: weakref.ref[SpareArrays], memory: NDArray[np.uint8]) -> None:
    if (spares := shared()) is not None:
        spares.append((next(_events), memory))


def _allocate(spares: SpareArrays, size: int) -> NDArray[np.uint8]:
    event, found = next(_events), list[tuple[int, NDArray[np.uint8]]]()
    while spares:
        try:
            found.append(spares.popleft())
        except IndexError:  # another thread has the last one
            break
    # Buckets of a model differ a little: a third of an array may lie idle, or each size would have arrays of its own.
    best = min((each.size for _, each in found if size <= each.size <= size * 3 // 2), default=0)
    taken: NDArray[np.uint8] | None = None
    # A new array replaces as many bytes that were spare for longest: all memory is what was in use at one time.
    replaced = 0 if best else size
    for at, memory in found:
        if taken is None and memory.size == best:
            taken = memory
        elif replaced > 0 or event - at >= KEPT_EVENTS:
            replaced -= memory.size
        else:
            spares.append((at, memory))
    return np.empty(size, np.uint8) if taken is None else taken
