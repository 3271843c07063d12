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
    sums = []
    for chunk, start in enumerate(range(0, len(vector), VALUES)):
        codes = [_code_of(value) for value in vector[start : start + VALUES]]
        codes += [0] * (VALUES - len(codes))
        header = Ether(src=worker_mac(rank), dst=SWITCH_MAC, type=TYPE_QUANTISED)
        port.send(header / Quantised(rank=rank, chunk=chunk, codes=codes))
        sums += [2 * value / GRANULARITY - workers for value in _result_of(port, chunk)]
    return sums[: len(vector)]


def _code_of(value):
    """Return one of the two codes around a value, so that the expected value is the value."""
    position = (min(max(value, -1.0), 1.0) + 1) / 2 * GRANULARITY
    code = min(bisect_right(CODE_VALUES, position), len(CODE_VALUES) - 1) - 1
    low, high = CODE_VALUES[code], CODE_VALUES[code + 1]
    return code + (random.random() * (high - low) < position - low)


def _result_of(port, chunk):
    while True:
        packet = port.receive()
        if Quantised in packet and packet[Quantised].kind == Kind.RESULT and packet[Quantised].chunk == chunk:
            return [int(value) for value in packet[Quantised].sums]
