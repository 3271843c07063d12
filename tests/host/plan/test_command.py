# SPDX-License-Identifier: Apache-2.0
"""`hopsum plan`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from hopsum.plan import PlanError, PlannedJob, shipped_costs
from hopsum.plan.step import AGGREGATORS
from hopsum_cli.main import main
from hopsum_evaluation.plan import module
from hopsum_evaluation.plan.forecast import CODECS, forecast
from hopsum_evaluation.plan.plot import draw
from hopsum_evaluation.plan.report import said_ranges
from hopsum_evaluation.plan.units import rate_bits_per_s, said_rate, said_time, size_bytes, time_s

pytestmark = pytest.mark.system
JOB = ("plan", "--elements", "25M", "--compute", "200ms", "--rate", "1gbit")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("hopsum plan")
    return last


def test_json_has_every_method_and_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *JOB)
    found = {each["method"]: each for each in report["predictions"]}
    alone = ["ring fp32", "ring fp16", "two-shot 4 bits", "two-shot 8 bits"]
    assert list(found) == [*alone, *(f"{a} {c}" for a in AGGREGATORS for c in CODECS)]
    for each in found.values():
        assert each["step_s"] == pytest.approx(0.2 + each["exposed_s"])
        assert each["speedup_over_ring_fp32"] == pytest.approx(found["ring fp32"]["step_s"] / each["step_s"])
        assert each["up_bytes_per_element"] == pytest.approx(each["up_bytes"] / 25e6)
        assert each["allreduce_s"] >= max(each["busy_s"].values())
    assert found["switch thc"]["binds"] == "link down"
    assert found["switch thc"]["speedup_over_ring_fp32"] > found["switch thc"]["speedup_over_ring_fp16"] > 1
    assert report["costs"]["encode_thc"]["origin"].startswith("`hopsum plan --calibrate`")
    assert report["job"]["workers"] == 4


def test_the_table_fits_eighty_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*JOB, "--overlap", "0.5"]) == 0
    text = capsys.readouterr().out
    table = text[: text.index("Predicted")]
    assert "…" not in table
    row = next(line for line in table.partition("\n server")[2].splitlines() if " thc " in line)
    assert row.split()[-2:] == ["server", "out"]
    assert "  thc:result_bits=6 " in table
    assert max(len(line.rstrip()) for line in table.splitlines()) <= 80
    assert "up to" in text
    assert "no method can be more than" in text
    assert "measured" in text


def test_a_wide_table_says_what_binds_behind_computing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["plan", "--bytes", "4MB", "--compute", "1s", "--codec", "thc", "--aggregator", "server"]) == 0
    text = capsys.readouterr().out
    assert "1,000,000 elements" in text
    assert "compute; server out" in text
    assert "uhc" not in text.partition("costs")[0]


@pytest.mark.parametrize(("against", "kind", "codec"), [("rate", "png", "thc"), ("workers", "svg", "fixed")])
def test_plots(capsys: pytest.CaptureFixture[str], tmp_path: Path, against: str, kind: str, codec: str) -> None:
    path = tmp_path / f"plan.{kind}"
    words = ("--plot", str(path), "--x-axis", against, "--codec", codec, "--aggregator", "switch")
    report = run_json(capsys, *JOB, *words)
    assert report["plots"] == [str(path)]
    if kind == "svg":
        assert path.read_text().count("<path") > 20
    else:
        pixels = imread(path)
        assert np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0).shape[0] > 50


def test_a_module_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan_test_models.py").write_text(
        "class Part:\n"
        "    def __init__(self, count, trained):\n"
        "        self.count, self.requires_grad = count, trained\n"
        "    def numel(self):\n"
        "        return self.count\n"
        "class Net:\n"
        "    def __init__(self, parts): self.parts = parts\n"
        "    def parameters(self): return iter(self.parts)\n"
        "def some(): return Net([Part(700, True), Part(50, False), Part(7, True)])\n"
        "def none(): return Net([])\n"
        "def broken(): raise ValueError('no weights here')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert module.module_elements("plan_test_models:some") == 707
    for reference, message in {
        "plan_test_models:none": "Net has no parameter with a gradient",
        "plan_test_models:broken": "ValueError: no weights here",
        "plan_test_models:absent": "AttributeError",
        "no_such_package_at_all:net": "ModuleNotFoundError",
        "plan_test_models": "package:factory is needed",
    }.items():
        with pytest.raises(PlanError, match=message):
            module.module_elements(reference)


def test_choices_say_bits_and_error_and_which_none_beats(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *JOB)
    found = {each["codec"]: each for each in report["choices"]}
    assert list(found) == ["thc", "thc:lane_bits=16", "thc:result_bits=6", "thc:bits=2"]
    assert [found[name]["busier_bits"] for name in found] == pytest.approx([8.03, 16.06, 6.03, 4.03], abs=0.01)
    assert found["thc"]["nmse"] == pytest.approx(0.0052, abs=5e-5)
    assert found["thc:result_bits=6"]["nmse"] == pytest.approx(0.0066, abs=5e-5)
    assert found["thc:bits=2"]["worker_nmse"] == pytest.approx(0.177, abs=5e-4)
    assert [name for name, each in found.items() if not each["on_front"]] == []
    many = run_json(capsys, *JOB, "--workers", "40")
    assert "thc:bits=2" in many["refused"]
    assert [each["codec"] for each in many["choices"]] == ["thc", "thc:lane_bits=16", "thc:result_bits=6"]


def test_an_option_that_a_codec_has_not_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *JOB, "--codec", "thc:colour=1", "--codec", "thc")
    assert "colour" in report["refused"]["thc:colour=1"]
    assert "codec 'thx'" in refused(capsys, *JOB, "--codec", "thx")


def test_fewer_bits_are_predicted_to_be_faster_on_slow_links(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *JOB[:-1], "200mbit", "--aggregator", "switch", "--codec", "thc", "--codec", "thc:bits=2")
    found = {each["method"]: each for each in report["predictions"]}
    plain, paired = found["switch thc"], found["switch thc:bits=2"]
    assert paired["down_bytes"] == pytest.approx(plain["down_bytes"] / 2, rel=0.02)
    assert paired["allreduce_s"] < 0.6 * plain["allreduce_s"] < found["two-shot 8 bits"]["allreduce_s"]


def test_a_torch_module_is_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "plan_test_layer.py").write_text("import torch\n\n\ndef make():\n    return torch.nn.Linear(30, 10)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    report = run_json(capsys, "plan", "--module", "plan_test_layer:make", "--compute", "5ms", "--codec", "fixed")
    assert report["job"]["elements"] == 30 * 10 + 10


def test_more_workers_than_a_lane_holds_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *JOB, "--workers", "64")
    assert {each["method"].split()[1] for each in report["predictions"]} >= {"fp32", "fp16", "thc", "lossless"}
    assert set(report["refused"]) <= set(CODECS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--compute TIME is needed"),
        (("--compute", "1s"), "how large are the gradients?"),
        (("--elements", "25M", "--compute", "200"), "'200' is no time; like 120ms"),
        (("--elements", "many", "--compute", "1s"), "'many' is no number"),
        (("--elements", "25M", "--bytes", "3MB"), "not allowed with"),
        ((*JOB[1:], "--rate", "10"), "'10' is no rate; like 1gbit"),
        ((*JOB[1:], "--rate", "0gbit"), "link_bits_per_s: 0"),
        ((*JOB[1:], "--workers", "65"), "workers: 65, where 2 to 64"),
        ((*JOB[1:], "--overlap", "2"), "overlap: 2, where 0 to 1"),
        ((*JOB[1:], "--racks", "3"), "4 workers do not stand in 3 racks"),
        ((*JOB[1:], "--codec", "gzip"), "codec 'gzip': one of thc, uhc, fixed, lossless"),
        ((*JOB[1:], "--plot", "plan.txt"), "a name that ends in .png"),
        ((*JOB[1:], "--plot", "no/such/folder/plan.png"), "there is no folder"),
        ((*JOB[1:], "--costs", "no-such-file.json"), "no-such-file.json: No such file"),
        ((*JOB[1:], "--costs", "a.json", "--calibrate", "b.json"), "give one of them"),
        (("--calibrate", "no/such/folder/costs.json"), "a file in an existing folder is needed"),
        (("--calibrate", "costs.json", "--runs", "0"), "at least 1"),
        (("--module", "nothing", "--compute", "1s"), "package:factory is needed"),
        (("paper", "--minibatch", "0s"), "minibatch_s: 0, where more than 0"),
        (("paper", "--plot", "paper.txt"), "a name that ends in .png"),
    ],
)
def test_bad_input_has_one_message(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, "plan", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_every_panel_of_the_plot_names_its_aggregator() -> None:
    job = PlannedJob(elements=1_000_000, workers=4, compute_s=0.2, link_bits_per_s=1e9)
    figure = draw(forecast(job, shipped_costs(), ["thc"], AGGREGATORS), "rate")
    titles = [panel.get_title() for panel in figure.axes]
    assert len(set(titles)) == len(AGGREGATORS)
    assert "rings" not in titles


def test_plots_without_matplotlib_name_the_extra(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopsum_evaluation.plan.arguments.find_spec", lambda _: None)
    assert "hopsum[plot]" in refused(capsys, *JOB, "--plot", str(tmp_path / "plan.png"))


def test_costs_of_a_file_are_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"encode_thc": {"seconds": 1e-6, "origin": "a slow machine"}}))
    report = run_json(capsys, *JOB, "--codec", "thc", "--costs", str(path))
    found = {each["method"]: each for each in report["predictions"]}
    assert found["switch thc"]["allreduce_binds"] == "worker cpu"
    assert found["switch thc"]["allreduce_s"] > 25


def test_a_file_that_is_no_text_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert "can't decode" in refused(capsys, *JOB, "--costs", str(path))


def test_costs_are_used_as_soon_as_they_are_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "costs.json"

    def measure(words: list[str]) -> int:
        assert words == ["--output", str(path), "--runs", "2", "--seed", "1"]
        path.write_text(json.dumps({"chunk": {"seconds": 1e-3, "origin": "measured"}}))
        return 0

    monkeypatch.setattr("hopsum_evaluation.plan.calibrate.main", measure)
    report = run_json(capsys, *JOB, "--codec", "thc", "--calibrate", str(path), "--runs", "2")
    assert report["costs"]["chunk"] == {"seconds": 1e-3, "origin": "measured"}
    assert main(["plan", "--calibrate", str(path), "--runs", "2"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("preset", [["paper"], ["--preset", "homomorphic-parameter-compression"]])
def test_the_paper(capsys: pytest.CaptureFixture[str], tmp_path: Path, preset: list[str]) -> None:
    path = tmp_path / "paper.png"
    report = run_json(capsys, "plan", *preset, "--plot", str(path))
    assert path.stat().st_size > 20_000
    assert all(claim["reproduced"] for claim in report["claims"])
    assert report["job"]["weights_bytes"] == 233e6
    assert report["speedup"]["0.2"][15] > report["speedup"]["0.5"][15] > report["speedup"]["1"][15]
    thc = next(each for each in report["codecs"] if each["codec"] == "thc")
    assert thc["ratio_down"] == pytest.approx(26.9 / 100, rel=0.01)  # MB that the links of the benchmark counted
    assert thc["overhead"] > 1
    slack = thc["overhead"] + thc["ratio"] * 16**2 * 233e6 / (200 * 0.2 * 125e6)
    assert thc["least_slack"] == pytest.approx(slack)
    gzip = report["gzip_measured"]
    assert gzip["size_bytes"] == 2 * 32 * 10_067 * 4
    assert 0.5 < gzip["compressed_bytes"] / gzip["size_bytes"] < 1
    assert gzip["scaled"]["compress_s"] == pytest.approx(gzip["compress_s"] * 233e6 / gzip["size_bytes"])


def test_a_statement_that_another_minibatch_contradicts_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "paper", "--minibatch", "1s"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "not reproduced" in text
    assert "C < 233 ms" in text


def test_units() -> None:
    assert (rate_bits_per_s("2.5gbit"), rate_bits_per_s("100 Mbit")) == (2.5e9, 1e8)
    assert (time_s("120ms"), time_s("3us"), size_bytes("233MB"), size_bytes("1KiB")) == (0.12, 3e-6, 233e6, 1024)
    assert [said_rate(rate) for rate in (1e9, 999.9e6, 2e8, 1e5)] == [
        "1 Gbit/s",
        "1 Gbit/s",
        "200 Mbit/s",
        "100 kbit/s",
    ]
    assert [said_time(each) for each in (0, 1.2345, 0.0005, 12345)] == ["0 s", "1.23 s", "500 us", "12,345 s"]
    assert said_ranges([]) == "none"
    assert said_ranges([(1e5, 1e13)]) == "all"
    assert said_ranges([(1e5, 2e9), (1e10, 1e13)]) == "up to 2 Gbit/s, from 10 Gbit/s"
    assert said_ranges([(1e7, 2e9)]) == "from 10 Mbit/s to 2 Gbit/s"
    assert math.isclose(rate_bits_per_s(f"{1e9:g}bit"), 1e9)
