# SPDX-License-Identifier: Apache-2.0
"""UPDATE datagrams by the thousand: one template header, one structured array, no loop in Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum_wire._layout import HOPSUM_BYTES, HOPSUM_DTYPE, Drop, Kind
from hopsum_wire.errors import WireError
from hopsum_wire.header import Header
from hopsum_wire.payload import up_bytes

Allocate = Callable[[tuple[int, ...]], NDArray[np.uint8]]
"""Returns a contiguous array of a shape, with any content."""


def new_bytes(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return a new array of a shape, with any content."""
    return np.empty(shape, np.uint8)


@lru_cache(64)
def update_template(*, op: int, generation: int, worker: int) -> Header:
    """Return the header that all UPDATEs of one worker and op share, its slot, round and count 0.

    Raises:
        WireError: the op is unknown (BAD_OP).
    """
    return Header(kind=Kind.UPDATE, op=op, generation=generation, worker=worker, length=up_bytes(op))


def stamp_datagrams(
    template: Header,
    *,
    slots: ArrayLike,
    rounds: ArrayLike,
    counts: ArrayLike,
    payloads: NDArray[np.uint8],
    allocate: Allocate = new_bytes,
) -> NDArray[np.uint8]:
    """Return one datagram a row.

    Args:
        template: see `update_template`. Its `slot`, `round` and `count` do not matter.
        slots: [n], 0..2^16-1.  rounds: [n], 1..2^32-1.  counts: [n] or a scalar, elements in use.
        payloads: uint8[m, template.length], of the first m datagrams. The other payloads have any content.
        allocate: makes the array.

    Returns:
        uint8[n, 32 + template.length], new and contiguous: a socket sends `memoryview(row)`.

    Raises:
        WireError: a value does not fit its field (BAD_VALUE), or payloads of another shape (BAD_LENGTH).
    """
    if payloads.dtype != np.uint8 or payloads.ndim != 2 or payloads.shape[1] != template.length:
        found = f"{payloads.dtype}{list(payloads.shape)}"
        raise WireError(Drop.BAD_LENGTH, f"payloads must be uint8[n, {template.length}], not {found}")
    # Header and payload lie side by side in one row, so that a row is a datagram and needs no copy for the socket.
    rows = allocate((np.size(slots), HOPSUM_BYTES + template.length))
    # One packed header in all rows; then the three fields that differ are written as columns.
    rows[:, :HOPSUM_BYTES] = _packed(template)
    rows[: len(payloads), HOPSUM_BYTES:] = payloads
    headers = rows[:, :HOPSUM_BYTES].view(HOPSUM_DTYPE)[:, 0]
    for name, values in (("slot", slots), ("round", rounds), ("count", counts)):
        column, array = headers[name], np.asarray(values)
        column[:] = array
        # What comes back as it went in fits.
        if np.count_nonzero(column != array):
            limit = 1 << HOPSUM_DTYPE[name].itemsize * 8
            raise WireError(Drop.BAD_VALUE, f"{name}s from {array.min()} to {array.max()} do not fit below {limit}")
    return rows


@lru_cache(64)
def _packed(template: Header) -> NDArray[np.uint8]:
    return np.frombuffer(template.pack(), np.uint8)


def restamp_datagrams(datagrams: NDArray[np.uint8], *, generation: int, rounds: ArrayLike) -> NDArray[np.uint8]:
    """Return a copy of stamped datagrams for another generation. Slots, counts and payloads stay. Nothing is checked.

    Args:
        datagrams: as `stamp_datagrams` returns them. They are not changed.
        rounds: [n], 1..2^32-1.
    """
    # A copy: the old rows may still be in a send buffer of the operating system's.
    copies = datagrams.copy()
    headers = copies[:, :HOPSUM_BYTES].view(HOPSUM_DTYPE)[:, 0]
    headers["generation"], headers["round"] = generation, rounds
    return copies
