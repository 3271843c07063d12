# SPDX-License-Identifier: Apache-2.0
"""The checked-in dumps are those of the sources, and their interpreter knows no protocol."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import compile_tna
import dump_tna
import hopsum_tna


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
