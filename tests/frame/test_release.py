# SPDX-License-Identifier: Apache-2.0
"""What a release needs has one version."""

from __future__ import annotations

import tomllib
from pathlib import Path

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import hopsum
from hopsum_base import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_written_once() -> None:
    """The build reads the number that programs and commands have."""
    assert "version" not in PROJECT
    assert ProjectMetadata(str(ROOT), PluginManager()).version == __version__ == hopsum.__version__
