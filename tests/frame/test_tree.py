# SPDX-License-Identifier: Apache-2.0
"""Rules about the tree itself, and limits that `tools/count_code.py` counts."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("base", "wire", "host", "switch", "controlplane", "topologies", "evaluation", "cli")
SOURCES = [
    path
    for folder in (*PACKAGES, "ptf_tests", "tests", "tools", "p4")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".p4"} and "__pycache__" not in path.parts
]


def test_p4_holds_no_python() -> None:
    """A package `p4` of ours would shadow the P4Runtime bindings."""
    assert list((ROOT / "p4").rglob("*.py")) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_source_carries_the_licence_and_stays_readable(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]), "no SPDX line"
    assert len(lines) <= 800 or path.name == "_layout.py", f"{len(lines)} lines: split it"


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("hopsum", "numpy scapy grpc torch"),
        (
            "hopsum_wire.membership, hopsum.protocol, hopsum.transport, hopsum.codec, hopsum.agent",
            "scapy grpc google.protobuf p4 torch numba rich",
        ),
        ("hopsum_controlplane, hopsum_controlplane.tables.forward", "grpc google.protobuf p4 p4runtime_sh scapy torch"),
        ("hopsum_controlplane.cluster", "grpc"),
        ("hopsum_evaluation.baselines.estimators", "constriction"),
    ],
)
def test_an_import_loads_nothing_heavy(modules: str, heavy: str) -> None:
    code = f"import {modules}, sys; sys.exit(' '.join(set({heavy.split()}) & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("count_code", ROOT / "tools" / "count_code.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def counts() -> Any:
    return _tool().count_repository(ROOT)


def test_public_classes_have_names_of_their_own(counts: Any) -> None:
    assert counts.style.repeated_classes == {}


def test_docstrings_name_the_thing(counts: Any) -> None:
    """Else tools/count_code.py shows the places."""
    style = counts.style
    assert style.fillers == []
    assert style.per_thousand_words(style.persons) <= 4.0
    assert style.per_thousand_words(style.semicolons) <= 3.0


def test_every_public_method_has_a_docstring(counts: Any) -> None:
    assert counts.style.undocumented == []
