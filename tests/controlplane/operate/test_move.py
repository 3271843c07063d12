# SPDX-License-Identifier: Apache-2.0
"""`hopsum job move` at a cluster in memory behind its service."""

from __future__ import annotations

import json

import pytest

from hopsum_cli.job.job_command import main

from ..cluster.world import Cluster

pytestmark = pytest.mark.system


@pytest.fixture
def switches() -> int:
    return 2


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
    assert cluster.controller.job("train").switches == ["s1"]
