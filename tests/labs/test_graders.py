# SPDX-License-Identifier: Apache-2.0
"""The graders of programs and workers: solutions pass, what breaks a rule is found; `hopsum lab` as typed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from hopsum_labs import workers
from hopsum_labs.grading import (
    COMPILER,
    CompiledProgram,
    Verdict,
    compile_program,
    compiled_solution,
    grade,
    grade_worker,
)
from hopsum_labs.lab_command import main
from hopsum_labs.levels import LEVELS, PROGRAM, WORKER, Level
from hopsum_labs.packets import differences
from hopsum_labs.rule_checks import LabError

from ..support.printed import usage_error
from . import edited, mutants

EVERY_LEVEL = pytest.mark.parametrize("level", LEVELS.values(), ids=lambda level: level.word)


def graded(name: str, folder: Path, only: str | None = None) -> dict[str, Verdict]:
    """Return the verdict of every case, or of one, on a recorded program."""
    level = LEVELS[name.partition("/")[0]]
    cases = [case for case in level.cases() if only in (None, case.name)]
    verdicts = grade(cases, mutants.write_recorded(name, folder))
    return {verdict.case.name: verdict for verdict in verdicts}


@EVERY_LEVEL
def test_the_solution_keeps_every_rule(level: Level) -> None:
    reasons = {verdict.case.name: verdict.reason for verdict in grade(level.cases(), compiled_solution(level))}
    assert reasons == dict.fromkeys(reasons, "")


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: f"{mutant.level}-{mutant.name}")
def test_a_broken_rule_is_found(mutant: mutants.Mutant, tmp_path: Path) -> None:
    verdict = graded(f"{mutant.level}/{mutant.name}", tmp_path, mutant.breaks)[mutant.breaks]
    assert verdict.reason
    assert verdict.points == 0


@pytest.mark.parametrize("program", edited.EDITED, ids=lambda program: f"{program.level}-{program.name}")
def test_a_broken_rule_is_found_in_edited_programs(program: edited.Edited, tmp_path: Path) -> None:
    cases = [case for case in LEVELS[program.level].cases() if case.name == program.breaks]
    (verdict,) = grade(cases, edited.write_edited(program, tmp_path))
    assert verdict.reason
    assert "\n" not in verdict.reason
    assert verdict.points == 0


@EVERY_LEVEL
def test_every_rule_has_a_program_that_breaks_it(level: Level) -> None:
    broken = {mutant.breaks for mutant in mutants.MUTANTS if mutant.level == level.word}
    assert broken == {case.name for case in level.cases()}


@EVERY_LEVEL
def test_every_rule_of_a_handout_has_a_case(level: Level) -> None:
    rules = (level.exercise / "README.md").read_text().partition("\n## The rules\n")[2].partition("\n## ")[0]
    named = [re.findall(r"\d+", case.rule.rpartition("(rule")[2]) for case in (*level.cases(), *level.worker_cases())]
    assert all(named)
    assert {number for numbers in named for number in numbers} == set(re.findall(r"^(\d+)\. ", rules, re.MULTILINE))


def test_a_right_program_may_have_names_of_its_own(tmp_path: Path) -> None:
    """The names of parameters and headers are in the names of keys."""
    reasons = {name: verdict.reason for name, verdict in graded(mutants.RENAMED, tmp_path).items()}
    assert reasons == dict.fromkeys(reasons, "")


def test_a_field_that_was_changed_is_shown() -> None:
    packet = Ether() / IP(ttl=64) / UDP()
    other = Ether(bytes(packet))
    other[IP].ttl = 63
    assert differences(bytes(packet), bytes(other)) == "IP ttl 63 in place of 64"
    assert differences(bytes(packet), bytes(packet)[:-1]).endswith("41 bytes in place of 42, or another payload")


@EVERY_LEVEL
def test_a_skeleton_earns_nothing(level: Level, tmp_path: Path) -> None:
    verdicts = graded(f"{level.word}/{mutants.SKELETON}", tmp_path)
    assert {name: verdict.points for name, verdict in verdicts.items()} == dict.fromkeys(verdicts, 0)


def test_the_recorded_programs_are_those_of_the_sources() -> None:
    assert mutants.recorded()["sources"] == mutants.hashes(), "run `cd tests && python -m labs.mutants`"


@EVERY_LEVEL
def test_handouts_promise_the_points_of_the_cases(level: Level) -> None:
    overview = (Path(__file__).parents[2] / "labs" / "README.md").read_text()
    row = next(line for line in overview.splitlines() if line.startswith(f"| {level.word} "))
    assert row.rstrip("| ").endswith(f" {level.points}")


def test_a_program_without_the_table_says_which_is_missing(tmp_path: Path) -> None:
    udp, solution = LEVELS["udp"], compiled_solution(LEVELS["ethernet"])
    reasons = [verdict.reason for verdict in grade(udp.cases(), solution)]
    assert all("set_job" in reason for reason in reasons)


def test_a_table_that_is_never_applied_is_named(tmp_path: Path) -> None:
    reasons = [verdict.reason for verdict in graded(f"udp/{mutants.SKELETON}", tmp_path).values()]
    assert all("has no table MyIngress.forward" in reason and "apply it" in reason for reason in reasons)


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "aggregate.json"
    broken.write_text("{}")
    level = LEVELS["ethernet"]
    with pytest.raises(LabError, match=r"the switch does not load .*aggregate\.json"):
        list(grade(level.cases(), CompiledProgram(broken, compiled_solution(level).p4info)))


def test_without_a_compiler_the_message_says_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match=f"{COMPILER} is not on PATH.*packages.*--solution"):
        compile_program(LEVELS["udp"].solution / f"{PROGRAM}.p4", tmp_path)


@pytest.fixture
def compiler() -> None:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not on PATH")


@pytest.mark.usefixtures("compiler")
@EVERY_LEVEL
def test_skeleton_and_solution_compile(level: Level, tmp_path: Path) -> None:
    for folder in (level.exercise, level.solution):
        made: Any = compile_program(folder / f"{PROGRAM}.p4", tmp_path)
        assert made.program.is_file()


@pytest.mark.usefixtures("compiler")
def test_a_compiler_error_is_shown(tmp_path: Path) -> None:
    source = tmp_path / f"{PROGRAM}.p4"
    source.write_text("header {")
    with pytest.raises(LabError, match="syntax error"):
        compile_program(source, tmp_path)


WITH_A_WORKER = [level for level in LEVELS.values() if level.worker_cases()]
WORKERS_EVERY_LEVEL = pytest.mark.parametrize("level", WITH_A_WORKER, ids=lambda level: level.word)
NEVER_S = 2.0
"""Seconds that a worker gets here which would wait for ever."""


def reasons(level: Level, worker: Path) -> str:
    return " ".join(filter(None, (verdict.reason for verdict in grade_worker(level, worker))))


def changed(level: Level, folder: Path, old: str, new: str) -> Path:
    """Return a solution with one change."""
    text = (level.solution / WORKER).read_text()
    assert text.count(old) == 1
    (folder / WORKER).write_text(text.replace(old, new))
    return folder / WORKER


def test_levels_with_a_worker() -> None:
    assert [level.word for level in WITH_A_WORKER] == ["ethernet", "loss", "floats"]


@WORKERS_EVERY_LEVEL
def test_the_solution_passes(level: Level) -> None:
    assert reasons(level, level.solution / WORKER) == ""


@WORKERS_EVERY_LEVEL
def test_the_skeleton_earns_nothing(level: Level) -> None:
    assert "had to return" in reasons(level, level.exercise / WORKER)


@WORKERS_EVERY_LEVEL
def test_the_skeleton_imports_what_its_gap_needs(level: Level) -> None:
    files = (level.exercise / WORKER, level.solution / WORKER)
    exercise, solution = (file.read_text().split("\n\n\n")[0] for file in files)
    assert exercise == solution
    assert "import Ether" in exercise


@WORKERS_EVERY_LEVEL
def test_a_short_last_chunk_that_is_not_cut_is_found(level: Level, tmp_path: Path) -> None:
    worker = changed(level, tmp_path, "return sums[: len(vector)]", "return sums")
    assert "it returned" in reasons(level, worker)


@WORKERS_EVERY_LEVEL
def test_an_exception_is_shown_and_ends_the_case(level: Level, tmp_path: Path) -> None:
    worker = changed(level, tmp_path, "sums = []", "sums = [] if rank else 1 / 0")
    assert "all_reduce of rank 0 raised ZeroDivisionError" in reasons(level, worker)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "code + (random.random() * (high - low) < position - low)",
            "code + (position - low > (high - low) / 2)",
            "mean",
        ),
        ("code + (random.random() * (high - low) < position - low)", "code + (random.random() < 0.5)", "it returned"),
        ("code + (random.random() * (high - low) < position - low)", "round(position / 17)", "between"),
        ("min(max(value, -1.0), 1.0)", "value", ""),
        ("2 * value / GRANULARITY - workers", "2 * value / GRANULARITY - 1", "it returned"),
        (
            "2 * value / GRANULARITY - workers",
            "2 * value / GRANULARITY - workers + rank * 1e-9",
            "the same ones as rank 0",
        ),
    ],
)
def test_wrong_arithmetic_with_floats_is_found(old: str, new: str, reason: str, tmp_path: Path) -> None:
    found = reasons(LEVELS["floats"], changed(LEVELS["floats"], tmp_path, old, new))
    assert found
    assert reason in found


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import sys; sys.exit(0)", "all_reduce of rank 0 raised SystemExit: 0"),
        ("import sys; sys.exit(3)", "all_reduce of rank 0 raised SystemExit: 3"),
        ("import os; os._exit(0)", "all_reduce of rank 0 ended its process with status 0 before it returned"),
        ("return [1] * 70000", "all_reduce of rank 0 returned 70000 values"),
        ("import os; os.kill(os.getpid(), 9)", "all_reduce of rank 0 ended its process with status -9"),
    ],
)
def test_a_worker_that_ends_its_process_breaks_its_rule(line: str, reason: str, tmp_path: Path) -> None:
    worker = changed(LEVELS["ethernet"], tmp_path, "    sums = []", f"    sums = []\n    if rank == 0: {line}")
    assert reason in reasons(LEVELS["ethernet"], worker)


def test_a_worker_that_closes_its_socket_and_continues_breaks_its_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "EXIT_S", 0.1)
    line = "import os, time; os.closerange(3, 4096); time.sleep(600)"
    worker = changed(LEVELS["ethernet"], tmp_path, "    sums = []", f"    sums = []\n    if rank == 0: {line}")
    assert "rank 0 closed the grader's socket before it returned" in reasons(LEVELS["ethernet"], worker)


def test_a_script_that_exits_when_imported_breaks_its_rule(tmp_path: Path) -> None:
    worker = changed(LEVELS["ethernet"], tmp_path, "def _result_of", "import sys\n\nsys.exit(0)\n\n\ndef _result_of")
    assert "cannot be imported: SystemExit: 0" in reasons(LEVELS["ethernet"], worker)


def test_ranks_share_nothing_but_the_network(tmp_path: Path) -> None:
    text = "all_vectors = {}\n\n\ndef all_reduce(port, rank, workers, vector):\n    all_vectors[rank] = vector\n"
    text += "    return [sum(column) for column in zip(*all_vectors.values())]\n"
    (tmp_path / WORKER).write_text(text)
    assert "had to return" in reasons(LEVELS["ethernet"], tmp_path / WORKER)


def test_what_a_worker_prints_is_not_the_graders_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    worker = changed(LEVELS["ethernet"], tmp_path, "    sums = []", "    sums = []\n    print('debug', rank)")
    assert reasons(LEVELS["ethernet"], worker) == ""
    output = capfd.readouterr()
    assert (output.out, "debug 2" in output.err) == ("", True)


def test_a_worker_that_never_sends_again_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "DEADLINE_S", NEVER_S)
    again = "if packet is None:\n            port.send(contribution)"
    worker = changed(LEVELS["loss"], tmp_path, again, "if packet is None:\n            pass")
    assert "did not return within 2 s" in reasons(LEVELS["loss"], worker)


@pytest.mark.parametrize("mine", ["src=worker_mac(rank)", "Aggregation(rank=rank"])
def test_a_worker_that_sends_as_another_rank_is_found(mine: str, tmp_path: Path) -> None:
    worker = changed(LEVELS["ethernet"], tmp_path, mine, mine.replace("rank)", "0)").replace("=rank", "=0"))
    assert "sent a packet with" in reasons(LEVELS["ethernet"], worker)


def test_a_worker_that_takes_the_same_result_twice_is_found(tmp_path: Path) -> None:
    worker = changed(LEVELS["loss"], tmp_path, " and packet[Aggregation].chunk == chunk", "")
    assert "had to return" in reasons(LEVELS["loss"], worker)


def test_a_worker_of_one_version_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "DEADLINE_S", NEVER_S)
    worker = changed(LEVELS["loss"], tmp_path, "version=chunk % 2", "version=0")
    assert reasons(LEVELS["loss"], worker)


@pytest.mark.parametrize(("text", "reason"), [("def f(:", "SyntaxError"), ("x = 1", "no attribute 'all_reduce'")])
def test_what_is_no_worker(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / WORKER).write_text(text)
    assert reason in reasons(LEVELS["ethernet"], tmp_path / WORKER)


def test_no_worker_at_all(tmp_path: Path) -> None:
    assert f"{tmp_path / WORKER} is not there" in reasons(LEVELS["ethernet"], tmp_path / WORKER)


def test_list_names_levels_and_points(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ethernet", "udp", "loss", "slots", "floats", "racks"]
    assert lines[0].endswith("(13 points)")


def test_start_copies_handout_and_skeleton_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, exercise = tmp_path / "mine", tmp_path / "exercises" / "ethernet"
    shutil.copytree(LEVELS["ethernet"].exercise, exercise)
    for left in (".worker.py.swp", "worker.py~", "#aggregate.p4#", ".#README.md"):
        (exercise / left).write_text("left by an editor")
    (exercise / "__pycache__").mkdir(exist_ok=True)
    monkeypatch.setattr("hopsum_labs.levels._HERE", tmp_path)
    assert main(["start", "ethernet", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == {"README.md", "aggregate.p4", "worker.py"}
    assert "hopsum lab test ethernet" in capsys.readouterr().out
    (folder / "aggregate.p4").write_text("my work")
    assert main(["start", "ethernet", str(folder)]) == 1
    assert "exists already; nothing was changed" in capsys.readouterr().err
    assert (folder / "aggregate.p4").read_text() == "my work"


def test_grade_shows_rules_and_points(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grade", "ethernet", "--solution"]) == 0
    output = capsys.readouterr().out
    assert "2/2  next_round" in output
    assert output.splitlines()[-1] == "13 of 13 points"


def test_without_bmv2_the_message_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["test", "ethernet", "--solution", "--target", "bmv2"]) == 1
    assert "bmv2 does not start: " in capsys.readouterr().err


def test_grade_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grade", "loss", "--solution", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["level"], document["points"], document["of"]) == ("loss", 20, 20)
    assert {case["reason"] for case in document["cases"]} == {""}


def test_a_folder_without_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "p4c-bm2-ss"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["test", "udp", str(tmp_path / "nowhere")]) == 1
    error = capsys.readouterr().err
    assert "nowhere/aggregate.p4 is not there; `hopsum lab start" in error


def test_an_unknown_level_is_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ethernet" in usage_error(capsys, main, "grade", "level9", "--solution")
