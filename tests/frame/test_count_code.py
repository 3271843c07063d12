# SPDX-License-Identifier: Apache-2.0
"""Tests of the counts that `tools/count_code.py` prints."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
QUESTION = "What"
TWICE = f'''\
"""{QUESTION} this is."""

class Plan:
    pass

class _Own:
    pass

def wide(a, b, c, d, e, f, *, g):
    return a
'''
LONG = '"""Counts of code."""\n\nclass Plan:\n    def run(self):\n' + "        pass\n" * 60


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("count_code", ROOT / "tools" / "count_code.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_what_it_counts(tmp_path: Path) -> None:
    tool = _tool()
    (tmp_path / "pack").mkdir()
    for name, text in {"twice.py": TWICE, "long.py": LONG, "made_pb2.py": TWICE}.items():
        (tmp_path / "pack" / name).write_text(text)
    counts = tool.count(tmp_path, ("pack",))
    assert counts.lines == {"pack/long.py": 64, "pack/twice.py": 10}
    assert counts.reused == {"Plan": ["pack/long.py:3", "pack/twice.py:3"]}
    assert counts.questions == ["pack/twice.py:1"]
    assert counts.long_functions == ["pack/long.py:4 run: 61 lines"]
    assert counts.many_parameters == ["pack/twice.py:9 wide: 7 parameters"]
    assert "public class names with more than one definition: 1" in tool.show(counts, ("pack",), brief=True)


def test_every_folder_of_code_is_counted() -> None:
    tool = _tool()
    assert all(list(tool.python_files(ROOT, (folder,))) for folder in tool.FOLDERS)


def test_module_docstrings_begin_with_the_thing() -> None:
    tool = _tool()
    assert tool.count(ROOT, tool.NAMED_FOLDERS).questions == []


def test_class_names_are_defined_once() -> None:
    assert _tool().count(ROOT).reused == {}
