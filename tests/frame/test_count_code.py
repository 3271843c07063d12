# SPDX-License-Identifier: Apache-2.0
"""`tools/count_code.py` counts what it says, and the code keeps its limits."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUESTION = "What"
FIRST = f'''\
# A comment line.
"""{QUESTION} this is; nobody knows."""

from hopsum_b.second import Plan as Other

class Plan(Other):
    """`Device` without a base."""

    rank: int = 0
    """{QUESTION} it is; from 0."""

    def read(self):
        """See `Device`."""

    def write(self):
        return 1 if self else 2

def main(parser, options):
    """Return what it does."""
    parser.add_argument("--rank")
    parser.add_argument("--any", **options)
    parser.add_argument("--version", action="version", version="1")
    a, b = 1, 2
'''
SECOND = """\
from importlib import import_module

class Plan:
    def write(self):
        from hopsum_a.second import Plan as Third
        import_module("hopsum_a.second")
"""


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("count_code", ROOT / "tools" / "count_code.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_counts(tmp_path: Path) -> None:
    files = {
        "wire/hopsum_a/second.py": FIRST,
        "host/hopsum_b/second.py": SECOND,
        "tests/test_a.py": f'"""{QUESTION} is tested."""\n',
        "docs/a.md": "# Three words\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    tool = _tool()
    house = tool.count_house(tmp_path)
    style = house.style
    assert (sum(house.product.values()), house.tests, house.words) == (29, {"tests/test_a.py": 1}, {"docs/a.md": 3})
    assert house.circles == [["hopsum_a.second", "hopsum_b.second"]]
    assert house.hidden == ["host/hopsum_b/second.py:6 'hopsum_a.second'"]
    assert house.twice.keys() == {"second"}
    assert (house.comment_lines, house.code_lines) == (1, 16)
    assert house.test_questions == ["tests/test_a.py:1"]
    assert style.reused.keys() == {"Plan"}
    first = "wire/hopsum_a/second.py"
    assert style.questions == [f"{first}:1", f"{first}:10"]
    assert style.return_what == [f"{first}:18"]
    assert style.fillers == [f"{first}:12"]
    assert style.semicolons == [f"{first}:1", f"{first}:10"]
    assert style.persons == [f"{first}:1"]
    assert style.options_without_help == [f"{first}:20 '--rank'"]
    lines = list(tool.show(house, brief=True))
    assert "circles of imports: 1" in lines
    assert f"habits: {'`# fmt: skip`'} 0, assignments 1, assignments of tuples 1, conditional expressions 1" in lines


@pytest.fixture(scope="module")
def house() -> Any:
    return _tool().count_house(ROOT)


def test_public_classes_have_names_of_their_own(house: Any) -> None:
    assert house.style.reused == {}


def test_docstrings_name_the_thing(house: Any) -> None:
    """Else tools/count_code.py shows the places."""
    style = house.style
    assert style.fillers == []
    assert style.rate(style.persons) <= 4.0
    assert style.rate(style.semicolons) <= 3.0


def test_every_option_has_a_help_text_and_every_public_method_a_docstring(house: Any) -> None:
    assert house.style.options_without_help == []
    assert house.style.undocumented == []
