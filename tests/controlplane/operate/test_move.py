# SPDX-License-Identifier: Apache-2.0
"""`hopsum job move` at a cluster in memory behind its service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsum_cli.job import main
from hopsum_controlplane.service.server import Service
from hopsum_controlplane.testing import FakeDevice

from ..cluster.world import Cluster, switch_config


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    configs = (switch_config(1), switch_config(2))
    made = Cluster(tmp_path, configs, {config.name: FakeDevice() for config in configs})
    made.start()
    yield made
    made.stop()


@pytest.fixture
def at(cluster: Cluster) -> Iterator[list[str]]:
    with Service(cluster.controller, "127.0.0.1:0") as service:
        yield ["--controller", service.address]


def test_a_job_is_moved_and_the_reason_is_shown(
    cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("train", 2, 16, switch="s1")
    assert main(["move", "train", *at]) == 0
    assert capsys.readouterr().out == "job 'train' moves from switch s1 to s2: slots 0 to 15\n"
    assert main(["show", "train", *at]) == 0
    assert "it moves from switch s1 to switch s2" in capsys.readouterr().out.replace("\n", " ")
    cluster.controller.tick()
    assert main(["move", "train", "--from-switch", "s2", "--to-switch", "s1", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "from_switch": "s2", "to_switch": "s1", "slot_base": 0, "slots": 16
    }  # fmt: skip


def test_what_is_refused_says_what_would_fit(
    cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("train", 2, 16, switch="s1")
    assert main(["move", "train", "--to-switch", "s1", *at]) == 1
    assert "job 'train' has slots on switch 's1' already; name another switch" in capsys.readouterr().err
    assert main(["move", "nobody", *at]) == 1
    assert "no job 'nobody'" in capsys.readouterr().err
    assert cluster.controller.job("train").switches == ("s1",)
