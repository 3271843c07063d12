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
SENTENCES = '''\
"""Settings; one per line."""

@dataclass
class Settings:
    """All settings."""

    rank: int = 0
    """Of the worker; from 0."""
    port: int = 0
    """The port of the worker."""
    if True:
        name = "x"
        """By rank."""

    def add(self, parser, options):
        parser.add_argument("--rank")
        parser.add_argument("--port", help="port of the worker")
        parser.add_argument("--any", **options)
        parser.add_argument("--version", action="version", version="1")
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


def test_docstrings_without_a_subject_semicolons_and_options_without_help(tmp_path: Path) -> None:
    tool = _tool()
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "settings.py").write_text(SENTENCES)
    counts = tool.count(tmp_path, ("pack",))
    assert counts.attributes == 3
    assert counts.subjectless == ["pack/settings.py:8 Of the worker; from 0.", "pack/settings.py:13 By rank."]
    assert counts.words == 18
    assert counts.semicolons == ["pack/settings.py:1", "pack/settings.py:8"]
    assert counts.options_without_help == ["pack/settings.py:16 '--rank'"]
    lines = list(tool.show(counts, ("pack",), brief=True))
    assert "attribute docstrings without a subject: 66.7% of 3" in lines
    assert "semicolons per 1,000 words of docstrings: 111.1 (18 words)" in lines
    assert "options without help: 1" in lines


INHERITED = '''\
class Device:
    def read(self):
        """Read what nobody else does."""

class Open(Device):
    def read(self):
        return 1

class Alike:
    """`Device` without a base."""

    def read(self):
        """See `Device`."""

    def write(self):
        return 2

    def _own(self):
        return 3
'''


def test_words_for_persons_fillers_and_methods_without_a_docstring(tmp_path: Path) -> None:
    tool = _tool()
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "device.py").write_text(INHERITED)
    counts = tool.count(tmp_path, ("pack",))
    assert counts.persons == ["pack/device.py:2"]
    assert counts.fillers == ["pack/device.py:12"]
    assert counts.undocumented == ["pack/device.py:15 Alike.write"]


def test_a_tree_without_docstrings_has_rates_of_zero(tmp_path: Path) -> None:
    counts = _tool().count(tmp_path, ("pack",))
    assert (counts.subjectless_share, counts.semicolon_rate) == (0, 0)


def test_every_folder_of_code_is_counted() -> None:
    tool = _tool()
    assert all(list(tool.python_files(ROOT, (folder,))) for folder in tool.FOLDERS)


def test_module_docstrings_begin_with_the_thing() -> None:
    tool = _tool()
    assert tool.count(ROOT, tool.NAMED_FOLDERS).questions == []


def test_held_docstrings_have_subjects_and_one_fact_per_sentence() -> None:
    tool = _tool()
    for folder in tool.SENTENCE_FOLDERS:
        counts = tool.count(ROOT, (folder,))
        assert counts.words > 0
        assert counts.subjectless_share <= tool.SUBJECTLESS_LIMIT, counts.subjectless
        assert counts.semicolon_rate <= tool.SEMICOLON_LIMIT, counts.semicolons
        assert counts.options_without_help == []


def test_the_whole_code_keeps_its_habits() -> None:
    """Else tools/count_code.py shows the places."""
    tool = _tool()
    counts = tool.count(ROOT)
    assert counts.semicolon_rate <= tool.SEMICOLON_LIMIT
    assert counts.subjectless_share <= tool.SUBJECTLESS_LIMIT
    assert counts.persons_rate <= tool.PERSONS_LIMIT
    assert counts.options_without_help == []
    assert counts.fillers == []
    assert counts.undocumented == []


def test_class_names_are_defined_once() -> None:
    assert _tool().count(ROOT).reused == {}
