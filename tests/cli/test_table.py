# SPDX-License-Identifier: Apache-2.0
"""`hopsum table`: what it prints against the library, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hopsum.codec import best_table, make_codec
from hopsum.codec.lookup_table import expected_nmse, pareto_front
from hopsum.codec.thc import LookupTableCodec
from hopsum_cli.main import main


def solve(capsys: pytest.CaptureFixture[str], bits: int, granularity: int, inverse: float) -> dict[str, object]:
    words = ["--bits", str(bits), "--granularity", str(granularity), "--truncation", f"1/{inverse}", "--json"]
    assert main(["table", "solve", *words]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


def test_solve_prints_the_published_findings(capsys: pytest.CaptureFixture[str]) -> None:
    answer = solve(capsys, 4, 17, 32)
    assert answer["table"] == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17]
    assert answer["mse"] == pytest.approx(0.01253, abs=6e-6)
    assert answer["t_p"] == pytest.approx(2.1539, abs=6e-5)


def test_solve_draws_the_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "solve", "--bits", "2", "--granularity", "8", "--truncation", "1/32"]) == 0
    text = capsys.readouterr().out
    assert [line.split("│")[2].strip() for line in text.splitlines() if line.startswith("│")] == ["0", "3", "5", "8"]
    assert "t_p 2.153875" in text
    assert "█" in text


@pytest.mark.parametrize(("workers", "feedback"), [(8, []), (8, ["--error-feedback"]), (16, [])])
def test_search_prints_the_front(capsys: pytest.CaptureFixture[str], workers: int, feedback: list[str]) -> None:
    words = ["--bits", "4", "--workers", str(workers), "--lane-bits", "8", *feedback]
    assert main(["table", "search", *words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    front = pareto_front(4, workers, 8, bool(feedback))
    assert [tuple(row["table"]) for row in report["front"]] == [point.table.values for point in front]
    assert [row["expected_nmse"] for row in report["front"]] == [point.expected_nmse for point in front]
    assert [row["workers_per_lane"] for row in report["front"]] == [point.workers_per_lane for point in front]
    chosen = [row for row in report["front"] if row["default"]]
    table = best_table(workers, error_feedback=bool(feedback))
    assert [(tuple(row["table"]), row["truncation"], row["t_p"]) for row in chosen] == [
        (table.values, pytest.approx(table.truncated), table.bound)
    ]
    assert (report["published"] is None) == (workers * 30 > 255)


def test_search_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "search", "--workers", "8"]) == 0
    text = capsys.readouterr().out
    (default,) = [line for line in text.splitlines() if "default" in line]
    assert f"{expected_nmse(best_table(8), 8):.4g}" in default
    assert "published" in text
    assert "g =  21  T = 0 3 5 6 7 8 9 10 11 12 13 14 15 16 18 21" in text
    assert main(["table", "search", "--workers", "16"]) == 0
    assert "does not fit: 16 * 30 > 255" in capsys.readouterr().out
    assert main(["table", "search", "--workers", "900", "--bits", "6", "--lane-bits", "16"]) == 0
    assert "--json prints the tables" in capsys.readouterr().out


@pytest.mark.parametrize(("codec", "contributors"), [("thc", 4), ("thc", 2), ("thc:bits=3", 4), ("thc:bits=2", 1)])
def test_show_prints_the_values_of_requantised_results(
    capsys: pytest.CaptureFixture[str], codec: str, contributors: int
) -> None:
    words = ["--codec", codec, "--workers", "4", "--contributors", str(contributors)]
    assert main(["table", "show", *words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    made = make_codec(codec, workers=4, backend="numpy")
    assert isinstance(made, LookupTableCodec)
    assert made.dither is not None
    assert made.dither.results is not None
    assert made.lookup == (*report["lanes"], *report["thresholds"])
    assert report["operation"] == f"LOOKUP_ADD_LOOKUP{made.result_bits}"
    steps = np.diff(report["levels"])
    assert report["levels"][0] == -report["t_p"] == -made.bound
    assert steps == pytest.approx(steps[0])
    values = np.array([each["values"] for each in report["classes"]])
    # Sums of few contributors do not reach the outer codes.
    reached = values.any(axis=0)
    assert (np.diff(values[:, reached]) > 0).all()
    own = made.dither.results.values[contributors, :, : 1 << made.result_bits]
    assert values * contributors * made.dither.unit / steps[0] == pytest.approx(own)
    energies = [each["least_energy"] for each in report["classes"]]
    assert energies == sorted(energies, reverse=True)
    assert (report["classes"][0]["share"], energies[-1]) == (1.0, 0)
    assert main(["table", "show", *words]) == 0
    text = capsys.readouterr().out
    assert f"results of {contributors} workers" in text
    # The lanes of the codes that are reached, in order and without a gap.
    rows = [line.split("│")[1:3] for line in text.split("results")[1].splitlines() if ".." in line]
    ends = [[int(end) for end in cell.strip().split("..")] for _, cell in rows]
    assert len(ends) == reached.sum()
    assert [first for first, _ in ends[1:]] == [last + 1 for _, last in ends[:-1]]
    assert ends[-1][1] == -ends[0][0] == contributors * max(report["lanes"])


def test_show_prints_the_table_of_stochastic_rounding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "show", "--workers", "8", "--codec", "thc:rounding=stochastic", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert tuple(report["lanes"]) == best_table(8).values
    assert report["expected_nmse"] == expected_nmse(best_table(8), 8)
    assert "classes" not in report


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["solve", "--granularity", "14", "--truncation", "1/32"],
            "granularity 14 for the 16 values of 4 bits: at least 15",
        ),
        (["solve", "--granularity", "30", "--truncation", "1"], "--truncation 1: a share below 1"),
        (["solve", "--granularity", "30", "--truncation", "0"], "--truncation 0"),
        (["solve", "--granularity", "30", "--truncation", "nan"], "--truncation nan"),
        (["solve", "--granularity", "30", "--truncation", "1/0"], "invalid share value: '1/0'"),
        (["solve", "--granularity", "30", "--truncation", "-1/512"], "expected one argument"),
        (["solve", "--granularity", "30", "--truncation", "0.999"], "fraction 0.999"),
        (
            ["solve", "--bits", "9", "--granularity", "600", "--truncation", "1/32"],
            "--bits: '9': a whole number of 1 to 8",
        ),
        (["search", "--workers", "18"], "take bits=3 (up to 36 workers), bits=2 (up to 85 workers)"),
        (["search", "--workers", "0"], "--workers: '0': a whole number of 1 or more"),
        (["search", "--workers", "8", "--lane-bits", "64"], "--lane-bits: '64': a whole number of 1 to 32"),
        (["show", "--workers", "18", "--codec", "thc:bits=3"], "18 workers with results of 3 bits"),
        (["show", "--workers", "4", "--codec", "fixed"], "codec fixed has no lookup table"),
        (["show", "--workers", "4", "--codec", "thc:teeth=3"], "teeth"),
        (["show", "--workers", "4", "--contributors", "5"], "--contributors: 5: 1 to 4"),
        ([], "required: solve|search|show"),
    ],
)
def test_bad_input_gets_one_message(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["table", *words])
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("error:") == 1
    assert captured.out == ""
