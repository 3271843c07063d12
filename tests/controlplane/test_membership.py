# SPDX-License-Identifier: Apache-2.0
"""The membership file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hopsum_controlplane import ControlPlaneError, Job, JobSpec, SwitchEndpoint, write_membership
from hopsum_controlplane.slots import SlotRange


@pytest.fixture
def job(make_spec: Callable[..., JobSpec], switch_endpoint: SwitchEndpoint) -> Job:
    spec = make_spec(workers=2)
    spec = replace(spec, workers=spec.workers[::-1])
    return Job(spec, switch_endpoint, 77, 0, SlotRange(0, 16), group=1, window=8)


def test_it_says_what_a_worker_needs(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "membership.json"
    path.write_text("old")
    write_membership(job, path, {1: ("127.0.0.1", 5555)})
    assert json.loads(path.read_text()) == {
        "job": "job",
        "epoch": 77,
        "slots": 16,
        "window": 8,
        "quorum": 2,
        "table": list(job.spec.table or ()),
        "table16": None,
        "wire_version": 1,
        "switch": {"ip": "10.0.0.254", "udp_port": 24677},
        "workers": [
            {
                "rank": 0,
                "ip": "10.0.0.1",
                "udp_port": 4000,
                "send_to": {"ip": "10.0.0.254", "udp_port": 24677},
            },
            {
                "rank": 1,
                "ip": "10.0.0.2",
                "udp_port": 4001,
                "send_to": {"ip": "127.0.0.1", "udp_port": 5555},
            },
        ],
    }
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_an_error(job: Job, tmp_path: Path) -> None:
    with pytest.raises(ControlPlaneError, match="membership cannot be written"):
        write_membership(job, tmp_path / "missing" / "membership.json")
