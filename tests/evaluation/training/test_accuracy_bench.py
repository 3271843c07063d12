# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench accuracy`: ratios of made-up trainings, and two workers that train."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from hopsum_evaluation.interval import interval
from hopsum_evaluation.training import accuracy_bench
from hopsum_evaluation.training.accuracy import Trainings
from hopsum_evaluation.training.accuracy_plan import MODELS, codec_of, low_rank_of
from hopsum_evaluation.training.time_to_target import BEST, is_ours, seconds_in_words, time_ratios

from ...support.printed import usage_error

OURS = "thc"
CNN = MODELS["cnn"]


def training(scheme: str, repeat: int, seconds: float | None, last: float = 0.95) -> dict[str, Any]:
    """Return a training that reaches the target after so many seconds, or never."""
    points = [[4, 0.1, 0.2], [8, 9.0, 0.5]]
    if seconds is not None:
        points[1:] = [[8, seconds, CNN.target], [12, 9.0, last]]
    run = {"model": "cnn", "scheme": scheme, "repeat": repeat, "points": points, "step_s": 0.1, "compute_s": 0.06}
    run |= {"rate": "200mbit", "placement": "hosts", "step_cpu_s": 0.03, "bytes_per_step": 4e6}
    return {**run, "reduce_s": None if scheme == "powersgd" else 0.05}


def trainings() -> list[dict[str, Any]]:
    runs = []
    for repeat, ours_s in enumerate((1.0, 2.0, 4.0)):
        runs += [
            training(OURS, repeat, ours_s),
            training("fp32", repeat, ours_s * (5 + repeat), 0.97),
            training("powersgd", repeat, ours_s * 1.5 if repeat else ours_s * 9),
            training("fp16", repeat, None if repeat == 1 else ours_s * 2),
        ]
    return runs


def test_ratios_are_of_the_same_seed_with_students_interval() -> None:
    found = time_ratios(CNN, trainings(), OURS)
    assert found["fp32"] == interval([5.0, 6.0, 7.0])
    assert isnan(found["fp16"].mean), "one seed missed the target"
    assert found[BEST] == interval([2.0, 1.5, 1.5]), "the fastest of those that reached it, seed by seed"
    alone = time_ratios(CNN, [run for run in trainings() if run["repeat"] == 0], OURS)
    assert (alone["fp32"].mean, alone["fp32"].low) == (5.0, None)


def test_a_target_that_was_missed_is_told_with_the_seeds() -> None:
    assert seconds_in_words(CNN, [training("fp16", 0, None), training("fp16", 1, 2.0)]) == "missed 1/2"
    missed = [training(OURS, 0, None), training("fp32", 0, 1.0)]
    assert isnan(time_ratios(CNN, missed, OURS)[BEST].mean)


def run(monkeypatch: pytest.MonkeyPatch, path: Path, *arguments: str) -> tuple[int, Trainings, dict[str, Any]]:
    """Run the command with made-up trainings; return its status, what it trained, and what the file had before."""
    asked: list[tuple[Trainings, dict[str, Any]]] = []

    def train(
        _: object, given: Trainings, tell: Callable[..., None], keep: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]:
        asked.append((given, json.loads(path.read_text())))
        for each in trainings():
            keep(each)
        return {}

    monkeypatch.setattr(accuracy_bench, "trainings_unavailable", lambda: None)
    monkeypatch.setattr(accuracy_bench, "measure_apart", train)
    status = accuracy_bench.main(["--output", str(path), *arguments])
    return status, *asked[0]


def test_figures_of_each_training_are_in_the_file_and_ratios_are_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    status, given, before = run(
        monkeypatch, path, "--seeds", "3", "--placement", "hosts", "--scale", "0.5", "--dilate", "2"
    )
    assert status == 0
    assert (before["ours"], before["runs"]) == (OURS, [])
    course = given.course
    assert (given.placement, len(given.seeds), course.rates, course.steps) == ("hosts", 3, {"200mbit": 3}, 32)
    assert course.schemes == ("fp32", "fp16", "powersgd", "two-shot:bits=4", "two-shot:bits=8", OURS)
    after = json.loads(path.read_text())
    assert after == {**before, "runs": after["runs"]}
    assert len(after["runs"]) == len(trainings())
    printed = capsys.readouterr().out
    text = " ".join(printed.split())
    best = interval([2.0, 1.5, 1.5])
    assert text.startswith(before["processors"])
    assert "dilated 2 times: one processor for each of 4 workers and 4 switches" in before["processors"]
    assert "dilated 2 times, convolutional network" in text
    assert given.dilate == 2.0
    assert "fp32 100 60.0 50.0 30.0 4.00" in text
    assert "powersgd 100 60.0 - 30.0 4.00" in text
    assert "fp16 100 60.0 50.0 30.0 4.00 missed 1/3 not reached" in text
    assert f"seed by seed: {best.mean:.2g} ({best.low:.2g} to {best.high:.2g})" in text
    assert max(map(len, printed.splitlines()[1:])) <= 80
    assert "\u2026" not in printed
    _, again, _ = run(monkeypatch, path, "--seeds", "3", "--placement", "hosts", "--scale", "0.5", "--dilate", "2")
    assert again.done == {(each["rate"], each["scheme"], each["repeat"]) for each in trainings()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "--seeds: '0': a whole number of 1 or more"),
        (["--scale", "2"], "argument --scale: '2': a number above 0, up to 1"),
        (["--others", "fp64"], "'fp64': one of fp32"),
        (["--others", "low-rank-0"], "'low-rank-0': one of fp32"),
        (["--others", "thc:bits=99"], "argument --others: thc with codes of 99 bits"),
        (["--others", "fp32,two-shot:bits=5"], "argument --others: two-shot with codes of 5 bits"),
        (["--codec", "low-rank-8:bits=99"], "argument --codec: thc with codes of 99 bits"),
        (["--codec", "two-shot"], "argument --codec: codec two-shot: its ranks add up"),
        (["--rate", "fast"], "'fast' is no rate"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in usage_error(capsys, accuracy_bench.main, *arguments)


@pytest.mark.parametrize(
    ("scheme", "rank", "codec"),
    [
        ("low-rank-8", 8, "thc"),
        ("low-rank-16:result_bits=8", 16, "thc:result_bits=8"),
        ("thc:bits=2", None, "thc:bits=2"),
        ("uhc", None, "uhc"),
        ("lossless", None, "lossless"),
        ("diloco-10", None, "thc"),
        ("diloco-10:bits=2", None, "thc:bits=2"),
    ],
)
def test_schemes_that_switches_sum(scheme: str, rank: int | None, codec: str) -> None:
    assert (low_rank_of(scheme), codec_of(scheme), is_ours(scheme)) == (rank, codec, True)
    assert accuracy_bench.scheme_argument(scheme) == accuracy_bench.switch_scheme_argument(scheme) == scheme
    for other in ("powersgd", "thc-ps", "two-shot", "two-shot:bits=8", "fp32", "diloco-fp32-10"):
        assert accuracy_bench.scheme_argument(other) == other
        assert not is_ours(other)
