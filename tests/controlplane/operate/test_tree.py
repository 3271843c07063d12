# SPDX-License-Identifier: Apache-2.0
"""`hopsum controller` and three embedded switches as processes: two leaves and a spine, which sum one job together.

Leaves have a UDP port on loopback for their workers; cables to the spine are AF_UNIX sockets.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import hopsum
from hopsum.communicator import Communicator
from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.jobs_client import JobsClient
from hopsum_cli.job.job_command import main as job
from hopsum_controlplane import artifacts
from hopsum_controlplane.audit import read_installed
from hopsum_controlplane.devices.drivers import open_device
from hopsum_switch.management import ManagementClient
from hopsum_topologies import NativeSwitch
from hopsum_topologies.process import ManagedProcess
from hopsum_wire import HOPSUM_UDP_PORT
from hopsum_wire.control.values import message_to_dict

pytestmark = pytest.mark.system
START_S, SUM_S = 300.0, 300.0
WORKERS, UPLINK = 4, 9
LEAVES = ("leaf1", "leaf2")
CONTROLLER = """\
[controller]
database = "{folder}/state.sqlite"
listen = "127.0.0.1:0"
metrics_listen = ""
lease_s = 20
heartbeat_s = 0.25
"""
SWITCH = """
[[switch]]
name = "{name}"
driver = "native"
address = "unix:{folder}/{name}"
mac = "02:00:00:00:00:f{number}"
ip = "10.0.0.{number}"
{workers}
"""
WORKERS_AT = """service_address = "{bound}"
ports = [{{port = 1, network = "127.0.{number}.0/24"}}]"""
LINK = '[[link]]\nleaf = "{name}"\nleaf_port = 9\nspine = "spine"\nspine_port = {number}\n'


class Site:
    """The switches and their controller."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.bound: dict[str, str] = {}
        for name in LEAVES:  # what a leaf sends to cable.peer.peer is for the spine's end
            (folder / f"{name}.cable.peer.peer").symlink_to(folder / f"{name}.cable")
        self.switches = {name: self._start(name) for name in (*LEAVES, "spine")}
        self.config = folder / "cluster.toml"
        self.config.write_text(CONTROLLER.format(folder=folder) + "".join(map(self._table, (*LEAVES, "spine"))))
        self.controller = self.start_controller()

    def _start(self, name: str) -> NativeSwitch:
        """Start a switch at its place, a leaf with its UDP port."""
        if name == "spine":
            cables = {number: self.folder / f"{leaf}.cable" for number, leaf in enumerate(LEAVES, 1)}
        else:
            cables = {UPLINK: self.folder / f"{name}.cable.peer"}
        shown = f"10.0.0.{_number(name)}:{HOPSUM_UDP_PORT}"
        udp = {1: f"{self.bound[name]},as={shown}"} if name in self.bound else {}
        made = NativeSwitch(*artifacts.compiled_program(), grpc=f"unix:{self.folder}/{name}", unix=cables, udp=udp)
        self._stack.callback(made.stop)
        if name in LEAVES and not udp:
            with ManagementClient(made.address) as management:
                self.bound[name] = management.bind_udp(1, "127.0.0.1:0", shown)
        return made

    def _table(self, name: str) -> str:
        number = _number(name)
        workers = WORKERS_AT.format(bound=self.bound[name], number=number) if name in LEAVES else ""
        table = SWITCH.format(folder=self.folder, name=name, number=number, workers=workers)
        return table + (LINK.format(name=name, number=number) if name in LEAVES else "")

    def start_controller(self) -> ManagedProcess:
        log = self.folder / "controller.log"
        command = [sys.executable, "-m", "hopsum_cli.main", "controller", "--config", str(self.config)]
        self.controller = ManagedProcess(command, log)
        self._stack.callback(self.controller.stop)
        self.controller.wait_for(lambda: "ready listen=" in self.controller.log_text(), "the controller", START_S)
        return self.controller

    @property
    def address(self) -> str:
        (found,) = re.findall(r"^ready listen=(\S+) switches=leaf1,leaf2,spine$", self.controller.log_text(), re.M)
        return str(found)

    def operator(self) -> JobsClient:
        return JobsClient(self._stack.enter_context(Channel(ControllerAddress.of(self.address))))

    def connect(self, name: str, token: str, leaves: Sequence[str]) -> list[Communicator]:
        """Let the workers of a job join, each at its leaf."""
        with ThreadPoolExecutor(len(leaves)) as pool:
            return list(pool.map(lambda rank: self._join(name, token, rank, leaves[rank]), range(len(leaves))))

    def _join(self, name: str, token: str, rank: int, leaf: str) -> Communicator:
        ip = f"127.0.{_number(leaf)}.{rank + 1}"
        settings = {"codec": "fixed", "backend": "numpy", "deadline_s": SUM_S, "membership_wait_s": START_S}
        return hopsum.connect(f"hopsum://{self.address}/{name}", token=token, rank=rank, ip=ip, **settings)

    def installed_entries(self, name: str) -> int:
        """Return how many entries of jobs a switch has."""
        with open_device("native", self.switches[name].address, election_id=(9, 0)) as device:
            return len(read_installed(device)) - 1  # the address of its service


def _number(name: str) -> int:
    return (*LEAVES, "spine").index(name) + 1


@pytest.fixture
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="hopsum-tree-") as folder, ExitStack() as stack:
        yield Site(Path(folder), stack)


def summed(jobs: list[Communicator]) -> bytes:
    """Let all workers sum; return the mean's bytes, which are the same for all."""
    vectors = [np.random.default_rng(one.rank).standard_normal(5000).astype(np.float32) for one in jobs]
    futures = [one.submit(vector) for one, vector in zip(jobs, vectors, strict=True)]
    means = {future.result(SUM_S).mean.tobytes() for future in futures}
    assert len(means) == 1
    return means.pop()


def close(jobs: list[Communicator]) -> None:
    """All at once, as each waits until the others need nothing of it."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(lambda one: one.close(), jobs))


def test_a_job_over_a_tree_sums_as_at_one_switch(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    operator = site.operator()
    alone = site.connect("alone", operator.create("alone", WORKERS, 16, switch="leaf1").token, ["leaf1"] * WORKERS)
    expected = summed(alone)
    close(alone)

    made = operator.create("train", WORKERS, 16)
    assert list(made.switches) == ["leaf1", "leaf2", "spine"]
    jobs = site.connect("train", made.token, ["leaf1", "leaf1", "leaf2", "leaf2"])
    assert summed(jobs) == expected
    first = message_to_dict(operator.job("train"))
    counted = {part["switch"]: part["counters"] for part in first["parts"]}
    assert counted["spine"]["added"] == 2 * counted["spine"]["completed"] > 0  # one sum of each leaf
    assert counted["leaf1"]["added"] == 2 * counted["spine"]["completed"]  # of its two workers
    assert job(["list", "--controller", site.address]) == 0
    assert re.search(r"^train +running +leaf1, leaf2, then spine +0-15 +4/4", capsys.readouterr().out, re.MULTILINE)

    close(jobs)
    for name in ("alone", "train"):
        operator.delete(name)
    assert site.controller.stop() == 0
    assert [site.installed_entries(name) for name in (*LEAVES, "spine")] == [0, 0, 0]
