# SPDX-License-Identifier: Apache-2.0
"""The state of a worker's stream: the all-reduces it has submitted, and the results it holds, by position.

position        all-reduce   result                      held
< stream.end    delivered    the caller's, or a store's  yes
< stream.end    void         nobody's (generation_change.py)  as if it were: nobody waits for it
< stream.end    in progress  in its `AllReduce`          as that says
>= stream.end   to come      early, if it came already   if it came
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.result_store import StoredResult
from hopsum.protocol.stream import DecidedRanges, Stream
from hopsum.protocol.worker_state import AllReduce
from hopsum_wire import Header


class StreamState:
    """The stream of one worker: which positions are delivered, in progress or early."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.active: list[AllReduce] = []
        """All-reduces in progress, in the order of the stream."""
        self.early: dict[int, tuple[Header, bytes]] = {}
        """Results of all-reduces that are still to come."""
        self.decided: DecidedRanges | None = None
        """Results that a generation change has decided, as long as some may be lacking here: they are not sent (E3)."""
        self.enter(None)

    def enter(self, decided: DecidedRanges | None) -> None:
        """Begin a generation: open all-reduces in progress anew, and forget what came early in the one before."""
        self.early.clear()
        self.decided = decided
        first, slots = self.delivered_to, self.stream.slots
        self.open_end = first
        """Positions before it may be opened. The all-reduces behind it are held back (R2)."""
        # The first position at or behind `first` that is congruent to the slot.
        self.open_position: NDArray[np.int64] = first + (np.arange(slots, dtype=np.int64) - first) % slots
        """Per slot, the lowest position that is not held: the only one of its slot that may be sent (W1)."""

    @property
    def delivered_to(self) -> int:
        """Return the position before which everything is delivered."""
        return self.active[0].first if self.active else self.stream.end

    def find(self, position: int) -> AllReduce | None:
        """Return the all-reduce in progress that a position belongs to, or None."""
        for reduce in self.active:
            if reduce.first <= position < reduce.end:
                return reduce
        return None

    def is_held(self, position: int, reduce: AllReduce | None) -> bool:
        """Say whether a result is here. `reduce` is its all-reduce, None if delivered or not submitted."""
        if reduce is not None:
            return bool(reduce.held[position - reduce.first])
        return position < self.stream.end or position in self.early

    def next_open(self, slot: int) -> int | None:
        """Move a slot to its lowest position that is not held. Return it if it may be opened."""
        position = int(self.open_position[slot])
        while self.is_held(position, self.find(position)):
            position += self.stream.slots
        self.open_position[slot] = position
        # E3: a decided result is fetched from a peer and never sent to the switch.
        if self.decided is not None and self.decided.covers(np.array([position]))[0]:
            return None
        return position if position < self.open_end else None

    def held_back(self) -> AllReduce | None:
        """Return the first all-reduce that may not begin yet though those before it have all payloads, or None."""
        for reduce in self.active:
            if reduce.first >= self.open_end:
                # Without a payload nothing of it could be sent.
                return reduce if reduce.ready else None
            if reduce.filled_end < reduce.end:
                return None
        return None

    def lacking(self, position: int, held: int, most: int) -> list[int]:
        """Return an awaited position and those of its slot that are lacking before the round `held`: `most` in all."""
        last = min(self.stream.end, self.stream.base + (held - 1) * self.stream.slots)
        later = range(position + self.stream.slots, last, self.stream.slots)[: most - 1]
        return [position, *(p for p in later if not self.is_held(p, self.find(p)))]

    def in_progress(self, position: int) -> StoredResult | None:
        """Return a result that is held of an all-reduce not yet delivered, or None."""
        reduce, early = self.find(position), self.early.get(position)
        if reduce is not None and reduce.held[position - reduce.first]:
            index = position - reduce.first
            return StoredResult(reduce.op, int(reduce.contributors[index]), reduce.results[index].tobytes())
        return None if early is None else StoredResult(early[0].op, early[0].contributors, early[1])
