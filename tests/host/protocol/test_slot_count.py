# SPDX-License-Identifier: Apache-2.0
"""The slots rule: a job has as many slots as a link holds packets in a round trip."""

from __future__ import annotations

from hopsum.protocol.slot_count import SLOTS_LEAST, slots_for
from hopsum_wire import MAX_SLOTS
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES


def test_slots_fill_a_link_for_a_round_trip() -> None:
    packet_s = 8 * (FRAME_OVERHEAD_BYTES + 512) / 1e9  # 1,024 codes of 4 bits
    assert slots_for(1e9, 1000 * packet_s) == 1000
    assert slots_for(2e9, 500.5 * packet_s) == 1001
    assert slots_for(1e9, 1000 * packet_s, shards=2) == 500
    assert slots_for(1e9, 0.0) == SLOTS_LEAST
    assert slots_for(1e9, 1.0) == MAX_SLOTS
