# SPDX-License-Identifier: Apache-2.0
"""Bonus: leaves that add the workers of their racks, and a spine that adds the racks, with one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from scapy.layers.l2 import Ether

from hopsum_labs.cases.ethernet import PADDING, expect_to_everybody, no_contributions
from hopsum_labs.control_plane import ControlPlane
from hopsum_labs.lab_switch import Testbed
from hopsum_labs.packets import (
    BROADCAST,
    CHUNK,
    SWITCH_MAC,
    Aggregation,
    Kind,
    ethernet_contribution,
    pad_frame,
    rank_at,
    summary,
    total,
    worker_port,
)
from hopsum_labs.rule_checks import Case, Failed, LabError, expect, expect_nothing, expect_results, vectors
from hopsum_switch.engine import Output

# Not the port of the exercise's network.py: a program that has that number built in must not pass.
UPLINK = 11
_GROUP = 1


def set_up_leaf(switch: ControlPlane, ports: Sequence[int], uplink: int, rack: int) -> None:
    """Make a switch the leaf of a rack: workers at `ports`, spine at port `uplink`. Raises ProgramError."""
    switch.set_default("MyIngress.job", "MyIngress.set_leaf", workers=len(ports), uplink=uplink, rack=rack)
    switch.set_group(_GROUP, ports)


def set_up_spine(switch: ControlPlane, ports: Sequence[int]) -> None:
    """Make a switch the spine, with its leaves at `ports`. Raises ProgramError."""
    switch.set_default("MyIngress.job", "MyIngress.set_spine", racks=len(ports))
    switch.set_group(_GROUP, ports)


def set_up_network(planes: Mapping[str, ControlPlane], network: Mapping[str, Any]) -> None:
    """Write the entries of the handout's control plane to a spine and its leaves. Raises LabError: no such network.

    planes: control planes by name of the switch. network: the description that `Level.set_up_network` gets.
    """
    ports = {name: {int(number): end for number, end in network["switches"][name]["ports"].items()} for name in planes}
    # The spine is found by its links, not by its name: students name their switches as they like.
    spines = [name for name in planes if all(end in planes for end in ports[name].values())]
    if len(spines) != 1:
        raise LabError(f"a spine is needed, which is joined to switches only; {spines or 'none'} is")
    leaves = [name for name in planes if name not in spines]
    for rack, name in enumerate(leaves):
        uplinks = [number for number, end in ports[name].items() if end == spines[0]]
        if len(uplinks) != 1 or any(end in leaves for end in ports[name].values()):
            raise LabError(f"switch {name} has to be joined to workers, and to {spines[0]} once")
        workers = [number for number in ports[name] if number not in uplinks]
        set_up_leaf(planes[name], workers, uplinks[0], rack)
    set_up_spine(planes[spines[0]], sorted(ports[spines[0]]))


class _Racks:
    """A spine and a leaf for each rack, joined frame by frame, and the traffic of the uplinks."""

    def __init__(self, switch: Testbed, sizes: Sequence[int], stack: ExitStack) -> None:
        self._spine = switch
        # Switches of their own, with the same program: roles follow from entries alone.
        self._leaves = [stack.enter_context(switch.start_another()) for _ in sizes]
        self.up = [0] * len(sizes)
        self.down = [0] * len(sizes)
        set_up_spine(switch, [worker_port(rack) for rack in range(len(sizes))])
        for rack, (leaf, size) in enumerate(zip(self._leaves, sizes, strict=True)):
            set_up_leaf(leaf, [worker_port(place) for place in range(size)], UPLINK, rack)

    def contribute(self, rack: int, place: int, frame: bytes) -> list[tuple[int, Output]]:
        """Let a worker's frame go to its leaf. Return the frames that workers get for it, each with its rack."""
        arrived: list[tuple[int, Output]] = []
        for sent in self._leaves[rack].send(worker_port(place), frame):
            if sent.port != UPLINK:
                arrived.append((rack, sent))
                continue
            self.up[rack] += 1
            for answer in self._spine.send(worker_port(rack), sent.frame):
                below = rank_at(answer.port)
                if below is None or below >= len(self._leaves):
                    raise Failed(f"the spine sent a packet out of port {answer.port}: no leaf is there")
                # Counted at the spine: the case `two_racks` holds each uplink to one packet a round.
                self.down[below] += 1
                arrived += [(below, each) for each in self._leaves[below].send(UPLINK, answer.frame)]
        return arrived


def _play(switch: Testbed, sizes: Sequence[int], rounds: int) -> _Racks:
    """Play rounds over racks of these sizes. Every worker must get every sum when the last worker has contributed."""
    with ExitStack() as stack:
        racks = _Racks(switch, sizes, stack)
        workers = [(rack, place) for rack, size in enumerate(sizes) for place in range(size)]
        for number in range(rounds):
            contributions = vectors(len(workers), seed=number)
            for rank, (rack, place) in enumerate(workers):
                frame = bytes(ethernet_contribution(place, contributions[rank], chunk=number))
                answers = racks.contribute(rack, place, frame)
                # A sum before the last contribution would lack a worker.
                if rank + 1 < len(workers):
                    why = f"only {rank + 1} of {len(workers)} workers had contributed in round {number + 1}"
                    expect_nothing([answer for _, answer in answers], why)
            # `answers` are now those to the last contribution of the round.
            for rack, size in enumerate(sizes):
                mine = sorted(answer for below, answer in answers if below == rack)
                when = f"round {number + 1} of racks with {', '.join(map(str, sizes))} workers, in rack {rack}"
                expect_results(mine, range(size), total(contributions), when)
        return racks


def leaf_sends_up(switch: Testbed) -> None:
    """Check that a leaf sends the sum of its rack up, once a round."""
    set_up_leaf(switch, [worker_port(rank) for rank in range(3)], UPLINK, rack=5)
    for number in range(3):
        contributions = vectors(3, seed=number)
        answers: list[Output] = []
        for rank, values in enumerate(contributions):
            expect_nothing(answers, f"only {rank} of 3 workers of the rack had contributed")
            answers = switch.send(worker_port(rank), bytes(ethernet_contribution(rank, values, chunk=CHUNK + number)))
        _expect_up(answers, total(contributions), CHUNK + number, f"round {number + 1} of a rack of three")
    contributions = vectors(3)
    for rank, values in enumerate(contributions):
        answers = switch.send(worker_port(rank), pad_frame(bytes(ethernet_contribution(rank, values))))
    _expect_up(answers, total(contributions), 0, "a round of frames padded to 60 bytes", PADDING)


def _expect_up(answers: Sequence[Output], sums: Sequence[int], chunk: int, when: str, padding: int = 0) -> None:
    ports = [answer.port for answer in answers]
    expect(ports == [UPLINK], f"{when}: one packet was expected, at the uplink, port {UPLINK}; packets came at {ports}")
    packet = Ether(answers[0].frame)
    expect(
        Aggregation in packet and packet[Aggregation].kind == Kind.CONTRIBUTION,
        f"{when}: a leaf sends a CONTRIBUTION (kind 1) up; this came: {summary(packet)}",
    )
    part = packet[Aggregation]
    got = (packet.src, part.rank, part.chunk, [int(value) for value in part.values])
    wanted = (SWITCH_MAC, 5, chunk, list(sums))
    expect(got == wanted, f"{when}: source, rank (the rack), chunk and values have to be {wanted}; they are {got}")
    rest = len(part.payload)
    expect(rest <= padding, f"{when}: nothing was expected after the values; {rest - padding} bytes more came")


def leaf_hands_down(switch: Testbed) -> None:
    """Check that a leaf passes a RESULT of the spine on to the workers of the rack, unchanged."""
    set_up_leaf(switch, [worker_port(rank) for rank in range(3)], UPLINK, rack=0)
    result = ethernet_contribution(0, range(8), kind=Kind.RESULT, chunk=9)
    # As the spine sends it: a leaf only copies.
    result.src, result.dst = SWITCH_MAC, BROADCAST
    answers = switch.send(UPLINK, bytes(result))
    expect_results(answers, range(3), range(8), "a RESULT came from the uplink")
    filled = switch.send(UPLINK, pad_frame(bytes(result)))
    expect_results(filled, range(3), range(8), "a RESULT padded to 60 bytes came from the uplink", padding=PADDING)
    changed = [answer.port for answer in answers if answer.frame != bytes(result)]
    expect(not changed, f"a RESULT from the uplink is passed on unchanged; it was changed at ports {changed}")


def only_from_the_right_side(switch: Testbed) -> None:
    """Check that a leaf and a spine neither count nor pass on a packet from the wrong side."""
    first, second = worker_port(0), worker_port(1)
    set_up_leaf(switch, [first, second], UPLINK, rack=5)
    contributions = vectors(2)
    expect_nothing(
        switch.send(first, bytes(ethernet_contribution(0, contributions[0]))), "rank 1 has not contributed yet"
    )
    result, from_above = ethernet_contribution(1, [7] * 8, kind=Kind.RESULT), ethernet_contribution(1, [7] * 8)
    for frame in map(bytes, no_contributions(1)):
        expect_nothing(switch.send(second, frame), f"this is no contribution: {summary(Ether(frame))}")
        # The kind comes after the 14 bytes of Ethernet.
        if frame[14] != Kind.RESULT:
            expect_nothing(switch.send(UPLINK, frame), f"this is no RESULT: {summary(Ether(frame))}")
    expect_nothing(switch.send(UPLINK, bytes(from_above)), "no CONTRIBUTION comes from the spine")
    answers = switch.send(second, bytes(ethernet_contribution(1, contributions[1])))
    _expect_up(answers, total(contributions), 0, "a round beside packets from the wrong side")
    switch.reload()
    set_up_spine(switch, [first, second])
    expect_nothing(switch.send(first, bytes(result)), "no RESULT comes from a leaf")
    up = [bytes(ethernet_contribution(rack, values, chunk=CHUNK)) for rack, values in enumerate(contributions)]
    expect_nothing(switch.send(first, up[0]), "rack 1 has not contributed yet")
    answers = switch.send(second, up[1])
    expect_results(answers, range(2), total(contributions), "a round at the spine beside a RESULT")
    expect_to_everybody(answers)


def two_racks(switch: Testbed) -> None:
    """Check rounds over two racks of four. Each uplink must carry one packet a round in each direction."""
    rounds = 4
    racks = _play(switch, (4, 4), rounds)
    expect(
        racks.up == racks.down == [rounds] * 2,
        f"in {rounds} rounds each uplink carries {rounds} packets up and {rounds} down; these had {racks.up} up, "
        f"{racks.down} down",
    )


def unequal_racks(switch: Testbed) -> None:
    """Check rounds over three racks with one, three and two workers, with a rack of eight, and over eight racks."""
    for sizes in ((1, 3, 2), (8, 1), (1,) * 8):
        switch.reload()
        _play(switch, sizes, 3)


CASES = (
    Case("leaf_sends_up", "a leaf sends the sum of its rack up, once a round (rules 1, 2)", 2, leaf_sends_up),
    Case("leaf_hands_down", "a leaf passes a RESULT from the spine on to its workers (rule 4)", 2, leaf_hands_down),
    Case("only_from_the_right_side", "RESULTs go down, contributions go up (rules 3, 5)", 2, only_from_the_right_side),
    Case("two_racks", "all workers of two racks get the sum; uplinks carry one packet a round (rule 3)", 3, two_racks),
    Case("unequal_racks", "racks, and workers of a rack, are 1 to 8 (rule 1)", 1, unequal_racks),
)
