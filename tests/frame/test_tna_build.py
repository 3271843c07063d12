# SPDX-License-Identifier: Apache-2.0
"""p4/build/tna is what p4/tna says and fits its chips; where that p4c-barefoot is installed, it is compiled again."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "p4" / "build" / "tna"


def load_tool() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("compile_tna")
    finally:
        sys.path.pop(0)


TOOL = load_tool()
CHIPS = pytest.mark.parametrize("chip", TOOL.CHIPS, ids=lambda chip: chip.name)


def manifest() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((BUILD / "manifest.json").read_text())
    return loaded


def resources(chip: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((BUILD / "resources.json").read_text())[chip.name]
    return loaded


def test_manifest_names_every_source_as_it_stands() -> None:
    assert manifest()["sources"] == TOOL.source_hashes(), "p4 sources changed since the last compile: run make p4-tna"


def test_every_source_of_the_folder_is_part_of_the_program() -> None:
    """A file that no file includes is compiled by nobody, and its changes would go unnoticed."""
    named = set(manifest()["sources"])
    assert named >= {f"tna/{path.name}" for path in (ROOT / "p4" / "tna").glob("*.p4")}
    assert "shared/packed.p4" not in named, "packed results are v1model's"


def test_manifest_names_the_flags_of_the_tool() -> None:
    assert manifest()["flags"] == TOOL.flags()


def test_artefacts_are_the_ones_of_the_manifest() -> None:
    hashes = {a: hashlib.sha256((BUILD / a).read_bytes()).hexdigest() for a in TOOL.ARTEFACTS}
    assert manifest()["artefacts"] == hashes


def test_artefacts_hold_no_absolute_path() -> None:
    for artefact in TOOL.ARTEFACTS:
        raw = (BUILD / artefact).read_bytes()
        text = (gzip.decompress(raw) if artefact.endswith(".gz") else raw).decode()
        assert str(ROOT) not in text
        assert '"/' not in text, artefact


@CHIPS
def test_summary_adds_up_and_keeps_to_what_a_stage_has(chip: Any) -> None:
    said = resources(chip)
    assert said["stages"] <= said["stages_available"] == {"tofino": 12, "tofino2": 20}[chip.name]
    stages = said["used_per_stage"]
    assert said["stages"] <= len(stages) <= said["stages_available"]
    assert said["used"] == {name: sum(stage[name] for stage in stages) for name in stages[0]}
    for stage in stages:
        assert all(stage[name] <= limit for name, limit in said["available_per_stage"].items())


@CHIPS
def test_p4info_has_a_half_word_table_for_every_two_codes_of_half_a_pass(chip: Any) -> None:
    text = (BUILD / chip.p4info).read_text()
    for gress in ("HopsumIngress", "HopsumEgress"):
        tables = re.findall(rf'name: "{gress}\.lookup_words\.word\d+\.lookup_(?:left|right)"', text)
        assert len(tables) == chip.codes_half // 2


@pytest.mark.parametrize(
    ("match", "is_refused"),
    [("0x0800:", False), ("0b*******001000100:", False), ("*:", True), ("0x****:", True)],
)
def test_a_compiler_that_loses_the_parsers_matches_is_refused(match: str, is_refused: bool) -> None:
    assembly = f"parser ingress:\n    state:\n      {match}\n        next: end\ndeparser ingress:"
    if is_refused:
        with pytest.raises(TOOL.CompileError, match="5752"):
            TOOL.refuse_lost_matches(assembly)
    else:
        TOOL.refuse_lost_matches(assembly)


PHV = """
phv ingress:
  hdr.lanes.w0: W1(0..15)
  hdr.pass.row: H4
  hdr.udp.length: {{ stage 0..3: {length} }}
  hdr.pass.$valid: B1(0)
  hdr.udp.$valid: B1(1)
  context_json:
phv egress:
  hdr.udp.length: H4
  context_json:
"""


def test_an_overlay_of_headers_that_are_valid_together_is_refused() -> None:
    TOOL.refuse_overlays(PHV.format(length="H5"))
    with pytest.raises(TOOL.CompileError, match="ingress: pass and udp share H4"):
        TOOL.refuse_overlays(PHV.format(length="H4(0..15)"))


def test_recompiling_gives_the_same_artefacts(capsys: pytest.CaptureFixture[str]) -> None:
    version = TOOL.compiler_version()
    if version is None:
        pytest.skip("p4c-barefoot is not on PATH")
    if os.environ.get("TEST_SCALE", "1") == "1":
        pytest.skip("p4c-barefoot takes minutes; make test SCALE=2 does it")
    if version != manifest()["version"]:
        pytest.skip(f"p4c-barefoot is {version}, the build was made with {manifest()['version']}")
    assert TOOL.make(check=True) == 0, capsys.readouterr().out
