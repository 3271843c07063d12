# SPDX-License-Identifier: Apache-2.0
"""The order of phases is a function of what was submitted: whatever comes when, all ranks make the same stream."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from hopsum.agent.phase_order import append, end_group, next_in_stream
from hopsum.agent.task import Task
from hopsum.agent.vector import HostVector
from hopsum.codec import ErrorFeedback

X = np.ones(1, np.float32)


def task(number: int, more: bool, feedback: ErrorFeedback | None = None) -> Task:
    return Task(HostVector(X, feedback), (), "raise", more, number=number)


def stream_by_rule(phases: list[int], more: list[bool]) -> list[tuple[int, int]]:
    """O1 and O2, said another way: (all-reduce, phase) in the order of the stream."""
    stream: list[tuple[int, int]] = []
    for number, count in enumerate(phases):
        if (number, 0) not in stream:
            stream.append((number, 0))
        if more[number]:
            stream.append((number + 1, 0))
        stream += [(number, phase) for phase in range(1, count)]
    return stream


@dataclass
class Rank:
    """Plays an engine with chance for a clock."""

    phases: list[int]
    more: list[bool]
    known: list[bool]
    """Per all-reduce, whether its last phase says so when it is sent."""
    rng: random.Random
    taken_back: list[bool]
    """Per all-reduce, whether the program ends the group after it."""
    overlap: bool = True
    tasks: list[Task] = field(default_factory=list)
    stream: list[tuple[int, int]] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=dict)

    def play(self) -> list[tuple[int, int]]:
        program = [
            (number, what) for number, back in enumerate(self.taken_back) for what in ("submit", "end")[: 1 + back]
        ]
        while program or self.tasks:
            if program and self.rng.random() < 0.3:
                number, what = program.pop(0)
                append(self.tasks, task(number, self.more[number])) if what == "submit" else end_group(self.tasks)
            following, _ = next_in_stream(self.tasks, overlap=self.overlap)
            if following is not None and self.rng.random() < self._readiness(following):
                self._send(following)
            in_flight = [each for each in self.tasks if each.waiting]
            if in_flight and self.rng.random() < 0.3:
                self._results(in_flight[0] if self.rng.random() < 0.7 else self.rng.choice(in_flight))
        return self.stream

    def _readiness(self, each: Task) -> float:
        """Return the probability that a task can send its next phase now."""
        if not each.waiting:
            return 0.7
        # Codes behind ranges that are on their way.
        return 0.3 * (self.phases[each.number] == 2 and self.sent[each.number] == 1)

    def _send(self, each: Task) -> None:
        count = self.sent.get(each.number, 0)
        self.stream.append((each.number, count))
        self.sent[each.number] = count + 1
        each.handles, each.begun, each.waiting = [count], True, True
        each.fully_submitted = self.known[each.number] and count + 1 == self.phases[each.number]

    def _results(self, each: Task) -> None:
        each.waiting = False
        if self.sent[each.number] == self.phases[each.number]:
            each.fully_submitted = True
            self.tasks.remove(each)


@pytest.mark.parametrize("seed", range(60))
def test_every_timing_makes_the_same_stream(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 8)
    phases = [rng.randint(1, 3) for _ in range(count)]
    more = [rng.random() < 0.5 for _ in range(count)]
    taken_back = [rng.random() < 0.3 for _ in range(count - 1)] + [True]
    known = [rng.random() < 0.7 for _ in range(count)]
    kept = [promised and not back for promised, back in zip(more, taken_back, strict=True)]
    expected = stream_by_rule(phases, kept)
    for _ in range(5):
        assert Rank(phases, more, known, rng, taken_back).play() == expected
    apart = [(number, phase) for number, each in enumerate(phases) for phase in range(each)]
    assert Rank(phases, more, known, rng, taken_back, overlap=False).play() == apart


def test_the_examples_of_the_module() -> None:
    assert stream_by_rule([2, 2, 2], [False] * 3) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert stream_by_rule([2, 2, 2], [True, True, False]) == [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (2, 1)]
    assert stream_by_rule([2, 2, 2], [True, False, False]) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


def test_a_promise_that_is_not_kept_is_told() -> None:
    alone = task(0, more=True)
    assert next_in_stream([alone], overlap=True) == (alone, False)
    alone.handles, alone.begun = [1], True
    assert next_in_stream([alone], overlap=True) == (None, True)
    assert next_in_stream([alone], overlap=False) == (alone, False)


def test_a_feedback_serves_one_at_a_time() -> None:
    feedback = ErrorFeedback(1)
    first, second, third = task(0, False, feedback), task(1, False, feedback), task(2, False)
    first.handles, first.begun, first.fully_submitted = [1], True, True
    assert next_in_stream([first, second, third], overlap=True) == (None, False)  # and nothing overtakes it
    assert next_in_stream([second, third], overlap=True) == (second, False)
