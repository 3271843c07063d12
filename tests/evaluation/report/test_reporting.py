# SPDX-License-Identifier: Apache-2.0
"""`hopsum report`: from arguments to files, and pages from the JSON alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hopsum_evaluation.experiment import NotRunError, Settings, Size
from hopsum_evaluation.report import reporting
from hopsum_evaluation.report.claims import Verdict
from hopsum_evaluation.report.reporting import SECTIONS

from ...support.printed import usage_error

pytestmark = pytest.mark.system


def raise_(error: BaseException | type[BaseException]) -> Callable[[Settings, object], dict[str, Any]]:
    def does(settings: Settings, tell: object) -> dict[str, Any]:
        raise error

    return does


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the cheapest section."""
    folder = tmp_path_factory.mktemp("report")
    assert reporting.main(["--size", "small", "--sections", "error", "--output-dir", str(folder), "--seed", "3"]) == 0
    return folder


@pytest.fixture
def report(written: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((written / "report.json").read_text())
    return found


def test_a_report_says_what_made_it(report: dict[str, Any]) -> None:
    assert (report["seed"], report["size"]) == (3, "small")
    assert re.fullmatch("[0-9a-f]{64}", report["p4_manifest_sha256"])
    assert report["versions"]["numpy"]
    assert report["machine"]["cores"] >= 1
    assert set(report["sections"]) == {"error"}


def test_the_page_follows_from_the_json_alone(written: Path, tmp_path: Path) -> None:
    assert reporting.main(["--read", str(written / "report.json"), "--output-dir", str(tmp_path)]) == 0
    files = {path.relative_to(written) for path in written.rglob("*.*")}
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")} == files - {Path("report.json")}
    assert {Path("images/error-bits-gradient.svg"), Path("csv/claims.csv"), Path("claims.md")} <= files
    for path in tmp_path.rglob("*.*"):
        assert path.read_bytes() == (written / path.relative_to(tmp_path)).read_bytes(), path.name


def test_a_changed_figure_changes_the_verdict(report: dict[str, Any]) -> None:
    before = {each.claim.name: each.verdict for each in reporting.view_and_judge(report, "error")[1]}
    assert before["homomorphic"] is Verdict.REPRODUCED
    report["sections"]["error"]["homomorphic"] = [1e-3, 1.1e-3, 1.2e-3]
    after = {each.claim.name: each.verdict for each in reporting.view_and_judge(report, "error")[1]}
    assert after["homomorphic"] is Verdict.NOT_REPRODUCED
    assert {name for name in after if after[name] is not before[name]} == {"homomorphic"}


def test_claims_of_what_was_not_asked_for_are_not_run(report: dict[str, Any]) -> None:
    part, judged = reporting.view_and_judge(report, "loss")
    assert (part.tables, part.plots) == ((), ())
    assert {each.reason for each in judged} == {"not asked for"}
    assert {each.verdict for each in judged} == {Verdict.NOT_RUN}
    assert len(judged) == len(SECTIONS["loss"][1].CLAIMS)


def test_a_section_that_cannot_run_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(settings: Settings, tell: object) -> dict[str, Any]:
        raise NotRunError("no such switch <here>")

    monkeypatch.setattr(SECTIONS["estimation"][1], "run", cannot)
    monkeypatch.setattr(SECTIONS["lossless"][1], "run", lambda *_: {"speed": []})
    made = reporting.run_sections(Settings(1, Size.SMALL), ("lossless", "estimation"), Console(stderr=True, quiet=True))
    assert made["sections"]["estimation"]["not_run"] == "no such switch <here>"
    assert made["sections"]["lossless"]["speed"] == []
    judged = reporting.view_and_judge(made, "estimation")[1]
    assert {each.reason for each in judged} == {"no such switch <here>"}


def test_a_run_that_was_stopped_leaves_its_finished_sections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SECTIONS["error"][1], "run", lambda *_: {"nmse": []})
    monkeypatch.setattr(SECTIONS["lossless"][1], "run", raise_(NotRunError("no package")))
    monkeypatch.setattr(SECTIONS["estimation"][1], "run", raise_(KeyboardInterrupt))
    arguments = ["--size", "small", "--sections", "error,lossless,estimation", "--output-dir", str(tmp_path)]
    assert reporting.main(arguments) == 130
    assert "--read shows them" in capsys.readouterr().err
    after = reporting.read_report(tmp_path / "report.json")
    assert set(after["sections"]) == {"error", "lossless"}
    assert after["seconds"] == pytest.approx(sum(each["seconds"] for each in after["sections"].values()), abs=0.1)


def test_a_section_that_keeps_what_it_has_ends_a_report_that_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SECTIONS["links"][1], "run", lambda *_: {"documents": [], "stopped": True})
    made = reporting.run_sections(Settings(1, Size.SMALL), ["links", "estimation"], Console(quiet=True))
    assert set(made["sections"]) == {"links"}


def test_infinity_becomes_null(tmp_path: Path) -> None:
    reporting.write_report(
        {"format": reporting.FORMAT, "sections": {}, "x": [1.5, float("nan"), {"y": float("inf")}]}, tmp_path / "r"
    )
    assert reporting.read_report(tmp_path / "r")["x"] == [1.5, None, {"y": None}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Expecting"),
        ("[]", "format"),
        ('{"format": 99}', "format"),
        (json.dumps({"format": reporting.FORMAT}), "format"),
        ('{"format": 1, "sections": {"x": {}}}', "sections x"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    assert reporting.main(["--read", str(tmp_path / "bad.json"), "--output-dir", str(tmp_path / "out")]) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--sections", "error,nonsense"], "nonsense"), (["--seed", "-1"], "seed"), (["--scale", "huge"], "huge")],
)
def test_arguments_that_make_no_sense(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in usage_error(capsys, reporting.main, *arguments)


def test_streams_differ_by_name_number_and_seed_and_nothing_else() -> None:
    settings = Settings(1, Size.SMALL)
    names = [("data",), ("loss",), ("batch",), ("codec",), ("data", 0), ("data", 1), ("data", 0, 1), ("data", 1, 0)]
    seeds = [settings.derive_seed(*name) for name in names] + [Settings(2, Size.SMALL).derive_seed("data")]
    assert len(set(seeds)) == len(seeds)
    assert seeds[0] == Settings(1, Size.FULL).derive_seed("data")
    assert all(0 <= seed < 1 << 63 for seed in seeds)
