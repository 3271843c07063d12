# SPDX-License-Identifier: Apache-2.0
"""p4/build is what the sources say; where p4c of the manifest's version is installed, it is compiled again."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_p4", ROOT / "tools" / "compile_p4.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def manifest() -> dict[str, object]:
    loaded: dict[str, object] = json.loads((ROOT / "p4" / "build" / "manifest.json").read_text())
    return loaded


def test_manifest_names_every_source_as_it_stands(tool: ModuleType, manifest: dict[str, object]) -> None:
    assert manifest["sources"] == tool.source_hashes(), "p4 sources changed since the last compile: run make p4"


def test_manifest_names_the_flags_of_the_tool(tool: ModuleType, manifest: dict[str, object]) -> None:
    assert manifest["flags"] == [*tool.FLAGS, tool.MAIN]


def test_artefacts_are_the_ones_of_the_manifest(tool: ModuleType, manifest: dict[str, object]) -> None:
    hashes = {a: hashlib.sha256((ROOT / "p4" / "build" / a).read_bytes()).hexdigest() for a in tool.ARTEFACTS}
    assert manifest["artefacts"] == hashes


def test_artefacts_hold_no_absolute_path(tool: ModuleType) -> None:
    for artefact in tool.ARTEFACTS:
        text = (ROOT / "p4" / "build" / artefact).read_text()
        assert str(ROOT) not in text
        assert '"/' not in text.replace('"/usr/local/share/p4c/', "").replace('"/usr/share/p4c/', ""), artefact


def test_recompiling_gives_the_same_artefacts(tool: ModuleType, manifest: dict[str, object]) -> None:
    version = tool.compiler_version()
    if version is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    if version != manifest["version"]:
        pytest.skip(f"p4c is {version}, p4/build was made with {manifest['version']}")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "compile_p4.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
