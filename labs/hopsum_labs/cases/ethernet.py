# SPDX-License-Identifier: Apache-2.0
"""Level 1: contributions in Ethernet frames; every worker gets the sum."""

from __future__ import annotations

from collections.abc import Sequence

from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import Ether

from hopsum_labs.case import Case, expect
from hopsum_labs.packets import (
    BROADCAST,
    MODULUS,
    SWITCH_MAC,
    VALUES,
    Aggregation,
    Kind,
    over_ethernet,
    summary,
    total,
    worker_mac,
    worker_port,
)
from hopsum_labs.testbed import Sent, Testbed
from hopsum_labs.workers import AllReduce, Network, WorkerCase, run

_GROUP = 1


def set_up(switch: Testbed, workers: int) -> None:
    """Tell the switch how many workers there are, and their ports."""
    switch.set_default("MyIngress.job", "MyIngress.set_job", workers=workers)
    switch.set_group(_GROUP, [worker_port(rank) for rank in range(workers)])


def vectors(workers: int, seed: int = 0) -> list[list[int]]:
    """Return a vector for each worker in which every value tells its worker, its place and the round."""
    return [[1000 * (rank + 1) + 10 * place + seed for place in range(VALUES)] for rank in range(workers)]


def play(switch: Testbed, contributions: Sequence[Sequence[int]], **fields: int) -> list[Sent]:
    """Let every rank contribute in turn. Nothing may come before the last one; return what comes for that."""
    last = len(contributions) - 1
    for rank, values in enumerate(contributions):
        packet = over_ethernet(rank, values, **fields)
        answers = switch.send(worker_port(rank), bytes(packet))
        if rank < last:
            expect(
                not answers,
                f"{rank + 1} of {last + 1} workers have contributed, and packets came out of ports "
                f"{[answer.port for answer in answers]} already. A RESULT is due when the last has contributed.",
            )
    return answers


def expect_result(answers: Sequence[Sent], contributions: Sequence[Sequence[int]]) -> None:
    """Fail unless every worker got the sum, once."""
    ports = [worker_port(rank) for rank in range(len(contributions))]
    expect(
        [answer.port for answer in answers] == ports,
        f"the last of {len(ports)} contributions came, and a RESULT was expected at ports {ports}, once at each; "
        f"packets came out of ports {[answer.port for answer in answers]}.",
    )
    for answer in answers:
        packet = Ether(answer.frame)
        expect(
            Aggregation in packet and packet[Aggregation].kind == Kind.RESULT,
            f"at port {answer.port} a RESULT (kind 2) was expected; this came: {summary(packet)}",
        )
        got, wanted = [int(value) for value in packet[Aggregation].values], total(contributions)
        expect(got == wanted, f"at port {answer.port} the sums {wanted} were expected; these came: {got}")


def sum_of_two(switch: Testbed) -> None:
    """Two workers, one round."""
    set_up(switch, 2)
    contributions = vectors(2)
    expect_result(play(switch, contributions), contributions)


def any_number_of_workers(switch: Testbed) -> None:
    """Every number from one to eight, each on groups and counts of its own."""
    for workers in range(1, 9):
        switch.reload()
        set_up(switch, workers)
        contributions = vectors(workers)
        expect_result(play(switch, contributions), contributions)


def addresses(switch: Testbed) -> None:
    """The frame's own addresses, and what the switch only carries through."""
    set_up(switch, 3)
    contributions = vectors(3)
    answers = play(switch, contributions, chunk=77)
    expect_result(answers, contributions)
    frame = Ether(answers[0].frame)
    expect(frame.dst == BROADCAST, f"a RESULT goes to {BROADCAST}; this one went to {frame.dst}")
    expect(frame.src == SWITCH_MAC, f"a RESULT comes from the switch, {SWITCH_MAC}; this one came from {frame.src}")
    chunk = frame[Aggregation].chunk
    expect(chunk == 77, f"the contributions were of chunk 77, and the RESULT says chunk {chunk}; carry it through")


def next_round(switch: Testbed) -> None:
    """Five rounds: each begins at zero."""
    set_up(switch, 3)
    for number in range(5):
        contributions = vectors(3, seed=number)
        answers = play(switch, contributions, chunk=number)
        try:
            expect_result(answers, contributions)
        except Exception as error:
            error.add_note(f"This was round {number + 1}: a round must not see what the one before left in `sums`.")
            raise


def wraps(switch: Testbed) -> None:
    """Sums are modulo 2**32, each value for itself."""
    set_up(switch, 2)
    contributions = [[MODULUS - 1] * VALUES, [1, 2] * (VALUES // 2)]
    expect_result(play(switch, contributions), contributions)


def other_frames(switch: Testbed) -> None:
    """What is no contribution neither counts nor comes back."""
    set_up(switch, 2)
    contributions = vectors(2)
    strange = [
        over_ethernet(0, [5] * VALUES, kind=Kind.RESULT),
        Ether(src=worker_mac(0), dst=SWITCH_MAC) / IP(dst="10.0.0.2") / ICMP(),
    ]
    switch.send(worker_port(0), bytes(over_ethernet(0, contributions[0])))
    for packet in strange:
        answers = switch.send(worker_port(1), bytes(packet))
        expect(not answers, f"this is no contribution, and the switch answered it: {summary(packet)}")
    answers = switch.send(worker_port(1), bytes(over_ethernet(1, contributions[1])))
    expect_result(answers, contributions)


CASES = (
    Case("sum_of_two", "two workers get the sum of their vectors", 2, sum_of_two),
    Case("any_number_of_workers", "the table `job` says how many workers there are, up to 8", 2, any_number_of_workers),
    Case("addresses", "a RESULT comes from the switch, to everybody, with the chunk's number", 1, addresses),
    Case("next_round", "every round begins at zero", 2, next_round),
    Case("wraps", "sums are modulo 2**32, each value for itself", 1, wraps),
    Case("other_frames", "only contributions count", 2, other_frames),
)


def whole_vectors(all_reduce: AllReduce, switch: Testbed) -> None:
    """Vectors of several chunks, of less than one, and of none."""
    for length in (20, 3, 0):
        switch.reload()
        set_up(switch, 3)
        vectors_of_workers = [[100 * rank + place for place in range(length)] for rank in range(3)]
        run(all_reduce, Network(switch, 3, 0.0, 0), vectors_of_workers, f"vectors of {length} values")


WORKER_CASES = (WorkerCase("whole_vectors", "worker.py: every worker gets the sum of whole vectors", 3, whole_vectors),)
