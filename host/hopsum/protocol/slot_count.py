# SPDX-License-Identifier: Apache-2.0
"""The number of slots that a job needs: the slots rule."""

from __future__ import annotations

from math import ceil
from typing import Final

from hopsum_wire import MAX_SLOTS, Op
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES
from hopsum_wire.payload import SHAPES

SLOTS_LEAST: Final = 256
"""Slots that `slots_for` returns at least: several trains of datagrams, whatever the link."""


def slots_for(bits_per_s: float, round_trip_s: float, shards: int = 1) -> int:
    """Return the slots with which a worker's link stays busy for a round trip, from SLOTS_LEAST to MAX_SLOTS.

    A slot is one packet of 4-bit codes on its way: the rule is the bandwidth-delay product over a packet's bits. Of a
    job over several shards these are the slots at each.
    """
    bits = 8 * (FRAME_OVERHEAD_BYTES + SHAPES[Op.LOOKUP_ADD8].up_bytes)
    return min(MAX_SLOTS, max(SLOTS_LEAST, ceil(bits_per_s * round_trip_s / (bits * shards))))
