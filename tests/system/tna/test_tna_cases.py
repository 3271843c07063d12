# SPDX-License-Identifier: Apache-2.0
"""The data-plane cases on the Tofino program, executed: all that are not about something that it does not have."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import pytest

import compile_tna
import dump_tna
import hopsum_tna
from hopsum_ptf.case_runner import list_cases
from hopsum_ptf.tna_skips import SKIPS
from hopsum_topologies.ptf.case_results import read_results

from ...support.cases_table import CASES_ON

RUN = Path(__file__).resolve().parents[3] / "ptf_tests" / "run"
OF_LOOKUP_ADD16 = {
    "isolation.TablesOfBothWidthsInSeveralJobs",
    "lanes.AsManyWideSumsAsFit",
    "lanes.EveryWideCode",
    "lanes.LookupsOfBothWidthsByTurns",
    "lanes.WideSumsDoNotCarry",
    "operations.TableOfTheOtherWidth",
}
"""The data-plane cases on the Tofino program, executed from dumps that are those of the sources."""


def test_every_case_passes_or_is_about_something_that_the_program_does_not_have(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    command = [sys.executable, str(RUN), "--target", "tna", "--logs", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    results = read_results(tmp_path / "results", list_cases())
    record_property(f"{CASES_ON}tna", [astuple(each) for each in results])
    lines = [line.split() for line in done.stdout.splitlines()]
    start = lines.index(["case", "tna"])
    table = {line[0]: line[1] for line in lines[start + 1 :] if len(line) == 2}
    skipped = dict.fromkeys([*SKIPS, *OF_LOOKUP_ADD16], "skipped")
    assert table == {**dict.fromkeys(list_cases(), "ok"), **skipped}, done.stdout + done.stderr
    assert done.returncode == 0


def test_only_cases_are_skipped() -> None:
    assert set(SKIPS) <= set(list_cases())


def test_dumps_are_of_these_sources() -> None:
    said = json.loads(dump_tna.MANIFEST.read_text())
    assert said == dump_tna.manifest(said["version"]), "p4/tna, p4/shared or a dump changed: run make p4-tna-dump"


def test_the_front_end_makes_the_same_again(tmp_path: Path) -> None:
    """The small program only; make p4-tna-dump writes all."""
    version = compile_tna.compiler_version()
    if version != json.loads(dump_tna.MANIFEST.read_text())["version"]:
        pytest.skip(f"p4c-barefoot here: {version}")
    try:
        compile_tna.include_folder()
    except compile_tna.CompileError as error:
        pytest.skip(str(error))
    made = dump_tna.dump("small", tmp_path)
    assert made.read_bytes() == (dump_tna.BUILD / made.name).read_bytes(), "run make p4-tna-dump"


def test_the_executor_imports_nothing_of_the_protocol() -> None:
    for path in Path(hopsum_tna.__file__).parent.glob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        assert [name for name in imported if name.startswith("hopsum") and name != "hopsum_tna"] == [], path
