# SPDX-License-Identifier: Apache-2.0
"""A case of a grader: a rule of the handout, its points, and the sentences that its check is written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scapy.layers.l2 import Ether
from scapy.packet import Packet

from hopsum_labs.packets import MODULUS, VALUES, Aggregation, Kind, summary, total, worker_port
from hopsum_switch.engine import Output

_LARGE = 0x5A3CF100


class Failed(Exception):  # noqa: N818 - a verdict on the student's program, no error of ours
    """The program broke the rule. The text has the packet, the expected answer and the real one."""


class LabError(Exception):
    """An error that the student has to mend, in files or in the installation. The text has the fault and the remedy."""


@dataclass(frozen=True)
class Case:
    """One rule. `check` raises Failed.

    A case of a program gets a `Testbed` that runs it. A case of a worker gets the `Workers`, then a `Testbed` that runs
    the solution. The switch has no entries yet.
    """

    name: str
    rule: str
    points: int
    check: Callable[..., None]


def expect(condition: bool, text: str) -> None:
    """Raise Failed with `text` unless `condition` holds."""
    if not condition:
        raise Failed(text)


OTHER_KINDS = tuple(kind for kind in range(256) if kind != Kind.CONTRIBUTION)
"""The kinds that no worker's contribution has, RESULT among them."""

# Sentences that the cases of all levels are written in: rounds of contributions, and the answers that are due.

Contribute = Callable[[int, Sequence[int]], list[Output]]
"""A function that lets a rank contribute values. It returns the packets that the switch sends in answer."""


def vectors(workers: int, seed: int = 0) -> list[list[int]]:
    """Return a vector of VALUES integers for each worker. All values differ by worker and place, and by `seed`.

    They are so large that sums pass 2**32.
    """
    # So large that the sum of any two passes 2**31 and 2**32 and carries out of its lower 16 bits: what adds in fewer
    # bits, with saturation, signed or without that carry is wrong in every round.
    return [[(_LARGE * (rank + 1) + 10 * place + seed) % MODULUS for place in range(VALUES)] for rank in range(workers)]


def expect_nothing(answers: Sequence[Output], why: str) -> None:
    """Raise Failed if the switch sent something. `why` is the reason for the expectation, in the message."""
    shown = [f"port {answer.port}: {summary(Ether(answer.frame))}" for answer in answers]
    expect(not answers, f"nothing was expected, because {why}; the switch sent {'; '.join(shown)}")


def expect_results(
    answers: Sequence[Output],
    ranks: Sequence[int],
    wanted: Sequence[int],
    when: str,
    layer: type[Packet] = Aggregation,
    field: str = "values",
    padding: int = 0,
) -> None:
    """Raise Failed unless each of `ranks` got one RESULT with the sums `wanted`, and no other rank got a packet.

    answers: in the order of ports.
    when: the situation, for the message.
    layer, field: the header of the level's packets, and its field with the sums.
    padding: number of bytes of the contribution's padding that may follow the sums.
    """
    ports = sorted(worker_port(rank) for rank in ranks)
    came = [answer.port for answer in answers]
    expect(came == ports, f"{when}: a RESULT was expected at ports {ports}, once at each; packets came at {came}.")
    for answer in answers:
        packet = Ether(answer.frame)
        expect(
            layer in packet and packet[layer].kind == Kind.RESULT,
            f"{when}: at port {answer.port} a RESULT (kind 2) was expected; this came: {summary(packet)}",
        )
        got = [int(value) for value in getattr(packet[layer], field)]
        expect(
            got == list(wanted),
            f"{when}: at port {answer.port} the sums {list(wanted)} were expected; these came: {got}",
        )
        rest = len(packet[layer].payload)
        expect(
            rest <= padding,
            f"{when}: at port {answer.port} {rest - padding} bytes more than a RESULT has came after the sums",
        )


def play_round(
    contribute: Contribute,
    contributions: Sequence[Sequence[int]],
    when: str,
    wanted: Sequence[int] | None = None,
    layer: type[Packet] = Aggregation,
    field: str = "values",
    padding: int = 0,
) -> list[Output]:
    """Let every rank contribute once. The answers to the last contribution have to be the RESULTs. Return the answers.

    Raises Failed where a contribution before the last is answered, or RESULTs are wrong. The other arguments are those
    of `expect_results`. `wanted` is by default the sum of the contributions.
    """
    ranks = range(len(contributions))
    answers: list[Output] = []
    for rank in ranks:
        expect_nothing(answers, f"only {rank} of {len(ranks)} workers had contributed in {when}")
        answers = contribute(rank, contributions[rank])
    expect_results(answers, ranks, total(contributions) if wanted is None else wanted, when, layer, field, padding)
    return answers
