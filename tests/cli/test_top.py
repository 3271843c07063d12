# SPDX-License-Identifier: Apache-2.0
"""`hopsum top` at a cluster in memory behind its service."""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.jobs_client import JobsClient
from hopsum_cli.operator import take_snapshot
from hopsum_cli.top.screen import screen
from hopsum_cli.top.top_command import _asked_for, _forget, main
from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.service.grpc_service import Service
from hopsum_controlplane.web.page_state import PageState
from hopsum_wire import Drop, Event
from hopsum_wire.watch.rates import document
from hopsum_wire.watch.snapshots import ControllerSnapshot, rates_are_known

from ..controlplane.cluster.world import LEASE_S, Cluster, device_of, time_passes

pytestmark = pytest.mark.system


@pytest.fixture
def address(cluster: Cluster) -> Iterator[str]:
    with Service(cluster.controller, "127.0.0.1:0") as service:
        yield service.address


def look(cluster: Cluster, address: str) -> ControllerSnapshot:
    with Channel(ControllerAddress.of(address)) as channel:
        return take_snapshot(JobsClient(channel), cluster.clock)


def shown(document: dict[str, Any]) -> str:
    console = Console(width=220, file=io.StringIO())
    with console.capture() as captured:
        console.print(screen(document))
    return captured.get()


def test_rates_of_a_job(cluster: Cluster, address: str) -> None:
    crew, switch = cluster.run("train"), device_of(cluster)
    switch.counters["job_events"] = {Event.ADDED: 100, Event.COMPLETED: 50}
    for worker in crew:
        worker.beat(allreduces=3, elements=3000, retransmits=1)
    before = look(cluster, address)
    cluster.clock.sleep(5)
    switch.counters["job_events"] = {Event.ADDED: 200, Event.COMPLETED: 100, Event.DUPLICATE: 10}
    switch.counters["drops"] = {Drop.SIMULATED: 20}
    for worker in crew:
        steps = {"steps": 8, "step_seconds": 4.0, "wait_seconds": 1.0 + worker.rank}
        worker.beat(
            **{"allreduces": 13, "elements": 13000, "retransmits": 6, "bytes_sent": 5000, "bytes_received": 10000},
            **{"datagrams_received": 10, **steps},
        )
    found = document(before, look(cluster, address))
    assert found["seconds"] == 5
    (job,) = found["jobs"]
    counted = ("added", "completed", "duplicate", "answered", "stale", "fault")
    assert [job["rates"].pop(name) for name in counted] == [20, 10, 2, 0, 0, 0]
    assert job["rates"] == {
        **{"allreduces": 2, "elements": 4000, "retransmits": 2},
        **{"bytes_sent": 2000, "bytes_received": 4000},
    }
    assert (job["ratio_up"], job["ratio_down"]) == (8, 4)  # of 10,000 elements each
    assert job["wait_share"] == 3 / 8
    assert job["ring_share"] == (10000 + 10 * 42) / (2 * (1 / 2) * 4 * 10000)
    assert (job["health"], job["health_reason"]) == ("healthy", "")
    assert job["behind"] == []
    assert found["switches"][0]["rates"] == {"simulated": 4}
    text = shown(json.loads(json.dumps(found)))
    assert "simulated 4" in text
    assert "4k" in text
    assert "8x/4x" in text
    assert "38%" in text
    assert "0.26x" in text


def test_who_is_behind(cluster: Cluster, address: str) -> None:
    crew = cluster.run("train", 3)
    before = look(cluster, address)
    cluster.clock.sleep(6)
    for worker in crew:
        worker.beat(datagrams_sent=9.0 * (worker.rank != 2), retransmits=8.0 * (worker.rank != 2))
    found = document(before, look(cluster, address))
    assert found["jobs"][0]["behind"] == [2]
    assert shown(found).splitlines()[-1].rstrip().endswith("rank 2")


def test_rates_are_of_heartbeats_and_unknown_before_there_are_two(cluster: Cluster, address: str) -> None:
    """Heartbeats come every 5 s, the looks are 2 s apart: a job that works is never shown with a rate of 0."""
    crew = cluster.run("train")
    rates = []
    looks = deque([look(cluster, address)])
    for second in range(1, 21):
        cluster.clock.sleep(1)
        for worker in crew:
            if second % 5 == worker.rank:
                worker.beat(allreduces=10.0 * second, elements=1000.0 * second)
        if second % 2 == 0:
            looks.append(look(cluster, address))
            _forget(looks, 6.0)
            (job,) = document(looks[0], looks[-1])["jobs"]
            rates.append((job["rates"].get("allreduces"), job["rates"].get("elements")))
            assert not rates_are_known(looks[0], looks[-1]) or rates[-1][0] is not None
    assert set(rates[1:]) <= {(10, 2000), (None, None)}
    assert rates[-1] == (10, 2000)
    assert rates.count((10, 2000)) > len(rates) / 2, rates
    (job,) = document(look(cluster, address), look(cluster, address))["jobs"]
    assert "allreduces" not in job["rates"]


def test_who_comes_last_and_what_ranks_tell_of_themselves(cluster: Cluster, address: str) -> None:
    crew = cluster.run("train", 3)
    before = look(cluster, address)
    cluster.clock.sleep(4)
    for worker in crew:
        took_s = 0.01 if worker.rank == 1 else 0.05
        lanes = {"codes_lookup_add8": 4096, "codes_max32": 8}
        worker.beat(allreduces=2, seconds=2 * took_s, error_squares=worker.rank, vector_squares=100, **lanes)
    cluster.clock.sleep(1)
    found = document(before, look(cluster, address))
    (job,) = found["jobs"]
    assert (job["late"], job["behind"]) == ([1], [])
    assert job["codes"] == {"lookup_add8": 3 * 4096 / 4, "max32": 3 * 8 / 4}  # since it began
    assert job["nmse"] == pytest.approx(0.01)
    assert job["latency_s"] == pytest.approx(0.11 / 3)
    assert [member["nmse"] for member in job["members"]] == [0, 0.01, 0.02]
    assert [member["silent_s"] for member in job["members"]] == [1, 1, 1]
    assert [member["rates"]["allreduces"] for member in job["members"]] == [0.5] * 3
    text = shown(found)
    for words in ("rank 1 late", "36.7ms", "0.01"):
        assert words in text


@pytest.mark.parametrize(
    ("took_s", "late"),
    [([0.05, 0.05, 0.05], []), ([0.001, 0.0021, 0.0029], []), ([0.03, 0.05, 0.05], []), ([0.0, 0.05, 0.05], [0]),
     ([0.02, 0.01], []), ([0.02, 0.009], [1])],
)  # fmt: skip
def test_coming_last_is_by_far(cluster: Cluster, address: str, took_s: list[float], late: list[int]) -> None:
    crew = cluster.run("train", len(took_s))
    before = look(cluster, address)
    for worker, seconds in zip(crew, took_s, strict=True):
        worker.beat(allreduces=1, seconds=seconds)
    cluster.clock.sleep(1)
    assert document(before, look(cluster, address))["jobs"][0]["late"] == late


def test_a_new_generation_has_no_rates_yet(cluster: Cluster, address: str) -> None:
    crew = cluster.run("train")
    before = look(cluster, address)
    cluster.clock.sleep(1)
    crew[0].start_again()
    crew[1].join()
    found = document(before, look(cluster, address))
    assert (found["jobs"][0]["state"], found["jobs"][0]["rates"]) == ("running", {})


def test_what_is_wrong_is_told_below(cluster: Cluster, address: str) -> None:
    crew = cluster.make("train", 12)
    with pytest.raises(ControlPlaneError):
        crew[0].join(wire_version=99)
    now = look(cluster, address)
    text = shown(document(now, now))
    assert "forming, idle" in text
    assert "job train: 1 joins refused, the last 0 s ago: join of job 'train': wire version 99" in text
    crew[0].join()
    now = look(cluster, address)
    assert "job train: waits for ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 of 12 to join" in shown(document(now, now))


def test_a_job_that_continues_without_a_rank(cluster: Cluster, address: str) -> None:
    crew = cluster.run("train", 3, quorum=2)
    time_passes(cluster, LEASE_S + 0.1, *crew[1:])
    now = look(cluster, address)
    text = shown(document(now, now))
    assert "running, degraded" in text
    assert "job train: continues without rank 0; a quorum is 2 of 3" in text


def test_the_command_prints_one_object(cluster: Cluster, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.run("train")
    once = ["--controller", address, "--once", "--interval", "0.05"]
    assert main([*once, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [job["name"] for job in found["jobs"]] == ["train"]
    assert [switch["reachable"] for switch in found["switches"]] == [True]
    assert found["seconds"] >= 0.05
    assert main([*once, "IDLE"]) == 0
    out = capsys.readouterr().out
    assert "train" not in out
    assert "1 more, not asked for" in out


def test_jobs_that_need_somebody_come_first(cluster: Cluster, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A controller gives its jobs by their names: among many idle ones nobody would see what is wrong."""
    degraded = cluster.run("e-degraded", 3, quorum=2)
    cluster.run("d-failed")
    time_passes(cluster, LEASE_S + 0.1, *degraded[1:])
    cluster.run("c-runs")
    cluster.make("b-waits")[0].join()
    cluster.make("a-idle")
    expected = ["e-degraded", "d-failed", "c-runs", "b-waits", "a-idle"]
    assert [job["name"] for job in PageState(cluster.controller).read_values()["jobs"]] == expected
    now = look(cluster, address)
    for words, left in (
        ([], expected),
        (["running"], ["e-degraded", "c-runs"]),
        (["RUNNING", "c"], ["c-runs"]),
        (["failed"], ["d-failed"]),
        (["idle"], ["a-idle"]),
        (["running", "idle"], []),
    ):
        asked, left_out = _asked_for(document(now, now), words)
        assert [job["name"] for job in asked["jobs"]] == left, words
        assert left_out == len(expected) - len(left)


def test_no_controller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--controller", f"unix:{tmp_path}/nobody", "--once"]) == 1
    assert "hopsum top: controller at unix:" in capsys.readouterr().err
