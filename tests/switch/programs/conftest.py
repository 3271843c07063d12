# SPDX-License-Identifier: Apache-2.0
"""Compiled programs by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.program import load_program

HERE = Path(__file__).parent


@pytest.fixture
def engine_of() -> Callable[[str], Engine]:
    def make(name: str) -> Engine:
        return Engine(load_program((HERE / name / f"{name}.json").read_text()))

    return make
