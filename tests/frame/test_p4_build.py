# SPDX-License-Identifier: Apache-2.0
"""Build folders are what the sources say and fit their chips; a compiler of their version makes them again."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "p4" / "build" / "tna"


def load_tool(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


TOOL, TNA = load_tool("compile_p4"), load_tool("compile_tna")


class Build(NamedTuple):
    """A program of one compiler: its folder, and what its manifest must name."""

    name: str
    folder: Path
    sources: dict[str, str]
    flags: Any
    artefacts: tuple[str, ...]
    tool: ModuleType
    make: Callable[[], int]
    slow: bool

    @property
    def manifest(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        return loaded


def build_of(program: Any) -> Build:
    artefacts, hashes = program.artefacts, program.source_hashes()
    make = lambda: TOOL.make(program, check=True)  # noqa: E731
    return Build(program.name, program.build, hashes, program.flags, artefacts, TOOL, make, slow=False)


BUILDS = [
    *map(build_of, TOOL.PROGRAMS),
    Build("tna", BUILD, TNA.source_hashes(), TNA.flags(), TNA.ARTEFACTS, TNA, lambda: TNA.make(check=True), True),
]
EACH = pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
CHIPS = pytest.mark.parametrize("chip", TNA.CHIPS, ids=lambda chip: chip.name)


@EACH
def test_the_manifest_is_that_of_sources_flags_and_artefacts(build: Build) -> None:
    assert build.manifest["sources"] == build.sources, "p4 sources changed since the last compile: run make p4, p4-tna"
    assert build.manifest["flags"] == build.flags
    hashes = {name: hashlib.sha256((build.folder / name).read_bytes()).hexdigest() for name in build.artefacts}
    assert build.manifest["artefacts"] == hashes


@EACH
def test_artefacts_hold_no_absolute_path(build: Build) -> None:
    for artefact in build.artefacts:
        raw = (build.folder / artefact).read_bytes()
        text = (gzip.decompress(raw) if artefact.endswith(".gz") else raw).decode()
        assert str(ROOT) not in text
        assert '"/' not in text.replace('"/usr/local/share/p4c/', "").replace('"/usr/share/p4c/', ""), artefact


@EACH
def test_recompiling_gives_the_same_artefacts(build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    version = build.tool.compiler_version()
    if version is None:
        pytest.skip(f"{build.tool.COMPILER} is not on PATH")
    if build.slow and os.environ.get("TEST_SCALE", "1") == "1":
        pytest.skip("the compiler takes minutes for it; make test SCALE=2 does it")
    if version != build.manifest["version"]:
        pytest.skip(f"the compiler is {version}, the build was made with {build.manifest['version']}")
    assert build.make() == 0, capsys.readouterr().out


def test_every_source_of_the_folder_is_part_of_the_program() -> None:
    """A file that no file includes is compiled by nobody, and its changes would go unnoticed."""
    named = set(TNA.source_hashes())
    assert named >= {f"tna/{path.name}" for path in (ROOT / "p4" / "tna").glob("*.p4")}
    assert "shared/requantize.p4" not in named, "results that are codes are v1model's"


@CHIPS
def test_summary_adds_up_and_keeps_to_what_a_stage_has(chip: Any) -> None:
    said = json.loads((BUILD / "resources.json").read_text())[chip.name]
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
    ("match", "is_refused"), [("0x0800:", False), ("0b*******001000100:", False), ("*:", True), ("0x****:", True)]
)
def test_a_compiler_that_loses_the_parsers_matches_is_refused(match: str, is_refused: bool) -> None:
    assembly = f"parser ingress:\n    state:\n      {match}\n        next: end\ndeparser ingress:"
    if is_refused:
        with pytest.raises(TNA.CompileError, match="5752"):
            TNA.refuse_lost_matches(assembly)
    else:
        TNA.refuse_lost_matches(assembly)


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
    TNA.refuse_overlays(PHV.format(length="H5"))
    with pytest.raises(TNA.CompileError, match="ingress: pass and udp share H4"):
        TNA.refuse_overlays(PHV.format(length="H4(0..15)"))
