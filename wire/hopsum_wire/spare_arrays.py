# SPDX-License-Identifier: Apache-2.0
"""Arrays of megabytes in the memory of earlier ones that nobody refers to any more.

malloc gives memory of more than 32 MB back to the kernel, which fills each page with zeros when it is used again. A
training needs arrays of the same sizes in every step.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

LEAST_BYTES: Final = 1 << 20
"""The smallest array that is kept: malloc keeps smaller ones for less."""
KEPT_REQUESTS: Final = 256
"""A spare array that none of so many requests took is freed: sizes have changed."""

_lock: Final = threading.Lock()
_returned: Final[deque[NDArray[np.uint8]]] = deque()
"""Memory of arrays that are gone, also of one that goes while `_lock` is held: append is atomic."""
_spares: Final[list[tuple[int, NDArray[np.uint8]]]] = []
"""The number of the request at which the memory was back, and the memory, in this order."""
_requests = 0


def spare_array(shape: tuple[int, ...], dtype: DTypeLike = np.uint8) -> NDArray[Any]:
    """Return a contiguous array with any content. Its memory serves another one once no view of it is left."""
    size = prod(shape) * np.dtype(dtype).itemsize
    if size < LEAST_BYTES:
        return np.empty(shape, dtype)
    memory = _take(size)
    # Views refer to this array and not to the memory, since a memoryview lies between: it goes with the last of them.
    owner = np.frombuffer(memory.data, np.uint8)
    weakref.finalize(owner, _returned.append, memory).atexit = False
    return owner[:size].view(dtype).reshape(shape)


def free_spare_arrays() -> None:
    """Free all memory that no array uses."""
    with _lock:
        _returned.clear()
        _spares.clear()


def _take(size: int) -> NDArray[np.uint8]:
    global _requests
    with _lock:
        _requests += 1
        while _returned:
            _spares.append((_requests, _returned.popleft()))
        while _spares and _spares[0][0] + KEPT_REQUESTS < _requests:
            del _spares[0]
        # Buckets of a model differ a little: half of an array may lie idle, or each size would have arrays of its own.
        fitting = [place for place, (_, each) in enumerate(_spares) if size <= each.size <= 2 * size]
        if fitting:
            return _spares.pop(min(fitting, key=lambda place: _spares[place][1].size))[1]
    return np.empty(size, np.uint8)
