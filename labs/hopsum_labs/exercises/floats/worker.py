# SPDX-License-Identifier: Apache-2.0
"""Bonus: a worker that has its vector of floats quantised and summed, chunk by chunk."""

import random
from bisect import bisect_right

from scapy.layers.l2 import Ether

from hopsum_labs.packets import (
    CODE_VALUES,
    GRANULARITY,
    SWITCH_MAC,
    TYPE_QUANTISED,
    VALUES,
    Kind,
    Quantised,
    worker_mac,
)


def all_reduce(port, rank, workers, vector):
    """Return the sum of all workers' vectors of floats from -1 to 1, value by value, as the switch's sums tell it.

    `port.send(packet)` sends a scapy packet to the switch. `port.receive(timeout_s)` returns the next packet, or None
    when nothing came for so long.
    """
    # GAP 5: for every chunk of VALUES values: a code for each (0 where the vector has ended), sent as
    #        Ether(src=worker_mac(rank), dst=SWITCH_MAC, type=TYPE_QUANTISED)
    #        / Quantised(rank=rank, chunk=..., codes=...).
    #        The RESULT of the chunk has packet[Quantised].sums: 0 is -1.0 and GRANULARITY is 1.0, for each worker.
    #        A value between two entries of CODE_VALUES becomes one of them, by chance, so that it is right on average.
    return vector
