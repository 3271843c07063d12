# SPDX-License-Identifier: Apache-2.0
"""Level 3: contributions and RESULTs are lost, and workers send again.

The rules are those of SwitchML (Sapio et al., NSDI 2021, Algorithm 3).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from scapy.layers.inet import IP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from hopsum_labs.cases.udp import (
    checksums,
    contribute,
    expect_addresses,
    expect_sound,
    for_the_switch_only,
    ordinary_traffic,
    play,
    result_addresses,
    set_up,
)
from hopsum_labs.lab_switch import Testbed
from hopsum_labs.packets import (
    CHUNK,
    VALUES,
    Aggregation,
    Kind,
    rank_at,
    summary,
    total,
    udp_contribution,
    worker_ip,
    worker_mac,
    worker_port,
)
from hopsum_labs.rule_checks import OTHER_KINDS, Case, Failed, expect, expect_nothing, expect_results, vectors
from hopsum_labs.workers import Network, Workers, check_all_reduce

_MOST_WORKERS = 8


def two_versions(switch: Testbed) -> None:
    """Check rounds that use the versions by turns, for several numbers of workers: each begins at zero."""
    for workers in (1, 2, 5, 8):
        switch.reload()
        set_up(switch, workers)
        for number in range(5):
            play(switch, vectors(workers, seed=number), f"round {number + 1} of {workers} workers", version=number % 2)


def again_before_the_end(switch: Testbed) -> None:
    """Check that a contribution that comes again before the end of its round is not added again."""
    set_up(switch, 3)
    contributions = vectors(3)
    # Five packets of two workers: a switch that counts packets ends the round too early.
    for rank in (0, 1, 0, 1, 1):
        expect_nothing(contribute(switch, rank, contributions[rank]), "rank 2 has not contributed yet")
    # The rank says who contributes, not the port: rank 1 through the port of rank 2, which has not contributed.
    expect_nothing(contribute(switch, 1, contributions[1], through=2), "rank 2 has not contributed yet")
    answers = contribute(switch, 2, contributions[2])
    expect_results(answers, range(3), total(contributions), "a round in which ranks 0 and 1 sent again")
    switch.reload()
    # Every rank has a bit, not only the first ones.
    set_up(switch, _MOST_WORKERS)
    contributions = vectors(_MOST_WORKERS)
    # In both orders: the first rank of one is the last of the other, which never repeats.
    for version, order in enumerate((range(_MOST_WORKERS), range(_MOST_WORKERS)[::-1])):
        for come in range(1, _MOST_WORKERS):
            for rank in order[:come]:
                answers = contribute(switch, rank, contributions[rank], version=version)
                expect_nothing(answers, f"only ranks {list(order[:come])} of {_MOST_WORKERS} workers have contributed")
        answers = contribute(switch, order[-1], contributions[order[-1]], version=version)
        when = f"a round in which all but rank {order[-1]} sent again"
        expect_results(answers, range(_MOST_WORKERS), total(contributions), when)


def again_after_the_end(switch: Testbed) -> None:
    """Check that a worker that sends again after the end of its round gets the RESULT, alone, as often as it sends."""
    for workers in (3, _MOST_WORKERS):
        switch.reload()
        set_up(switch, workers)
        contributions = vectors(workers)
        play(switch, contributions, chunk=CHUNK)
        # Twice: the answer to the first request must not use the RESULT up.
        for rank in (*range(workers), *range(workers)):
            when = f"rank {rank} of {workers} sent again after the end of the round"
            answers = contribute(switch, rank, contributions[rank], chunk=CHUNK)
            expect_results(answers, [rank], total(contributions), when)
            expect_addresses(answers, CHUNK)
            expect_sound(answers, when)
    answers = contribute(switch, 1, contributions[1], through=0)
    expect_results(answers, [0], total(contributions), "rank 1 sent again, through the port of rank 0")


def late_worker(switch: Testbed) -> None:
    """Check that a worker one round late gets the RESULT of the other version, and does not disturb the new round."""
    set_up(switch, 2)
    first, second = vectors(2), vectors(2, seed=3)
    play(switch, first, version=0)
    expect_nothing(contribute(switch, 0, second[0], version=1), "rank 1 has not contributed to version 1 yet")
    answers = contribute(switch, 1, first[1], version=0)
    expect_results(answers, [1], total(first), "rank 1 asks for the round before while rank 0 is ahead")
    answers = contribute(switch, 1, second[1], version=1)
    expect_results(answers, range(2), total(second), "the round in version 1 ends")


def who_does_not_exist(switch: Testbed) -> None:
    """Check that ranks and versions that the job does not have are dropped, and the other rules of level 2."""
    for check in (for_the_switch_only, ordinary_traffic, result_addresses, partial(checksums, versions=2)):
        check(switch)
        switch.reload()
    set_up(switch, 2)
    contributions = vectors(2)
    contribute(switch, 0, contributions[0])
    strange = (
        udp_contribution(2, contributions[1]),
        # Rank 9 would set a bit beyond eight workers, rank 2 one that only this job lacks.
        udp_contribution(9, contributions[1]),
        udp_contribution(1, contributions[1], version=2),
        *(udp_contribution(1, contributions[1], kind=kind) for kind in OTHER_KINDS),
    )
    for packet in strange:
        why = f"a job of two workers has no such contribution: {summary(packet)}"
        expect_nothing(switch.send(worker_port(1), bytes(packet)), why)
    answers = contribute(switch, 1, contributions[1])
    expect_results(answers, range(2), total(contributions), "a round beside packets of nobody")
    _strangers_change_nothing(switch)
    switch.reload()
    # A job of one, in which whatever is taken for a contribution is answered.
    set_up(switch, 1)
    for version in (2, 3, 255):
        expect_nothing(contribute(switch, 0, contributions[0], version=version), f"version {version} does not exist")


def _strangers_change_nothing(switch: Testbed) -> None:
    """Packets of nobody leave the bits of both versions as they are."""
    switch.reload()
    set_up(switch, 2)
    first, second = vectors(2), vectors(2, seed=3)
    play(switch, first)
    contribute(switch, 0, second[0], version=1)
    damaged, other = udp_contribution(0, second[0]), udp_contribution(1, second[1], ip=worker_ip(1))
    damaged[IP].chksum, other.dst = 1, worker_mac(1)
    for packet in (damaged, other):
        switch.send(worker_port(1), bytes(packet))
    for version in range(2):
        for packet in (
            *(_as_rank(rank, udp_contribution(1, second[1], version=version)) for rank in (2, 3, 7, 8, 9, 255)),
            udp_contribution(1, second[1], version=version + 2),
            udp_contribution(1, second[1], version=version, kind=Kind.RESULT),
        ):
            why = f"a job of two workers has no such contribution: {summary(packet)}"
            expect_nothing(switch.send(worker_port(1), bytes(packet)), why)
    expect_nothing(contribute(switch, 0, second[0], version=1), "rank 0 sent this before, ahead of packets of nobody")
    answers = contribute(switch, 1, first[1])
    expect_results(answers, [1], total(first), "rank 1 asks for the round before, after packets of nobody")
    answers = contribute(switch, 1, second[1], version=1)
    expect_results(answers, range(2), total(second), "a round in version 1 beside packets of nobody")


def _as_rank(rank: int, packet: Packet) -> Packet:
    packet[Aggregation].rank = rank
    return packet


def random_loss(switch: Testbed) -> None:
    """Check that all workers get every sum on links that lose a third of all packets in each direction."""
    for seed in range(6):
        switch.reload()
        set_up(switch, 3)
        _LossyRun(switch, random.Random(seed), chunks=12).run(f"loss with seed {seed}")


@dataclass
class _LossyRun:
    """Three workers that send the chunks of a vector one after the other, and send again until they have the RESULT."""

    switch: Testbed
    random: random.Random
    chunks: int
    loss: float = 1 / 3

    def run(self, when: str) -> None:
        """Play until all have all chunks. Raises Failed: a wrong sum, or a RESULT that never comes."""
        contributions = [vectors(3, seed=chunk) for chunk in range(self.chunks)]
        at = [0, 0, 0]
        # Far more packets than a right program needs, so that chance never fails one.
        for _ in range(self.chunks * 200):
            waiting = [rank for rank in range(3) if at[rank] < self.chunks]
            if not waiting:
                return
            # Any worker next, so that workers are up to one round apart, as on a real network.
            rank = self.random.choice(waiting)
            if self.random.random() < self.loss:
                continue
            chunk = at[rank]
            answers = contribute(self.switch, rank, contributions[chunk][rank], version=chunk % 2, chunk=chunk)
            for answer in answers:
                if self.random.random() >= self.loss:
                    self._take(answer.port, Ether(answer.frame), at, contributions, when)
        expect(False, f"{when}: after {self.chunks * 200} packets the workers have {at} of {self.chunks} chunks each")

    def _take(self, port: int, packet: Ether, at: list[int], contributions: list[list[list[int]]], when: str) -> None:
        rank = rank_at(port)
        if rank is None or rank >= len(at):
            raise Failed(f"{when}: a packet came at port {port}, where no worker is")
        expect(Aggregation in packet, f"{when}: rank {rank} got what is no aggregation packet: {summary(packet)}")
        part = packet[Aggregation]
        if part.chunk != at[rank]:
            # A RESULT that came twice.
            return
        wanted, got = total(contributions[part.chunk]), [int(value) for value in part.values]
        expect(got == wanted, f"{when}: the sums of chunk {part.chunk} are {wanted}; rank {rank} got {got}")
        at[rank] += 1


CASES = (
    Case("two_versions", "rounds use the versions by turns, and each begins at zero (rule 1)", 3, two_versions),
    Case("again_before_the_end", "what comes again is not added again (rule 2)", 3, again_before_the_end),
    Case("again_after_the_end", "who asks again after the end gets the RESULT, alone (rule 2)", 3, again_after_the_end),
    Case("late_worker", "the other version keeps the RESULT for who is late (rules 1, 3)", 3, late_worker),
    Case("who_does_not_exist", "no unknown ranks; the rest as in level 2 (rules 4, 5)", 1, who_does_not_exist),
    Case("random_loss", "with a third of all packets lost, all get every sum (rules 2, 3)", 3, random_loss),
)


def sends_again(workers: Workers, switch: Testbed) -> None:
    """Check a worker with vectors of five chunks: every RESULT comes twice, then a fifth of all packets is lost."""
    for number, loss in enumerate((0.0, 0.2, 0.2, 0.2, 0.2)):
        switch.reload()
        set_up(switch, 3)
        vectors_of_workers = [[100 * rank + place for place in range(5 * VALUES - 3)] for rank in range(3)]
        when = f"run {number + 1}, with {loss:.0%} of all packets lost"
        check_all_reduce(
            workers, Network(switch, 3, loss=loss, seed=number, copies=1 if loss else 2), vectors_of_workers, when
        )


WORKER_CASES = (
    Case("sends_again", "worker.py: every worker gets every sum although packets are lost (rule 1)", 4, sends_again),
)
