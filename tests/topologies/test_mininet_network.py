# SPDX-License-Identifier: Apache-2.0
"""The script that Debian's python3 runs, and what is said where it cannot."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

import hopsum_topologies
from hopsum_topologies import TopologyError, mininet_network, topology
from hopsum_topologies.mininet_network import MininetNetwork, mininet_unavailable

pytestmark = pytest.mark.system
PACKAGE = Path(hopsum_topologies.__file__).parent


def test_the_script_imports_mininet_and_the_standard_library_only() -> None:
    tree = ast.parse((PACKAGE / "mininet_script.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names} == {
        "mininet.cli", "mininet.link", "mininet.log", "mininet.net", "mininet.node"
    }  # fmt: skip
    assert not list(PACKAGE.parent.rglob("mininet.py")), "it would hide the package"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mininet_network.shutil, "which", lambda name: None if name == "mnexec" else name)
    assert mininet_unavailable() == "mnexec is not on PATH"
    with pytest.raises(TopologyError, match=r"cannot run here: mnexec .*apt-get install mininet.*--target native"):
        MininetNetwork(topology("star"), tmp_path)
    monkeypatch.setattr(mininet_network.shutil, "which", lambda name: name)
    monkeypatch.setattr(mininet_network, "PYTHON", sys.executable)
    assert (
        mininet_unavailable()
        == f"{sys.executable} cannot import mininet: ModuleNotFoundError: No module named 'mininet'"
    )
    monkeypatch.setattr(mininet_network, "PYTHON", "/nowhere/python3")
    assert str(mininet_unavailable()).startswith("/nowhere/python3 cannot be run:")


@pytest.mark.usefixtures("mininet")
def test_a_script_that_fails_is_quoted_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mininet_network, "plan_of", lambda *_: {"hosts": [{"name": "h1"}]})
    before = own_namespaces()
    with pytest.raises(TopologyError, match=r"(?s)the Mininet script ended with 1; it said:.*KeyError: 'ip'"):
        MininetNetwork(topology("star"), tmp_path)
    assert own_namespaces() == before


def own_namespaces() -> set[Path]:
    return set(Path("/var/run/netns").glob(f"hopsum-{os.getpid()}-*"))
