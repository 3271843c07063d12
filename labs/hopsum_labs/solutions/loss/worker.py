# SPDX-License-Identifier: Apache-2.0
"""Level 3: a worker that sends again until it has the sum."""

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from hopsum_labs.packets import (
    AGGREGATION_PORT,
    SWITCH_IP,
    SWITCH_MAC,
    VALUES,
    Aggregation,
    Kind,
    worker_ip,
    worker_mac,
)

RETRANSMIT_AFTER_S = 0.02


def all_reduce(port, rank, workers, vector):
    """Return the sum of all workers' vectors, value by value.

    `port.send(packet)` sends a scapy packet to the switch. `port.receive(timeout_s)` returns the next packet, or None
    when nothing came for so long.
    """
    sums = []
    for chunk, start in enumerate(range(0, len(vector), VALUES)):
        values = list(vector[start : start + VALUES])
        values += [0] * (VALUES - len(values))
        header = Ether(src=worker_mac(rank), dst=SWITCH_MAC) / IP(src=worker_ip(rank), dst=SWITCH_IP)
        header /= UDP(sport=AGGREGATION_PORT, dport=AGGREGATION_PORT)
        sums += _exchange(port, header / Aggregation(rank=rank, version=chunk % 2, chunk=chunk, values=values))
    return sums[: len(vector)]


def _exchange(port, contribution):
    """Send a contribution until its RESULT is here. Return the sums."""
    port.send(contribution)
    while True:
        packet = port.receive(RETRANSMIT_AFTER_S)
        if packet is None:
            port.send(contribution)
        elif _is_result_of(packet, contribution[Aggregation].chunk):
            return [int(value) for value in packet[Aggregation].values]


def _is_result_of(packet, chunk):
    return Aggregation in packet and packet[Aggregation].kind == Kind.RESULT and packet[Aggregation].chunk == chunk
