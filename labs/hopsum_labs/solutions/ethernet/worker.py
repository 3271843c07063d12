# SPDX-License-Identifier: Apache-2.0
"""Level 1: a worker that has its vector summed, chunk by chunk."""

from scapy.layers.l2 import Ether

from hopsum_labs.packets import SWITCH_MAC, TYPE_AGGREGATION, VALUES, Aggregation, Kind, worker_mac


def all_reduce(port, rank, workers, vector):
    """Return the sum of all workers' vectors, value by value.

    `port.send(packet)` sends a scapy packet to the switch. `port.receive(timeout_s)` returns the next packet, or None
    when nothing came for so long.
    """
    sums = []
    for chunk, start in enumerate(range(0, len(vector), VALUES)):
        values = list(vector[start : start + VALUES])
        values += [0] * (VALUES - len(values))
        header = Ether(src=worker_mac(rank), dst=SWITCH_MAC, type=TYPE_AGGREGATION)
        port.send(header / Aggregation(rank=rank, chunk=chunk, values=values))
        sums += _result_of(port, chunk)
    return sums[: len(vector)]


def _result_of(port, chunk):
    while True:
        packet = port.receive()
        if Aggregation in packet and packet[Aggregation].kind == Kind.RESULT and packet[Aggregation].chunk == chunk:
            return [int(value) for value in packet[Aggregation].values]
