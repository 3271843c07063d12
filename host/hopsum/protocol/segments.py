# SPDX-License-Identifier: Apache-2.0
"""UPDATEs as GSO segments: datagrams of equal size, one a row, which a link sends in one call.

positions                                     rows
consecutive, of one all-reduce                a part of its datagrams as they were stamped, no copy
of one all-reduce, with gaps (after losses)   a copy
with FLUSH                                    a copy: the flag is not among the bytes that W2 freezes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.retransmit_queue import Transmissions
from hopsum.protocol.worker_state import AllReduce
from hopsum_wire import Flag
from hopsum_wire._layout import HOPSUM_FIELDS

# FLUSH is the only bit of an UPDATE that changes between transmissions (W2, S8).
_FLAGS_AT: Final = next(field.offset_bits // 8 for field in HOPSUM_FIELDS if field.name == "flags")


def segments_of(transmissions: Transmissions, active: Sequence[AllReduce]) -> Iterator[NDArray[np.uint8]]:
    """Yield read-only uint8[n, bytes], one datagram a row, in the order of `transmissions`.

    Args:
        transmissions: at least one, positions of all-reduces in `active`.
        active: all-reduces in progress, in the order of the stream.
    """
    positions, flush = transmissions
    first, last = int(positions.min()), int(positions.max())
    reduce = next(each for each in active if first < each.end)
    if last < reduce.end and not flush.any():
        yield _rows(reduce.datagrams, positions - reduce.first, flush=False)
        return
    owner = np.searchsorted([reduce.first for reduce in active], positions, side="right") - 1
    cuts = np.flatnonzero((owner[1:] != owner[:-1]) | (flush[1:] != flush[:-1])) + 1
    for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(positions)], strict=True):
        reduce = active[owner[start]]
        yield _rows(reduce.datagrams, positions[start:stop] - reduce.first, flush=bool(flush[start]))


def _rows(datagrams: NDArray[np.uint8], index: NDArray[np.int64], *, flush: bool) -> NDArray[np.uint8]:
    if _is_run(index) and not flush:
        return datagrams[index[0] : index[-1] + 1]
    rows = datagrams[index]
    if flush:
        rows[:, _FLAGS_AT] |= np.uint8(Flag.FLUSH)
    rows.flags.writeable = False
    return rows


def _is_run(positions: NDArray[np.int64]) -> bool:
    """Say whether positions, at least one, are consecutive."""
    return bool(positions[-1] - positions[0] == len(positions) - 1 and (positions[1:] - positions[:-1] == 1).all())
