# SPDX-License-Identifier: Apache-2.0
"""The choice of a method: trials on clocks that say how long a step takes by each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from hopsum.torch import HopsumState
from hopsum.torch.low_rank import usual_rank
from hopsum.torch.method_choice import (
    COUNTED_STEPS,
    MEASURED_STEPS,
    PROCESS_GROUP,
    SETTLING_STEPS,
    WATCHED_STEPS,
    AveragingMethod,
    MethodChoice,
)

from ...support.clock import FakeClock
from ..agent.cluster import PATIENT, Cluster

CODEC = AveragingMethod("thc", compresses=True)
GROUP = AveragingMethod(PROCESS_GROUP, compresses=False)
LOW_RANK = AveragingMethod("low rank 8", compresses=True, factors=True, least_delivered=0.25)
EACH = SETTLING_STEPS + COUNTED_STEPS
TRIAL = 3 * EACH + MEASURED_STEPS
"""Steps of a trial in which low rank is the fastest."""


class Training:
    """Steps of one rank that take as long as their method says."""

    def __init__(self, seconds: Mapping[str, float], delivered: float = 1.0, **options: object) -> None:
        self.seconds, self.delivered, self.clock = dict(seconds), delivered, FakeClock()
        self.agreed = 0
        methods = [each for each in (CODEC, GROUP, LOW_RANK) if each.name in seconds]
        options = {"is_ready": lambda: True, "tells": True, **options}
        self.choice = MethodChoice(methods, self._agree, clock=self.clock, **options)  # type: ignore[arg-type]
        self.wait_s = 0.0

    def _agree(self, own: list[float]) -> list[float]:
        self.agreed += 1
        return own

    def steps(self, count: int) -> list[str]:
        """Take steps, and return the methods that they went by."""
        went = []
        for _ in range(count):
            self.choice.begin_step(self.wait_s, self.delivered)
            went.append(self.choice.method.name)
            self.wait_s = self.seconds[went[-1]] / 2
            self.clock.now_s += self.seconds[went[-1]]
        return went


@pytest.fixture(autouse=True)
def nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    # An earlier test may have set the level of all of hopsum.
    caplog.set_level(logging.WARNING, "hopsum.torch.method_choice")


@pytest.mark.parametrize("fastest", [CODEC, GROUP, LOW_RANK])
def test_the_fastest_method_stays(fastest: AveragingMethod, capsys: pytest.CaptureFixture[str]) -> None:
    training = Training({"thc": 3.0, PROCESS_GROUP: 3.0, "low rank 8": 3.0} | {fastest.name: 2.0})
    measured = MEASURED_STEPS if fastest is LOW_RANK else 0
    went = training.steps(3 * EACH + measured + 10)
    assert went == ["thc"] * EACH + [PROCESS_GROUP] * EACH + ["low rank 8"] * (EACH + measured) + [fastest.name] * 10
    assert training.agreed == 3 * EACH + measured + 1, (
        "ranks tell each other the times of each step of the trial, then none"
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert f"2000.0 ms by {fastest.name}" in line
    assert line.endswith(f"From here on gradients are averaged by {fastest.name}")
    assert [each.step_s for each in training.choice.times] == [
        2.0 if each is fastest else 3.0 for each in (CODEC, GROUP, LOW_RANK)
    ]


def test_a_method_that_is_far_too_slow_is_given_up_early() -> None:
    training = Training({"thc": 1.0, PROCESS_GROUP: 60.0, "low rank 8": 2.0})
    assert training.steps(2 * EACH + 4) == ["thc"] * EACH + [PROCESS_GROUP] * 3 + ["low rank 8"] * EACH + ["thc"]


def test_one_slow_step_decides_nothing() -> None:
    training = Training({"thc": 1.0, PROCESS_GROUP: 0.5})
    training.steps(EACH + 2)
    training.clock.now_s += 100.0
    assert training.steps(EACH)[-1] == PROCESS_GROUP
    assert training.choice.times[1].step_s == 0.5


def test_low_rank_stays_only_where_it_delivers_enough(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training({"thc": 3.0, PROCESS_GROUP: 4.0, "low rank 8": 1.0}, delivered=0.2)
    assert training.steps(TRIAL + 1)[-1] == "thc"
    assert "low rank 8 delivers 0.20 of a gradient's energy in a step, and 0.25 is the least" in capsys.readouterr().err
    training = Training({"thc": 3.0, PROCESS_GROUP: 4.0, "low rank 8": 1.0}, delivered=0.3)
    assert training.steps(TRIAL + 1)[-1] == "low rank 8"


@pytest.mark.parametrize("seconds", [0.9, 1.1])
def test_the_energy_is_measured_after_the_counted_steps_where_low_rank_is_fastest(seconds: float) -> None:
    training, measured = Training({"thc": 1.0, PROCESS_GROUP: 1.0, "low rank 8": seconds}), []
    for _ in range(TRIAL + WATCHED_STEPS):
        training.steps(1)
        measured.append(training.choice.measures_delivered)
    looked_at = [*range(3 * EACH, TRIAL), *range(TRIAL + WATCHED_STEPS - MEASURED_STEPS, TRIAL + WATCHED_STEPS)]
    assert [number for number, each in enumerate(measured) if each] == (looked_at if seconds < 1 else [])


def test_low_rank_that_delivers_too_little_later_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training({"thc": 3.0, PROCESS_GROUP: 4.0, "low rank 8": 1.0}, delivered=0.3)
    assert training.steps(TRIAL + WATCHED_STEPS)[-1] == "low rank 8"
    training.delivered = 0.1
    went = training.steps(WATCHED_STEPS + TRIAL + 2)
    assert "low rank 8 delivers 0.10 of a gradient's energy in a step: all methods are tried again" in (
        capsys.readouterr().err
    )
    assert went[-1] == "thc"


def test_numbers_that_are_no_numbers_leave_low_rank_out() -> None:
    training = Training({"thc": 3.0, PROCESS_GROUP: 4.0, "low rank 8": 1.0}, delivered=float("nan"))
    assert training.steps(TRIAL + 1)[-1] == "thc"


def test_the_trial_waits_for_compiled_codecs() -> None:
    ready = [False]
    training = Training({"thc": 2.0, PROCESS_GROUP: 1.0}, is_ready=lambda: ready[0])
    assert training.steps(30) == ["thc"] * 30
    ready[0] = True
    assert training.steps(2 * EACH + 1) == ["thc"] * EACH + [PROCESS_GROUP] * (EACH + 1)


@pytest.mark.parametrize(("factor", "again"), [(1.0, False), (1.9, False), (2.5, True), (0.4, True), (0.6, False)])
def test_all_methods_are_tried_again_where_steps_wait_twice_or_half(
    factor: float, again: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training({"thc": 2.0, PROCESS_GROUP: 1.0})
    training.steps(2 * EACH + 1 + WATCHED_STEPS)
    training.seconds[PROCESS_GROUP] *= factor
    went = training.steps(WATCHED_STEPS + 2 * EACH + 2)
    assert ("all methods are tried again" in capsys.readouterr().err) == again
    assert went.count("thc") >= EACH if again else set(went) == {PROCESS_GROUP}
    assert went[-1] == ("thc" if factor > 2 else PROCESS_GROUP)


@pytest.mark.parametrize("waits_s", [(0.001, 0.05), (0.5, 5.0)])
def test_steps_that_hardly_wait_start_no_trial_nor_does_an_ended_communicator(waits_s: tuple[float, float]) -> None:
    training = Training({"thc": 2.0, PROCESS_GROUP: 1.0}, has_ended=lambda: waits_s[1] > 1)
    training.steps(2 * EACH + 1)
    for wait_s in waits_s:
        for _ in range(WATCHED_STEPS + 5):
            training.choice.begin_step(wait_s)
            assert training.choice.method is GROUP


def test_the_wait_of_a_trial_in_which_ranks_begin_together_is_no_measure() -> None:
    training = Training({"thc": 2.0, PROCESS_GROUP: 1.0})
    training.steps(2 * EACH + 1)
    for _ in range(2 * WATCHED_STEPS + 5):
        training.choice.begin_step(2.0)
        assert training.choice.method is GROUP


@pytest.mark.parametrize("ranks", [2, 3, 6, 7, 10])
def test_a_trial_begins_whatever_the_number_of_ranks(ranks: int) -> None:
    """Six times 1/6, one added after the other, is less than 1."""

    def agree(own: list[float]) -> list[float]:
        means = []
        for each in own:
            total = 0.0
            for _ in range(ranks):
                total += each / ranks
            means.append(total)
        return means

    clock = FakeClock()
    choice = MethodChoice([CODEC, GROUP], agree, is_ready=lambda: True, clock=clock)
    for _ in range(2 * EACH + 1):
        choice.begin_step()
        clock.now_s += 1.0
    assert not choice.is_trying


def test_a_comparison_tells_all_times_and_leaves_the_method(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training({"thc": 3.0, PROCESS_GROUP: 1.0}, counted_steps=2, decides=False)
    assert training.steps(13) == ["thc"] * 5 + [PROCESS_GROUP] * 5 + ["thc"] * 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "a step takes 3000.0 ms by thc, 1000.0 ms by process group (medians of 2 steps" in line
    assert "gradients are averaged by thc: HOPSUM_COMPARE only measures" in line


def test_rank_0_alone_tells_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[list[str], bool]] = []

    def choice(methods: list[AveragingMethod], *_: object, tells: bool, **__: object) -> None:
        made.append(([each.name for each in methods], tells))

    monkeypatch.setattr("hopsum.torch.state.MethodChoice", choice)
    monkeypatch.setattr("hopsum.torch.state.group_of", lambda *_: SimpleNamespace(size=lambda: 2))
    with ExitStack() as stack:
        for agent in Cluster(stack, 2).agents("thc", PATIENT):
            HopsumState(agent, nn.Linear(400, 300), method="auto")
            HopsumState(agent, nn.Linear(40, 30), method="auto")  # factors of rank 32 would be larger
            HopsumState(agent, nn.Linear(40, 30), method="auto", low_rank=2)
    for told, tells in zip(made, [True] * 3 + [False] * 3, strict=True):
        assert told[1] is tells
    assert [told[0] for told in made[:3]] == [
        ["thc", PROCESS_GROUP, "low rank 32"],
        ["thc", PROCESS_GROUP],
        ["low rank 2", PROCESS_GROUP],
    ]


def test_the_rank_follows_from_the_kind_of_the_model() -> None:
    """A network for images has large matrices behind its filters; a transformer for images has filters of patches."""
    filters, matrix, bias = torch.empty(64, 64, 3, 3), torch.empty(600, 600), torch.empty(7)
    assert usual_rank([filters, matrix]) == 8
    assert usual_rank([filters, matrix, torch.empty(600, 1200)]) == 32
    assert usual_rank([bias]) == 32
    assert usual_rank([matrix] * 9) == 32
    # The convolutional network of the evaluation, of which 0.2 % are filters, and a transformer for images.
    behind = [torch.empty(800, 12544, device="meta"), torch.empty(10, 800)]
    assert usual_rank([torch.empty(32, 1, 3, 3), torch.empty(64, 32, 3, 3), *behind, bias]) == 8
    places = torch.empty(1, 197, 768, device="meta")
    assert usual_rank([torch.empty(768, 3, 16, 16), places, *[torch.empty(768, 3072, device="meta")] * 40]) == 32
