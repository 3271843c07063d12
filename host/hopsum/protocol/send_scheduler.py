# SPDX-License-Identifier: Apache-2.0
"""The scheduler of a worker's sends: it decides which stream positions enter the retransmission queue, and when.

Rules
    W1  Of each slot only the lowest position that is not held, whatever all-reduce it belongs to (N3).
    R2  All-reduces begin in the order of the stream, the next one when those before it are proved as far as the policy
        asks for (repair.py), without peers at once. Chunks without a payload yet, and all behind them, wait for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.repair import PeerRepair
from hopsum.protocol.retransmit_queue import RetransmitQueue
from hopsum.protocol.stream_state import StreamState


class SendScheduler:
    """The only place that opens positions of a worker for sending."""

    def __init__(self, state: StreamState, queue: RetransmitQueue, repair: PeerRepair | None) -> None:
        self._state, self._queue, self._repair = state, queue, repair

    def open_slot(self, slot: int) -> None:
        """Open the position that a slot may send now, if there is one."""
        position = self._state.next_open(slot)
        if position is not None:
            self._queue.open(position)

    def open_slots(self, slots: NDArray[np.int64], held: NDArray[np.int64] | None = None) -> None:
        """Open the positions that several slots, at least one, may send. `held` as for `StreamState.next_open_many`."""
        self._queue.open_many(self._state.next_open_many(slots, held))

    def release(self) -> None:
        """Open what has payloads of the next all-reduces, as far as those before them are proved."""
        state = self._state
        if state.decided is not None and state.decided.end <= state.delivered_to:
            state.decided = None
        for before, reduce in enumerate(state.active):
            begun, open_end = reduce.first < state.open_end, state.open_end
            if not begun and self._repair is not None and not self._repair.may_open(before):
                return
            if open_end < reduce.filled_end:
                state.open_end = reduce.filled_end
                at_hand = (open_end <= state.open_position) & (state.open_position < state.open_end)
                if at_hand.any():
                    self.open_slots(np.flatnonzero(at_hand))
            if reduce.filled_end < reduce.end:
                return
