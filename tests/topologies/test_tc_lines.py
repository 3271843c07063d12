# SPDX-License-Identifier: Apache-2.0
"""The `tc` commands of rates and delays, word for word, and the script that Debian's python3 runs for Mininet."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hopsum_topologies
from hopsum_topologies import TopologyError, mininet_network, topology
from hopsum_topologies.description import Link, Topology
from hopsum_topologies.mininet_network import MininetNetwork, mininet_unavailable
from hopsum_topologies.running_network import NamespaceNetwork

pytestmark = pytest.mark.system
NOTE = """#!/bin/sh
echo "$*" >> {log}
case "$*" in *"$REFUSED"*) echo "Error: Specified qdisc kind is unknown." >&2; exit 2;; esac
"""
NETEM, BUCKET = "netem limit 100000 delay", "burst 131072 limit 2097152"
PLAN = Topology(
    "plan",
    summary="every kind of link",
    hosts=("h1", "h2", "h3", "h4"),
    switches=("s1",),
    links=(
        Link(("h1", "s1"), 2e7, 0.003),
        Link(("h2", "s1"), None, 0.0001, loss=0.25),
        Link(("s1", "h3"), 5e8),
        Link(("h4", "s1"), loss=0.5),
    ),
)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Put such a `tc` first on PATH, which refuses lines with $REFUSED in them; return what reads its notes."""
    log, program = tmp_path / "told", tmp_path / "bin" / "tc"
    program.parent.mkdir()
    program.write_text(NOTE.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("REFUSED", "no line has this")
    return lambda: [line for line in log.read_text().splitlines() if " show " not in line]


@pytest.mark.usefixtures("namespaces")
def test_delay_then_rate_at_both_ends_of_a_link(told: Callable[[], list[str]], tmp_path: Path) -> None:
    """A delay is the root with the token bucket below it; losses are the program's, never netem's."""
    with NamespaceNetwork(PLAN, "native", tmp_path) as network:
        at = {host: f"-n {network.hosts[host].name} qdisc add dev eth0" for host in PLAN.hosts}
        switch = [f"-n {network.home.name} qdisc add dev s1-{port}" for port in (1, 2, 3, 4)]
    trial, *lines = told()
    assert trial.endswith("qdisc add dev lo root netem delay 1ms")
    assert lines == [
        *(
            f"{end} {words}"
            for end in (at["h1"], switch[0])
            for words in (f"root handle 1: {NETEM} 3000us", f"parent 1:1 tbf rate 20000000bit {BUCKET}")
        ),
        *(f"{end} root handle 1: {NETEM} 100us" for end in (at["h2"], switch[1])),
        *(f"{end} root tbf rate 500000000bit {BUCKET}" for end in (switch[2], at["h3"])),
    ]


@pytest.mark.usefixtures("mininet")
def test_mininet_is_told_the_same(told: Callable[[], list[str]], tmp_path: Path) -> None:
    """Its htb has the rate, and netem below that the delay."""
    with MininetNetwork(PLAN, tmp_path):
        pass
    _, *lines = (" ".join(line.split()) for line in told() if "qdisc del" not in line)  # without the trial

    def both(link: int, host: int, *words: str) -> list[str]:
        ends = ("eth0", f"s1-{link}") if PLAN.links[link - 1].ends[0] == f"h{host}" else (f"s1-{link}", "eth0")
        return [each.format(end) for end in ends for each in words]

    queue = "qdisc add dev {} root handle 5:0 htb default 1"
    rate = "class add dev {} parent 5:0 classid 5:1 htb rate %s burst 15k"
    netem = "qdisc add dev {} %s handle 10: netem delay %s limit 100000"
    assert lines == [
        *both(1, 1, queue, rate % "20.000000Mbit", netem % ("parent 5:1", "3000us")),
        *both(2, 2, netem % ("root", "100us")),
        *both(3, 3, queue, rate % "500.000000Mbit"),
    ]


@pytest.mark.usefixtures("mininet")
def test_what_mininet_cannot_set_is_no_network(
    told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Mininet would log it and continue, and the link would carry what it can."""
    monkeypatch.setenv("REFUSED", "class add")
    with pytest.raises(TopologyError, match=r"(?s)eth0: `tc class add .* said: Error: Specified qdisc kind"):
        MininetNetwork(PLAN, tmp_path)
    assert not any("s1-2" in line for line in told())


@pytest.mark.usefixtures("mininet")
def test_a_rate_that_mininet_does_not_set_is_refused(tmp_path: Path) -> None:
    fast = Topology("fast", hosts=("h1",), switches=("s1",), links=(Link(("h1", "s1"), 1.1e9),))
    with pytest.raises(TopologyError, match=r"Mininet sets no rate above 1 Gbit/s, and h1-s1 would have none"):
        MininetNetwork(fast, tmp_path)


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
