# SPDX-License-Identifier: Apache-2.0
"""Bonus: floats as codes of 4 bits, whose values the switch looks up in a table and adds.

Two of the ideas of THC (Li et al., NSDI 2024): a lookup table on the switch, and stochastic rounding at the workers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise

from scapy.layers.l2 import Ether

from hopsum_labs.cases import ethernet
from hopsum_labs.control_plane import ControlPlane
from hopsum_labs.lab_switch import Testbed
from hopsum_labs.packets import (
    CHUNK,
    CODE_VALUES,
    GRANULARITY,
    SHORTEST_FRAME,
    SWITCH_MAC,
    TYPE_QUANTISED,
    VALUES,
    Quantised,
    ethernet_contribution,
    pad_frame,
    quantised_contribution,
    summary,
    worker_mac,
    worker_port,
)
from hopsum_labs.rule_checks import OTHER_KINDS, Case, expect, expect_nothing, expect_results, play_round
from hopsum_labs.workers import Network, Workers, call_workers
from hopsum_switch.engine import Output

# Another table than the handout's: a program with the values built in fails.
_OTHER_VALUES = tuple(value // 3 for value in CODE_VALUES)
_PADDING = SHORTEST_FRAME - len(quantised_contribution(0, [0] * VALUES))
_MOST_WORKERS = 255
_STEP = 2 / GRANULARITY
_GAP = _STEP * max(after - before for before, after in pairwise(CODE_VALUES))
_CHANCE = 1e-9
"""The largest probability that a right worker fails `unbiased`."""


def set_up(
    switch: ControlPlane,
    workers: int,
    values: Sequence[int] = CODE_VALUES,
    *,
    step: int = 0,
    port: Callable[[int], int] = worker_port,
) -> None:
    """Write the entries of the handout's control plane. `values` is the lookup table. Raises ProgramError.

    step: added to the values of a table from place to place.
    port: a function from a rank to the switch port of its worker.
    """
    ethernet.set_up(switch, workers, port=port)
    for place in range(VALUES):
        table = f"MyIngress.lookup{place}"
        for code, value in enumerate(values):
            switch.insert(f"{table}.values", {"code": code}, f"{table}.set_value", number=value + step * place)


def _codes(workers: int, seed: int = 0) -> list[list[int]]:
    """Return codes for each worker in which every code comes up in some place."""
    return [[(5 * rank + 3 * place + seed) % len(CODE_VALUES) for place in range(VALUES)] for rank in range(workers)]


def _sums(codes: Sequence[Sequence[int]], values: Sequence[int] = CODE_VALUES, step: int = 0) -> list[int]:
    columns = enumerate(zip(*codes, strict=True))
    return [sum(values[code] + step * place for code in column) for place, column in columns]


def _play(
    switch: Testbed,
    codes: Sequence[Sequence[int]],
    wanted: Sequence[int],
    when: str,
    chunk: int = 0,
    *,
    filled: bool = False,
) -> list[Output]:
    """Play a round of this level's packets, see `play_round`. `wanted` are the sums.

    filled: contributions are padded to Ethernet's 60 bytes.
    """

    def contribute(rank: int, each: Sequence[int]) -> list[Output]:
        frame = bytes(quantised_contribution(rank, each, chunk=chunk))
        return switch.send(worker_port(rank), pad_frame(frame) if filled else frame)

    return play_round(contribute, codes, when, wanted, Quantised, "sums", padding=_PADDING if filled else 0)


def looks_up(switch: Testbed) -> None:
    """Check the result of every code in every place, of one worker."""
    set_up(switch, 1)
    for first in range(len(CODE_VALUES)):
        codes = [[(first + place) % len(CODE_VALUES) for place in range(VALUES)]]
        _play(switch, codes, _sums(codes), f"codes {codes[0]} of one worker")


def any_table(switch: Testbed) -> None:
    """Check that the entries decide, and that a code without an entry is 0."""
    # Each place has a table of its own.
    set_up(switch, 2, _OTHER_VALUES, step=3)
    codes = _codes(2)
    when = f"a round with the table {_OTHER_VALUES} in place 0, and 3 more in each place after it"
    _play(switch, codes, _sums(codes, _OTHER_VALUES, step=3), when)
    switch.reload()
    set_up(switch, 2, CODE_VALUES[:8])
    # The handout's rule: a code without an entry counts as 0.
    short = (*CODE_VALUES[:8], *(0 for _ in range(8)))
    _play(switch, codes, _sums(codes, short), "a round with a table that has no entries for the codes from 8 on")


def adds(switch: Testbed) -> None:
    """Check several numbers of workers, several rounds, padded frames, and sums of 16 bits."""
    for workers in (1, 2, 3, 8):
        switch.reload()
        set_up(switch, workers)
        for number in range(3):
            codes = _codes(workers, seed=number)
            _play(switch, codes, _sums(codes), f"round {number + 1} of {workers} workers", number)
        codes = [[len(CODE_VALUES) - 1] * VALUES] * workers
        _play(switch, codes, _sums(codes), f"the largest code of {workers} workers")
    _play(switch, codes, _sums(codes), "a round of frames padded to 60 bytes", filled=True)
    switch.reload()
    set_up(switch, 8)
    # Eight workers' sums need 11 bits. Only a larger job tells sums of 16 bits from shorter ones.
    switch.set_default("MyIngress.job", "MyIngress.set_job", workers=_MOST_WORKERS)
    largest, answers = [len(CODE_VALUES) - 1] * VALUES, list[Output]()
    for number in range(_MOST_WORKERS):
        expect_nothing(answers, f"only {number} of {_MOST_WORKERS} workers had contributed")
        answers = switch.send(worker_port(number % 8), bytes(quantised_contribution(number, largest)))
    when = f"the largest code of {_MOST_WORKERS} workers, whose sums need 16 bits"
    expect_results(answers, range(8), _sums([largest] * _MOST_WORKERS), when, Quantised, "sums")


def result_packet(switch: Testbed) -> None:
    """Check that the RESULT has sums in place of codes, and the addresses of level 1."""
    set_up(switch, 2)
    codes = _codes(2)
    ethernet.expect_to_everybody(_play(switch, codes, _sums(codes), "a round", chunk=CHUNK), Quantised)


def other_frames(switch: Testbed) -> None:
    """Check that a packet that is no contribution of this level counts nothing and is not answered."""
    set_up(switch, 2)
    codes = _codes(2)
    switch.send(worker_port(0), bytes(quantised_contribution(0, codes[0])))
    header = Ether(src=worker_mac(1), dst=SWITCH_MAC, type=TYPE_QUANTISED)
    strange = (
        *(header / Quantised(rank=1, kind=kind, sums=[9] * VALUES) for kind in OTHER_KINDS),
        ethernet_contribution(1, [5] * VALUES),
    )
    for packet in strange:
        answers = switch.send(worker_port(1), bytes(packet))
        expect_nothing(answers, f"this is no contribution of this level: {summary(packet)}")
    answers = switch.send(worker_port(1), bytes(quantised_contribution(1, codes[1])))
    expect_results(answers, range(2), _sums(codes), "a round beside other frames", Quantised, "sums")


CASES = (
    Case("looks_up", "a code counts what the table has for it, in every place (rule 1)", 2, looks_up),
    Case("any_table", "the control plane's entries are the table; without an entry a code is 0 (rule 1)", 1, any_table),
    Case("adds", "sums of up to 8 workers, round after round, in 16 bits (rule 2)", 3, adds),
    Case("result_packet", "a RESULT has sums and no codes (rule 2)", 2, result_packet),
    Case("other_frames", "only contributions count (rule 3)", 1, other_frames),
)


def _summed(workers: Workers, switch: Testbed, vectors: Sequence[Sequence[float]], when: str) -> list[list[float]]:
    """Sum vectors on a fresh switch. Return the ranks' results, all equal, each as long as the vectors."""
    switch.reload()
    set_up(switch, len(vectors))
    outcomes = call_workers(workers, Network(switch, len(vectors)), vectors, when)
    for rank, outcome in enumerate(outcomes):
        lengths = f"{len(vectors[0])} floats, the same ones as rank 0; it returned {outcome[:9]}, {len(outcome)} in all"
        is_right = len(outcome) == len(vectors[0]) and outcome == outcomes[0]
        expect(is_right, f"{when}: all_reduce of rank {rank} had to return {lengths}")
    return outcomes


def exact_values(workers: Workers, switch: Testbed) -> None:
    """Check that a worker loses nothing of values in the table, in vectors of several lengths."""
    for length in (20, 3, 0):
        vectors = [
            [CODE_VALUES[(7 * rank + place) % len(CODE_VALUES)] * _STEP - 1 for place in range(length)]
            for rank in range(3)
        ]
        when = f"vectors of {length} values of the table"
        wanted = [sum(column) for column in zip(*vectors, strict=True)]
        for outcome in _summed(workers, switch, vectors, when):
            is_close = all(abs(got - exact) < 1e-6 for got, exact in zip(outcome, wanted, strict=True))
            expect(is_close, f"{when}: all_reduce had to return {wanted}; it returned {outcome}")


def neighbours(workers: Workers, switch: Testbed) -> None:
    """Check that a worker rounds a value to one of the two codes around it, and one outside the range to its end."""
    rng = random.Random(1)
    vectors = [[rng.uniform(-1.0, 1.0) for _ in range(200)] for _ in range(2)]
    for got, *values in zip(_summed(workers, switch, vectors, "random vectors")[0], *vectors, strict=True):
        low, high = (sum(_around(value)[side] for value in values) for side in range(2))
        expect(
            low - 1e-6 <= got <= high + 1e-6,
            f"the sum of {values} has to be between {low} and {high}, as each value becomes one of its two neighbours "
            f"in the table; all_reduce returned {got}",
        )
    outside = [[-3.0, 1.5, 1.0, -1.0]]
    got_outside = _summed(workers, switch, outside, "values outside of -1 to 1")[0]
    wanted = [-1.0, 1.0, 1.0, -1.0]
    is_close = all(abs(got - each) < 1e-6 for got, each in zip(got_outside, wanted, strict=True))
    expect(
        is_close,
        f"{outside[0]}: what is outside of -1 to 1 becomes the end, {wanted}; all_reduce returned {got_outside}",
    )


def _around(value: float) -> tuple[float, float]:
    """Return the neighbours of a value in the table, as floats."""
    position = (value + 1) / _STEP
    below = max(each for each in CODE_VALUES if each <= position)
    above = min(each for each in CODE_VALUES if each >= position)
    return below * _STEP - 1, above * _STEP - 1


def unbiased(workers: Workers, switch: Testbed) -> None:
    """Check that the mean of many roundings of a worker is the value, within Hoeffding's bound.

    A right worker fails with a probability of 1e-9 for each of two values.
    """
    count = 1600
    # Hoeffding: count independent roundings, each within one gap of the table, miss their mean by more with
    # probability _CHANCE.
    bound = _GAP * math.sqrt(math.log(2 / _CHANCE) / (2 * count))
    for value in (-0.95, 0.93):
        outcome = _summed(workers, switch, [[value] * count], f"{count} times {value}")[0]
        mean = sum(outcome) / count
        expect(
            abs(mean - value) <= bound,
            f"{count} times {value}: the mean of what comes back has to be within {bound:.4f} of it; it is {mean:.4f}. "
            "Round up with the probability that makes the expected value right.",
        )


WORKER_CASES = (
    Case("exact_values", "worker.py: values of the table come back exactly, at any length (rule 4)", 2, exact_values),
    Case("neighbours", "worker.py: a value becomes one of its neighbours in the table (rule 4)", 1, neighbours),
    Case("unbiased", "worker.py: rounding is right on average (rule 5)", 2, unbiased),
)
