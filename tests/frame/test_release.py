# SPDX-License-Identifier: Apache-2.0
"""What a release needs: one version, the Pythons that are tested, workflows without moving parts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import hopsum
from hopsum_base import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_version_is_written_once() -> None:
    """The build reads the number that programs and commands have; what cannot read it has the same."""
    assert "version" not in PROJECT
    assert ProjectMetadata(str(ROOT), PluginManager()).version == __version__ == hopsum.__version__
    assert read(ROOT / "CITATION.cff")["version"] == __version__


def test_the_changelog_begins_with_this_version_or_what_follows_it() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.fullmatch(rf"Unreleased|{re.escape(__version__)} (\(unreleased\)|- \d{{4}}-\d\d-\d\d)", headings[0])
    assert any(heading.startswith(f"{__version__} ") for heading in headings)


def test_the_pythons_of_the_package_are_those_that_are_tested() -> None:
    said = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3" in each]
    matrix = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["check"]["strategy"]["matrix"]["include"]
    assert sorted({row["python"] for row in matrix}) == said
    assert PROJECT["requires-python"] == f">={said[0]}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_make_targets_exist(path: Path) -> None:
    """A tag of an action can be moved to other code; a digest cannot."""
    text = path.read_text(encoding="utf-8")
    used = re.findall(r"uses: (.*)", text)
    assert used
    for each in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}  # v[\d.]+", each), each
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z][a-z0-9-]*)", text)) <= targets


def test_what_is_not_needed_to_read_may_not_be_written() -> None:
    """A workflow has no right that it does not name; one job may ask PyPI for an upload, and does nothing else."""
    for path in WORKFLOWS:
        workflow = read(path)
        assert workflow["permissions"] == {"contents": "read"}, path.name
        asking = {name for name, job in workflow["jobs"].items() if "permissions" in job}
        assert asking == ({"publish"} if path.name == "release.yml" else set())
