# SPDX-License-Identifier: Apache-2.0
"""Level 1: a worker that has its vector summed, chunk by chunk."""

from scapy.layers.l2 import Ether

from hopsum_labs.packets import SWITCH_MAC, TYPE_AGGREGATION, VALUES, Aggregation, Kind, worker_mac


def all_reduce(port, rank, workers, vector):
    """Return the sum of all workers' vectors, value by value.

    `port.send(packet)` sends a scapy packet to the switch. `port.receive(timeout_s)` returns the next packet, or None
    when nothing came for so long.
    """
    # GAP 5: for every chunk of VALUES values (fill the last one with zeros): send
    #        Ether(src=worker_mac(rank), dst=SWITCH_MAC, type=TYPE_AGGREGATION) / Aggregation(rank=rank, ...),
    #        and wait for the RESULT of this chunk: packet[Aggregation].kind, .chunk, .values.
    return vector
