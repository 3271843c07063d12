# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench training`: what it trains, what a file of an earlier call has, and a timed training of two workers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hopsum_evaluation.experiment import measure_apart
from hopsum_evaluation.training import accuracy_bench, training_bench
from hopsum_evaluation.training.accuracy import Trainings, train_all, trainings_unavailable
from hopsum_evaluation.training.accuracy_plan import Course, diloco_of
from hopsum_evaluation.training.time_to_target import is_ours

from ...support.printed import usage_error

Keep = Callable[[dict[str, Any]], None]


class MadeUp:
    """Trainings that end at once, up to a number of them, after which the command is interrupted."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.done: list[tuple[str, str, str]] = []
        """Placement, rate and scheme."""

    def __call__(self, _: object, given: Trainings, tell: object, keep: Keep) -> dict[str, Any]:
        course = given.course
        for rate in course.rates:
            for scheme in course.schemes:
                if (rate, scheme, 0) in given.done:
                    continue
                if len(self.done) == self.most:
                    raise KeyboardInterrupt
                self.done.append((given.placement, rate, scheme))
                bits_per_s = 1e6 * float(rate.removesuffix("mbit"))
                step_s, encode_s = (4.0, None) if scheme == "fp32" else (2.0, 0.25)
                keep({"placement": given.placement, "rate": rate, "bits_per_s": bits_per_s, "scheme": scheme,
                      "repeat": 0, "step_s": step_s, "compute_s": 1.5, "bytes_per_step": 5e6, "encode_s": encode_s,
                      "decode_s": encode_s})  # fmt: skip
        return {}


def run(monkeypatch: pytest.MonkeyPatch, path: Path, *arguments: str, most: int = 100) -> tuple[int, MadeUp]:
    made_up = MadeUp(most)
    monkeypatch.setattr(accuracy_bench, "trainings_unavailable", lambda: None)
    monkeypatch.setattr(accuracy_bench, "measure_apart", made_up)
    small = ("--rate", "1gbit,10gbit", "--schemes", "fp32,thc", "--output", str(path), "--device", "cpu")
    return training_bench.main([*small, *arguments]), made_up


@pytest.mark.system
def test_what_is_done_is_not_done_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    status, first = run(monkeypatch, path, most=3)
    assert status == 130
    status, second = run(monkeypatch, path)
    assert status == 0
    rates = ("1000mbit", "10000mbit")
    fabric = [("fabric", rate, scheme) for rate in rates for scheme in ("fp32", "thc")]
    assert first.done + second.done == fabric + [("hosts", rate, "thc") for rate in rates]
    text = " ".join(capsys.readouterr().out.split())
    assert "4 workers with 8 samples each" in text
    assert "fp32 1.00 4,000 - 1,500 - 40.0 - 5.00" in text
    assert "thc, hosts 2.00 2,000 - 1,500 250 40.0 250 5.00" in text
    status, third = run(monkeypatch, path, "--json")
    assert (status, third.done) == (0, [])
    assert json.loads(capsys.readouterr().out)["runs"] == json.loads(path.read_text())["runs"]


def test_a_table_fits_a_terminal_and_cuts_no_figure() -> None:
    schemes = {"fp32": 26_300.0, "two-shot:bits=8": 12_345.0, "thc:bits=3": 6_789.0, "low-rank-32": 4_321.0}
    runs = [
        {"placement": "hosts", "rate": "200mbit", "scheme": scheme, "repeat": repeat, "encode_s": 1.5, "decode_s": 2.5,
         "step_s": ms * (1 + repeat / 100) / 1e3, "compute_s": 1.234, "bytes_per_step": 1.234e9}
        for repeat in range(3) for scheme, ms in schemes.items()
    ]  # fmt: skip
    document = {
        "processors": "a processor each", "dilate": 1, "compute_s": 0.1, "rates_bits_per_s": [2e8], "model": "vgg16",
        "parameters": 138_357_544, "workers": 4, "batch": 1, "device": "CPU", "runs": runs,
    }  # fmt: skip
    printed = io.StringIO()
    training_bench.show(document, Console(file=printed, width=80))
    lines = printed.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "\u2026" not in printed.getvalue()
    row = next(line.split() for line in lines if line.strip().startswith("thc:bits=3, hosts"))
    # Mean of three runs, half of its interval: 67.89 * 4.303 / sqrt(3).
    assert row[2:] == ["3.87", "6,860", "169", "1,230", "1,500", "49,400", "2,500", "1,230"]


@pytest.mark.system
def test_a_file_with_other_trainings_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    run(monkeypatch, path)
    before = path.read_text()
    assert run(monkeypatch, path, "--batch", "2")[0] == 1
    assert f"{path} has trainings with batch 8, now 2" in capsys.readouterr().err
    assert path.read_text() == before
    path.write_text("[1]")
    assert run(monkeypatch, path)[0] == 1
    assert "has no trainings to continue" in capsys.readouterr().err


@pytest.mark.system
def test_without_a_gpu_there_is_none_to_compute_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run(monkeypatch, tmp_path / "found.json", "--device", "cuda")[0] == 1
    assert "finds no GPU" in capsys.readouterr().err
    assert not (tmp_path / "found.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schemes", "fp64"], "'fp64': one of fp32"),
        (["--schemes", "fp32,thc:bits=99"], "argument --schemes: thc with codes of 99 bits"),
        (["--placement", "moon"], "'moon': one of fabric"),
        (["--time", "10"], "'10' is no time"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in usage_error(capsys, training_bench.main, *arguments)


@pytest.mark.system
@pytest.mark.skipif(trainings_unavailable() is not None, reason=trainings_unavailable() or "")
def test_steps_are_counted_by_their_time_and_agents_tell_their_parts() -> None:
    schemes = (
        "fp32", "bf16", "powersgd-4", "thc", "low-rank-4", "uhc", "lossless", "two-shot", "diloco-2", "diloco-fp32-2",
    )  # fmt: skip
    course = Course("cnn", 0, 4, 0, {"200mbit": 1}, schemes, seconds=0.1)
    found = measure_apart(train_all, Trainings(2, course, (1,)), lambda *_: None)
    assert [run["scheme"] for run in found] == list(schemes)
    by_scheme = {run["scheme"]: run for run in found}
    elements = 1_012_426
    bits = {scheme: 8 * run["bytes_per_step"] / elements for scheme, run in by_scheme.items()}
    # Two ranks exchange halves, with the headers of segments. The parent shapes both directions of a link.
    assert 32 < bits["fp32"] < 36
    assert 16 < bits["bf16"] < 18
    assert bits["powersgd-4"] < 4
    # Of the matrices of the network, 32 x 9 has no factors. Small vectors have whole chunks.
    assert bits["low-rank-4"] < 2
    # A sum in each second step. DDP sums at the first settling step only where it is used.
    assert 16 < bits["diloco-fp32-2"] < 18
    # On a busy machine datagrams are sent again, and answered: a RESULT of 512 bytes and its headers for each.
    again = 8 * 586 * by_scheme["thc"]["retransmits"] / elements
    assert 4 < bits["thc"] < 6 + again
    for scheme, run in by_scheme.items():
        assert run["points"] == []
        assert run["step_s"] > 0.8 * bits[scheme] * elements / 200e6
        timed = is_ours(scheme) and not diloco_of(scheme).every
        assert (run["encode_s"] is not None) == (run["decode_s"] is not None) == timed
    for scheme in ("thc", "low-rank-4"):
        assert by_scheme[scheme]["encode_s"] > 0
        assert by_scheme[scheme]["decode_s"] > 0
