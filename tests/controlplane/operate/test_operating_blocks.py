# SPDX-License-Identifier: Apache-2.0
"""The blocks of docs/operating.md that are no part of its one session: trees, shards, moves, switches of hosts."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hopsum_cli.job.job_command import main
from hopsum_cli.worker_switch import build_parser
from hopsum_controlplane.cluster import load_config

from ...support.pages import blocks
from ..cluster.world import Cluster

pytestmark = pytest.mark.system
LEAF = """
[[switch]]
name = "{name}"
driver = "native"
address = "127.0.0.1:{port}"
mac = "02:00:00:00:00:{number:02x}"
ip = "10.0.0.{number}"
ports = [{ports}]
"""


@pytest.fixture
def switches() -> int:
    return 4


def test_shards_are_made_and_moved(cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (create,) = blocks("operating", "Shards: several switches side by side", "text")
    (move,) = blocks("operating", "Moving a job to another switch", "text")
    named, counted, of_shards, of_one = (shlex.split(line, comments=True)[2:] for line in (create + move).splitlines())
    assert main([*named, *at]) == 0
    assert cluster.controller.job("train").switches == ["s1", "s2"]
    assert main([*of_shards, *at]) == 0
    assert cluster.controller.job("train").switches == ["s1", "s4"]
    assert main(["delete", "train", *at]) == 0
    assert main([*counted, *at]) == 0
    assert len(cluster.controller.job("train").switches) == 2
    assert main(["delete", "train", *at]) == 0
    assert main(["create", "train", "--workers", "2", "--switch", "s2", *at]) == 0
    assert main([*of_one, *at]) == 0
    assert cluster.controller.job("train").switches != ("s2",)


def test_links_of_the_page_make_a_tree(tmp_path: Path) -> None:
    (links,) = blocks("operating", "Trees of switches", "text")
    text = '[controller]\ndatabase = "state.sqlite"\n'
    for number, name in enumerate(("leaf1", "leaf2", "spine"), 1):
        ports = "" if name == "spine" else f'{{port = 1, network = "10.0.{number}.0/24"}}'
        text += LEAF.format(name=name, port=9558 + number, number=number, ports=ports)
    (tmp_path / "cluster.toml").write_text(text + links)
    config = load_config(tmp_path / "cluster.toml")
    assert [link.leaf for link in config.below("spine")] == ["leaf1", "leaf2"]


def test_options_of_a_hosts_switch_are_known(
    cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A job over hosts is refused for one reason: no host has registered. test_registered_switch runs both commands."""
    switch, create = blocks("operating", "Switches on the workers' own hosts", "text")
    assert build_parser().parse_args(shlex.split(switch)[2:]).controller == "10.0.0.1:4700"
    assert main([*shlex.split(create)[2:], *at]) == 1
    assert "regist" in capsys.readouterr().err
