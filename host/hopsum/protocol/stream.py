# SPDX-License-Identifier: Apache-2.0
"""Positions in a job's stream of chunks, and their slots and rounds on the wire (N1 to N4 of docs/protocol.md).

slot = p mod S,  round = (p - base) div S + 1,  version = round & 1, independent of the all-reduce of position p. Each
generation has a base, a multiple of S, and 0 in the first one: rounds begin again at the base.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.errors import GenerationEndedError
from hopsum_wire import MAX_SLOTS, Op
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES
from hopsum_wire.payload import SHAPES

NEW_GENERATION: Final = "Connect all ranks again; the job of a membership file has to be made again before that"
"""The remedy in messages of failures that only a new generation repairs."""
MAX_ROUND: Final = (1 << 32) - 2
"""The last round of a slot that a generation may use."""
SLOTS_LEAST: Final = 256
"""The least number of slots of all shards together: several GSO batches of datagrams."""
# More slots than a slow link needs would fill its queue for longer than a timeout, and cause retransmissions. A shard's
# codes are made 32 at a time: one batch is in flight while the next one is made.
SLOTS_OF_SHARD_LEAST: Final = 64
"""Slots of each shard at least."""


def slots_for(bits_per_s: float, round_trip_s: float, shards: int = 1) -> int:
    """Return the number of slots of each shard that keeps a worker's link busy for a round trip.

    A slot holds one packet of 4-bit codes in flight, so the number is the bandwidth-delay product over the bits of a
    packet, divided among the shards and rounded up. It is at least SLOTS_OF_SHARD_LEAST and SLOTS_LEAST // shards, and
    at most MAX_SLOTS.
    """
    bits = 8 * (FRAME_OVERHEAD_BYTES + SHAPES[Op.LOOKUP_ADD8].up_bytes)
    least = max(SLOTS_OF_SHARD_LEAST, SLOTS_LEAST // shards)
    return min(MAX_SLOTS, max(least, ceil(bits_per_s * round_trip_s / (bits * shards))))


class SlotRound(NamedTuple):
    """The slot and round of a stream position, as in packets."""

    slot: int
    round: int

    def __str__(self) -> str:
        return f"slot {self.slot}, round {self.round}"


class Stream:
    """The numbering of one generation after the other.

    `slots` is the job's S, and `base` the position at which the generation's round 1 begins.

    Raises:
        ValueError: `slots` is not in 1..2048, or `base` no multiple of it.
    """

    def __init__(self, slots: int, base: int = 0) -> None:
        if not 1 <= slots <= MAX_SLOTS:
            raise ValueError(f"a job has 1 to {MAX_SLOTS} slots, not {slots}")
        self.slots = slots
        self.capacity = slots * MAX_ROUND
        """The number of positions of the generation (N4)."""
        self.renumber(base)
        self.end = base
        """The first position without a submitted chunk."""

    def renumber(self, base: int) -> None:
        """Let rounds begin at a position, in a new generation. Raises ValueError if `base` is no multiple of S."""
        if base < 0 or base % self.slots:
            raise ValueError(f"rounds begin at a multiple of the {self.slots} slots, not at position {base}")
        self.base = base

    def place(self, position: int) -> SlotRound:
        """Return the slot and round of a position (N2)."""
        return SlotRound(position % self.slots, (position - self.base) // self.slots + 1)

    def places(self, first: int, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the slots and rounds, int64[count] each, of consecutive positions."""
        # The base is a multiple of the slots, so it does not change remainders.
        rounds, slots = np.divmod(np.arange(first - self.base, first - self.base + count, dtype=np.int64), self.slots)
        return slots, rounds + 1

    def position(self, slot: int, round: int) -> int:
        """Return the position of a slot and round.

        Raises:
            ValueError: this generation has no such slot or round.
        """
        if not (0 <= slot < self.slots and 1 <= round <= MAX_ROUND):
            raise ValueError(
                f"slot {slot}, round {round}: the generation has slots 0..{self.slots - 1}, rounds 1..{MAX_ROUND}"
            )
        return self.base + (round - 1) * self.slots + slot

    def next_places(self, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the slots and rounds of the next `count` free positions, as `places`. Does not take them.

        Raises:
            GenerationEndedError: the rounds do not suffice (N4): the job needs a new generation.
        """
        if self.end + count > self.base + self.capacity:
            raise GenerationEndedError(
                f"{count} chunks do not fit: the generation has used {self.end - self.base} of {self.capacity} "
                f"positions ({self.slots} slots, rounds up to {MAX_ROUND}). {NEW_GENERATION}"
            )
        return self.places(self.end, count)
