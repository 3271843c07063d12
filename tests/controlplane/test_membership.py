# SPDX-License-Identifier: Apache-2.0
"""The membership file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane import ControlPlaneError, Job, JobSpec, SwitchEndpoint, job_membership, write_membership
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_wire import Op
from hopsum_wire.membership import membership_document


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
        "generation": 77,
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


def test_a_code_group_of_its_own_is_told(job: Job) -> None:
    assert "code_group" not in document_of(job)
    assert document_of(replace(job, code_group=64)) == {**document_of(job), "code_group": 64}


def test_operations_are_told_where_some_are_missing(job: Job) -> None:
    assert "ops" not in document_of(job)
    few = replace(job, ops=(Op.ADD8, Op.MAX32))
    assert document_of(few) == {**document_of(job), "ops": ["ADD8", "MAX32"]}


def document_of(job: Job, **options: Any) -> dict[str, Any]:
    return membership_document(job_membership(job, **options))


def sides(document: dict[str, Any]) -> list[tuple[str | None, int | None]]:
    return [(worker.get("side_ip"), worker.get("side_port")) for worker in document["workers"]]


def test_side_channels_where_a_sum_may_be_without_a_worker(job: Job) -> None:
    none, own = [(None, None)] * 2, [(None, 4000), (None, 4001)]
    assert sides(document_of(job)) == none
    assert sides(document_of(job, side_channels=True)) == own
    small = replace(job, spec=replace(job.spec, quorum=1))
    assert sides(document_of(small)) == own
    assert sides(document_of(small, side_channels=False)) == none
    given = {0: ("10.0.0.1", 7000), 1: ("127.0.0.1", 7000)}
    assert sides(document_of(job, side_channels=given)) == [(None, 7000), ("127.0.0.1", 7000)]


def test_a_side_key_for_each_generation_where_there_are_side_channels(job: Job, tmp_path: Path) -> None:
    document = document_of(job, side_channels=True)
    assert re.fullmatch("[0-9a-f]{64}", document["side_key"])
    assert document_of(job, side_channels=True) == document, "whoever asks for the generation's is told the same"
    assert "side_key" not in document_of(job, side_channels=False)
    next_generation = Job.at(job.spec, job.switch, job.generation + 1, job.job_index, job.region)
    assert document_of(next_generation, side_channels=True)["side_key"] != document["side_key"]
    assert document["side_key"] not in repr(job)
    path = tmp_path / "membership.json"
    write_membership(job, path, side_channels=True)
    assert json.loads(path.read_text())["side_key"] == document["side_key"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({0: ("10.0.0.1", 7000)}, r"side channels of ranks \[0\], workers of ranks \[0, 1\]"),
        ({0: ("10.0.0.1", 7000), 2: ("10.0.0.2", 7000)}, r"side channels of ranks \[0, 2\]"),
        ({0: ("10.0.0.1", 7000), 1: ("10.0.0.1", 7000)}, r"2 side channels at 10\.0\.0\.1:7000"),
        ({0: ("10.0.0.1", 0), 1: ("10.0.0.1", 7000)}, "side channel of rank 0 at TCP port 0"),
        ({0: ("10.0.0", 7000), 1: ("10.0.0.1", 7000)}, "10.0.0"),
    ],
)
def test_side_channels_that_cannot_be(job: Job, tmp_path: Path, given: Any, message: str) -> None:
    path = tmp_path / "membership.json"
    with pytest.raises(ControlPlaneError, match=message):
        write_membership(job, path, side_channels=given)
    assert not path.exists()


def test_a_missing_folder_is_an_error(job: Job, tmp_path: Path) -> None:
    with pytest.raises(ControlPlaneError, match="membership cannot be written"):
        write_membership(job, tmp_path / "missing" / "membership.json")
