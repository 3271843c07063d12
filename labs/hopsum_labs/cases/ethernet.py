# SPDX-License-Identifier: Apache-2.0
"""Level 1: contributions in Ethernet frames. Every worker gets the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from hopsum_labs.control_plane import ControlPlane
from hopsum_labs.lab_switch import Testbed
from hopsum_labs.packets import (
    BROADCAST,
    CHUNK,
    MODULUS,
    SHORTEST_FRAME,
    SWITCH_MAC,
    VALUES,
    Aggregation,
    ethernet_contribution,
    pad_frame,
    summary,
    total,
    worker_mac,
    worker_port,
)
from hopsum_labs.rule_checks import OTHER_KINDS, Case, expect, expect_nothing, expect_results, play_round, vectors
from hopsum_labs.workers import Network, Workers, check_all_reduce
from hopsum_switch.engine import Output

_GROUP = 1
PADDING = SHORTEST_FRAME - len(ethernet_contribution(0, [0] * VALUES))
"""The bytes that a network card adds to a contribution."""


def set_up(switch: ControlPlane, workers: int, *, port: Callable[[int], int] = worker_port) -> None:
    """Write the entries of the handout's control plane: the number of workers, and the multicast group of their ports.

    port: a function from a rank to the switch port of its worker. Raises ProgramError.
    """
    switch.set_default("MyIngress.job", "MyIngress.set_job", workers=workers)
    switch.set_group(_GROUP, [port(rank) for rank in range(workers)])


def play(switch: Testbed, contributions: Sequence[Sequence[int]], when: str = "a round", **fields: int) -> list[Output]:
    """Play a round of this level's frames, and return the answers, as `play_round` does. Raises Failed.

    `fields` are fields of the header, for every contribution.
    """

    def contribute(rank: int, values: Sequence[int]) -> list[Output]:
        return switch.send(worker_port(rank), bytes(ethernet_contribution(rank, values, **fields)))

    return play_round(contribute, contributions, when)


def sum_of_two(switch: Testbed) -> None:
    """Check a round of two workers, then one whose frames a network card has filled up to Ethernet's 60 bytes."""
    set_up(switch, 2)
    play(switch, vectors(2))

    def contribute(rank: int, values: Sequence[int]) -> list[Output]:
        return switch.send(worker_port(rank), pad_frame(bytes(ethernet_contribution(rank, values))))

    play_round(contribute, vectors(2, seed=1), "a round of frames padded to 60 bytes", padding=PADDING)


def any_number_of_workers(switch: Testbed) -> None:
    """Check a round of every number of workers from one to eight, each on a program without earlier entries."""
    # From one worker on: a program that compares with a constant passes at one number only.
    for workers in range(1, 9):
        switch.reload()
        set_up(switch, workers)
        play(switch, vectors(workers), f"a round of {workers} workers")


def addresses(switch: Testbed) -> None:
    """Check that a RESULT goes from the switch to the broadcast address and keeps the chunk."""
    set_up(switch, 3)
    expect_to_everybody(play(switch, vectors(3), chunk=CHUNK))


def expect_to_everybody(answers: Sequence[Output], layer: type[Packet] = Aggregation) -> None:
    """Raise Failed unless the RESULTs, over Ethernet, go from the switch to the broadcast address with `CHUNK`."""
    for answer in answers:
        frame = Ether(answer.frame)
        got, wanted = (frame.src, frame.dst, frame[layer].chunk), (SWITCH_MAC, BROADCAST, CHUNK)
        expect(got == wanted, f"source, destination and chunk of a RESULT have to be {wanted}; they are {got}")


def next_round(switch: Testbed) -> None:
    """Check that each of five rounds begins at zero."""
    set_up(switch, 3)
    # More than two rounds: registers that are cleared every other time pass two.
    for number in range(5):
        play(switch, vectors(3, seed=number), f"round {number + 1}, which begins at zero", chunk=number)


def wraps(switch: Testbed) -> None:
    """Check that sums are modulo 2**32, each value for itself."""
    set_up(switch, 2)
    # Values differ by place: a carry into the next value would show. 70000 shows a sum of 16 bits.
    play(switch, [[MODULUS - 1] * VALUES, [1, 70001] * (VALUES // 2)], "a round whose sums pass 2**32")


def no_contributions(rank: int) -> list[Packet]:
    """Return frames of a rank that are no contributions."""
    return [
        *(ethernet_contribution(rank, [5] * VALUES, kind=kind) for kind in OTHER_KINDS),
        # As much of a contribution as its header, and another type's frame that looks like one.
        Ether(bytes(ethernet_contribution(rank, [5] * VALUES))[:22]),
        Ether(src=worker_mac(rank), dst=SWITCH_MAC, type=0x88B7) / Aggregation(rank=rank, values=[5] * VALUES),
        Ether(src=worker_mac(rank), dst=SWITCH_MAC) / IP(dst="10.0.0.2") / ICMP(),
    ]


def other_frames(switch: Testbed) -> None:
    """Check that frames that are no contributions neither count nor come back."""
    set_up(switch, 2)
    contributions = vectors(2)
    # One of two has contributed, so a frame that is taken for a contribution would end the round.
    switch.send(worker_port(0), bytes(ethernet_contribution(0, contributions[0])))
    for packet in no_contributions(1):
        expect_nothing(switch.send(worker_port(1), bytes(packet)), f"this is no contribution: {summary(packet)}")
    answers = switch.send(worker_port(1), bytes(ethernet_contribution(1, contributions[1])))
    expect_results(answers, range(2), total(contributions), "a round beside other frames")


CASES = (
    Case("sum_of_two", "two workers get the sum of their vectors (rules 2, 3)", 2, sum_of_two),
    Case("any_number_of_workers", "`job` says how many workers there are, up to 8 (rule 1)", 2, any_number_of_workers),
    Case("addresses", "a RESULT comes from the switch, to everybody, with the chunk's number (rule 3)", 1, addresses),
    Case("next_round", "every round begins at zero (rule 4)", 2, next_round),
    Case("wraps", "sums are modulo 2**32, each value for itself (rule 2)", 1, wraps),
    Case("other_frames", "only contributions count (rule 5)", 2, other_frames),
)


def whole_vectors(workers: Workers, switch: Testbed) -> None:
    """Check a worker with vectors of several chunks, of less than one, and of none."""
    # Chunks have eight values: two full ones and a rest, less than one, and nothing to send at all.
    for length in (20, 3, 0):
        switch.reload()
        set_up(switch, 3)
        vectors_of_workers = [[100 * rank + place for place in range(length)] for rank in range(3)]
        check_all_reduce(workers, Network(switch, 3), vectors_of_workers, f"vectors of {length} values")


WORKER_CASES = (
    Case("whole_vectors", "worker.py: every worker gets the sum of whole vectors (rule 2)", 3, whole_vectors),
)
