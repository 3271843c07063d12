# SPDX-License-Identifier: Apache-2.0
"""`tools/count_code.py` counts what it says, and the code keeps its limits."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("count_code", ROOT / "tools" / "count_code.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


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
