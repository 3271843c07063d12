# SPDX-License-Identifier: Apache-2.0
"""Build folders are what the sources say; where p4c of a manifest's version is installed, it is compiled again."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]


def load_tool() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("compile_p4")
    finally:
        sys.path.pop(0)


TOOL = load_tool()
PROGRAMS = pytest.mark.parametrize("program", TOOL.PROGRAMS, ids=lambda program: program.name)


def manifest(program: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((program.build / "manifest.json").read_text())
    return loaded


@PROGRAMS
def test_manifest_names_every_source_as_it_stands(program: Any) -> None:
    stale = "p4 sources changed since the last compile: run make p4"
    assert manifest(program)["sources"] == program.source_hashes(), stale


@PROGRAMS
def test_manifest_names_the_flags_of_the_tool(program: Any) -> None:
    assert manifest(program)["flags"] == program.flags


@PROGRAMS
def test_artefacts_are_the_ones_of_the_manifest(program: Any) -> None:
    hashes = {a: hashlib.sha256((program.build / a).read_bytes()).hexdigest() for a in program.artefacts}
    assert manifest(program)["artefacts"] == hashes


@PROGRAMS
def test_artefacts_hold_no_absolute_path(program: Any) -> None:
    for artefact in program.artefacts:
        text = (program.build / artefact).read_text()
        assert str(ROOT) not in text
        assert '"/' not in text.replace('"/usr/local/share/p4c/', "").replace('"/usr/share/p4c/', ""), artefact


@PROGRAMS
def test_recompiling_gives_the_same_artefacts(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    version = TOOL.compiler_version()
    if version is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    if program.name == "naive" and os.environ.get("TEST_SCALE", "1") == "1":
        pytest.skip("p4c takes minutes for it; make test SCALE=2 does it")
    if version != manifest(program)["version"]:
        pytest.skip(f"p4c is {version}, the build was made with {manifest(program)['version']}")
    assert TOOL.make(program, check=True) == 0, capsys.readouterr().out
