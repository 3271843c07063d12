# SPDX-License-Identifier: Apache-2.0
"""The whole stack: the embedded switch, a cluster controller with its database, the service; workers join by URL."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsum
from hopsum.codec import job_tables, make_codec
from hopsum.communicator import Communicator
from hopsum.errors import GenerationEndedError
from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_cli.doctor import main as doctor
from hopsum_cli.top import main as top
from hopsum_controlplane.cluster import ClusterConfig, ClusterController, PortRule, StateStore, SwitchConfig
from hopsum_controlplane.devices.device import Device
from hopsum_controlplane.service.grpc_service import Service
from hopsum_topologies.switch_testbed import NATIVE_PORT, SWITCH, native_testbed
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import MembershipError

pytestmark = pytest.mark.system
SLOTS, LEASE_S, SHORT_LEASE_S, TICK_S = 16, 60.0, 4.0, 0.05


@dataclass
class Controller:
    """A controller that can be stopped and started again over its database."""

    config: ClusterConfig
    devices: dict[str, Device]
    address: str = "127.0.0.1:0"

    @contextmanager
    def running(self) -> Iterator[ClusterController]:
        over = threading.Event()
        with ExitStack() as stack:
            store = StateStore(self.config.database)
            stack.callback(store.close)
            cluster = ClusterController(self.config, store, self.devices)
            ticking = threading.Thread(target=_tick, args=(cluster, over))
            ticking.start()
            stack.callback(ticking.join)
            stack.callback(over.set)
            service = stack.enter_context(Service(cluster, self.address))
            self.address = service.address  # and so it stays
            yield cluster

    def operator(self, stack: ExitStack) -> JobsClient:
        return JobsClient(stack.enter_context(Channel(ControllerAddress.of(self.address))))

    def connect(self, job: str, token: str, rank: int | None = None, **settings: Any) -> Communicator:
        given = {"codec": "fixed", "backend": "numpy", "deadline_s": 60.0, "replacement_wait_s": 60.0, **settings}
        return hopsum.connect(f"hopsum://{self.address}/{job}", token=token, rank=rank, **given)

    def connect_all(self, job: str, token: str, workers: int = 2, **settings: Any) -> list[Communicator]:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda rank: self.connect(job, token, rank, **settings), range(workers)))


def _tick(cluster: ClusterController, over: threading.Event) -> None:
    while not over.wait(TICK_S):
        cluster.tick()


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with native_testbed(1) as stage:
        switch = SwitchConfig(
            "leaf",
            "native",
            "127.0.0.1:1",
            0,
            SWITCH,
            (PortRule(NATIVE_PORT, IPv4Network("127.0.0.0/8")),),
            service_address=stage.seats[0].switch,
        )
        config = ClusterConfig((switch,), tmp_path / "state.sqlite", lease_s=LEASE_S, heartbeat_s=0.2)
        yield Controller(config, {"leaf": stage.device})


def _sum(jobs: list[Communicator]) -> list[list[float]]:
    futures = [job.submit(np.float32([job.rank, 2])) for job in jobs]
    return [future.result(60).mean.tolist() for future in futures]


def _close(jobs: list[Communicator]) -> None:
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(lambda job: job.close(), jobs))


def _over(job: Communicator, match: str) -> None:
    """Wait until the job's agent has heard that its generation is over."""
    with pytest.raises(GenerationEndedError, match=match):
        job.submit(np.ones(2, np.float32)).result(60)


def _vanish(job: Any) -> None:
    """End a worker as a machine that is cut off would: no LEAVE, no heartbeat, and no end of its connection."""
    job._lease._stopping.set()
    job._lease._member.leave = lambda wait_s, unfinished="": None


def test_two_jobs_on_one_switch(controller: Controller) -> None:
    codec = make_codec("uhc", workers=2, backend="numpy")
    with controller.running() as cluster, ExitStack() as stack:
        operator = controller.operator(stack)
        first, second = operator.create("first", 2, SLOTS), operator.create("second", 2, SLOTS, **job_tables(codec))
        jobs = controller.connect_all("first", first.token) + controller.connect_all(
            "second", second.token, codec="uhc"
        )
        assert _sum(jobs[:2]) == [[0.5, 2]] * 2
        means = _sum(jobs[2:])
        assert means[0] == means[1]
        with pytest.raises(ControllerError, match="wrong token for job 'second'"):
            controller.connect("second", first.token, 0)
        assert {job.name: job.counters["added"] > 0 for job in map(operator.job, ("first", "second"))} == {
            "first": True,
            "second": True,
        }
        operator.delete("first")
        _over(jobs[0], "no job 'first'|the job was deleted|job 'first' is being deleted")
        means = _sum(jobs[2:])
        assert means[0] == means[1]
        _close(jobs)
        _until(lambda: [job.state for job in cluster.jobs()] == [pb.JOB_STATE_FORMING])
        operator.delete("second")
        assert operator.switches()[0].slots_used == 0


def test_a_lost_worker_ends_the_generation_and_all_come_again(controller: Controller) -> None:
    with controller.running(), ExitStack() as stack:
        token = controller.operator(stack).create("train", 2, SLOTS, lease_s=SHORT_LEASE_S).token
        jobs = controller.connect_all("train", token, replacement_wait_s=3.0)
        assert _sum(jobs) == [[0.5, 2]] * 2
        waiting = jobs[0].submit(np.ones(2, np.float32))  # a round that rank 1 never comes to
        _vanish(jobs[1])
        told = r"the lease of rank 1 ran out: nothing was heard of it for 4 s; no worker has taken the place of rank 1 "
        with pytest.raises(MembershipError, match=told):
            waiting.result(60)
        _close(jobs)
        again = controller.connect_all("train", token)
        assert _sum(again) == [[0.5, 2]] * 2
        assert again[0].membership.generation > jobs[0].membership.generation
        _close(again)


def test_top_names_a_rank_that_does_not_come(controller: Controller, capsys: pytest.CaptureFixture[str]) -> None:
    with controller.running(), ExitStack() as stack:
        token = controller.operator(stack).create("train", 3, SLOTS, lease_s=SHORT_LEASE_S).token
        jobs = controller.connect_all("train", token, 3)
        assert _sum(jobs) == [[1, 2]] * 3
        waiting = [jobs[rank].submit(np.ones(2, np.float32)) for rank in (0, 2)]
        interval = str(SHORT_LEASE_S / 2 + 0.1)

        def behind() -> Any:
            top(["--controller", controller.address, "--json", "--once", "--interval", interval])
            return json.loads(capsys.readouterr().out)["jobs"][0]["behind"]

        _until(lambda: behind() == [1])
        late = jobs[1].submit(np.ones(2, np.float32))
        assert [future.result(60).mean.tolist() for future in (*waiting, late)] == [[1, 1]] * 3
        _close(jobs)


def test_the_doctor_takes_the_url_that_workers_take(
    controller: Controller, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(url: str, *arguments: str) -> dict[str, dict[str, Any]]:
        doctor([url, "--json", "--stuck-after", "0", *arguments])
        return {each["check"]: each for each in json.loads(capsys.readouterr().out)["checks"]}

    def statuses(url: str, *checks: str) -> list[str]:
        found = told(url)
        return [found[check]["status"] for check in checks]

    token_file = tmp_path / "token"
    token_file.write_text("nobody's")
    with controller.running(), ExitStack() as stack:
        operator = controller.operator(stack)
        token = operator.create("train", 2, SLOTS).token
        url = f"hopsum://{controller.address}/{{}}?token_file={token_file}"
        assert statuses(url.format("train"), "url", "controller", "job", "token") == ["pass"] * 3 + ["fail"]
        token_file.write_text(token)
        assert statuses(url.format("trian"), "controller", "job", "token") == ["pass", "fail", "skip"]
        assert "cannot be read" in told(f"hopsum://{controller.address}/train?token_file=/nowhere")["url"]["finding"]
        assert statuses(url.format("train"), "token", "address", "route", "switch") == ["pass"] * 3 + ["skip"]
        jobs = controller.connect_all("train", token)
        found = told(url.format("train"))
        assert {each["status"] for each in found.values()} <= {"pass", "skip"}, found
        assert "answers rank 0" in found["switch"]["finding"] or "run this as root" in found["switch"]["fix"]
        _close(jobs)
    assert statuses(url.format("train"), "url", "controller", "job") == ["pass", "fail", "skip"]


def test_workers_go_on_while_the_controller_is_away(controller: Controller) -> None:
    with controller.running(), ExitStack() as stack:
        token = controller.operator(stack).create("train", 2, SLOTS).token
        jobs = controller.connect_all("train", token)
    assert _sum(jobs) == [[0.5, 2]] * 2
    with controller.running() as cluster:
        assert [job.state for job in cluster.jobs()] == [pb.JOB_STATE_RUNNING]
        assert _sum(jobs) == [[0.5, 2]] * 2
        heard = lambda: [member.statistics.get("allreduces") for member in cluster.job("train").members]  # noqa: E731
        _until(lambda: heard() == [2, 2])
        _close(jobs)
        _until(lambda: cluster.job("train").state == pb.JOB_STATE_FORMING)


def _until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    over = threading.Event()
    for _ in range(int(timeout_s / TICK_S)):
        if condition():
            return
        over.wait(TICK_S)
    raise AssertionError("it did not come to that")
