# SPDX-License-Identifier: Apache-2.0
"""bmv2, `hopsum controller` and workers as processes, each host in a network namespace: a data network through the
switch, and a management network beside it."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from site_members import ANSWER_S, ELEMENTS, Members

from hopsum_topologies import Bmv2Switch, Namespace, bmv2_unavailable
from hopsum_topologies.process import ManagedProcess
from hopsum_topologies.seat import Seat
from hopsum_topologies.switch_testbed import SWITCH, seats_around

from ...support.processes import await_that

pytestmark = pytest.mark.system
HOSTS = 2
ADMIN = "administrators-token-of-a-test"
LEASE_S = 60.0
CONFIG = """\
[controller]
database = "{folder}/state.sqlite"
listen = "0.0.0.0:4700"
metrics_listen = ""
heartbeat_s = 0.3
reconcile_interval_s = 1
admin_token_file = "{folder}/admin.token"
[[switch]]
name = "s1"
driver = "bmv2"
address = "{address}"
mac = "{mac}"
ip = "{ip}"
l2_forwarding = true
ports = [{ports}]
"""


class Site:
    """The hosts, their switch and its controller; members 0 and 1 are on host 0, members 2 and 3 on host 1."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder, self._controllers = stack, folder, 0
        self.home = stack.enter_context(Namespace())
        self.seats, interfaces = seats_around(stack, self.home, HOSTS)
        for seat in self.seats:
            self._manage(seat)
        switch = stack.enter_context(Bmv2Switch(interfaces, namespace=self.home, grpc="unix"))
        token = folder / "admin.token"
        token.touch(0o600)
        token.write_text(ADMIN)
        ports = ", ".join(f'{{port = {seat.port}, network = "{seat.ip}/32"}}' for seat in self.seats)
        (folder / "cluster.toml").write_text(
            CONFIG.format(folder=folder, address=switch.address, mac=SWITCH.mac, ip=SWITCH.ip, ports=ports)
        )
        self.controller = self.start_controller()
        self.members = stack.enter_context(Members([seat for seat in self.seats for _ in range(2)]))

    def _manage(self, seat: Seat) -> None:
        name, network = f"m{seat.rank}", f"10.1.{seat.rank}"
        self.home.ip("link", "add", "name", name, "type", "veth", "peer", "name", "mgmt", "netns", str(seat.namespace))
        self.home.ip("addr", "add", f"{network}.254/24", "dev", name)
        self.home.ip("link", "set", "dev", name, "up")
        self.home.ip("-n", str(seat.namespace), "addr", "add", f"{network}.1/24", "dev", "mgmt")
        self.home.ip("-n", str(seat.namespace), "link", "set", "dev", "mgmt", "up")

    def start_controller(self) -> ManagedProcess:
        self._controllers += 1
        command = [sys.executable, "-m", "hopsum_cli.main", "controller", "--config", f"{self._folder}/cluster.toml"]
        log = self._folder / f"controller{self._controllers}.log"
        process = ManagedProcess(command, log, namespace=self.home.name)
        self._stack.callback(process.stop)
        process.wait_for(lambda: "ready " in process.log_text(), "the controller", ANSWER_S)
        return process

    def at(self, member: int) -> str:
        """Return where the controller is for a member."""
        return f"10.1.{member // 2}.254:4700"

    def create(self, name: str, lease_s: float = LEASE_S) -> str:
        token = self.members.ask(0, "create", self.at(0), name, HOSTS, lease_s, ADMIN)
        assert re.fullmatch(r"[\w-]{40,}", token), token
        return str(token)

    def show(self, name: str) -> dict[str, Any]:
        found = self.members.ask(0, "show", self.at(0), name, ADMIN)
        assert isinstance(found, dict), found
        return found

    def connect(self, job: str, token: str, crew: tuple[int, int], wait_s: float = ANSWER_S) -> None:
        for rank, member in enumerate(crew):
            self.members.tell(member, "connect", f"hopsum://{self.at(member)}/{job}?tls=off", token, rank, wait_s)
        assert [self.members.hear(member) for member in crew] == [0, 1]

    def check_sum(self, *crews: tuple[int, int]) -> None:
        """Let jobs sum, all at once."""
        everybody = [member for crew in crews for member in crew]
        self.members.ask_all(everybody, "submit")
        means = self.members.ask_all(everybody, "result")
        for first, second in zip(means[::2], means[1::2], strict=True):
            assert first == second
            mean = np.linspace(-1, 1, ELEMENTS, dtype=np.float32) * 1.5
            assert np.allclose(np.frombuffer(first, np.float32), mean, atol=1e-4)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if (reason := bmv2_unavailable()) is not None:
        pytest.skip(reason)
    with ExitStack() as stack:
        yield Site(stack, tmp_path_factory.mktemp("site"))


ONE, OTHER = (0, 2), (1, 3)


def test_two_jobs_of_two_hosts_and_a_controller_that_is_killed(site: Site) -> None:
    first, second = site.create("first"), site.create("second")
    site.connect("first", first, ONE)
    site.connect("second", second, OTHER)
    site.check_sum(ONE, OTHER)
    generations = {job: site.show(job)["generation"] for job in ("first", "second")}

    wrong = site.members.ask(1, "replay", site.at(1), first)
    assert "wrong token for job 'second'" in wrong
    assert site.members.ask(0, "replay", site.at(0), first) == "the same answer"
    site.check_sum(ONE, OTHER)
    assert {job: site.show(job)["generation"] for job in generations} == generations
    assert "wrong token" not in site.show("first")["reason"]

    os.kill(site.controller.pid, signal.SIGKILL)
    site.check_sum(ONE, OTHER)  # sums need no controller
    site.controller = site.start_controller()
    assert "2 jobs adopted" in site.controller.log_text()
    site.check_sum(ONE, OTHER)
    shown = {job: site.show(job) for job in generations}
    assert {job: found["generation"] for job, found in shown.items()} == generations
    assert all(found["counters"]["added"] > 0 for found in shown.values())

    site.members.ask_all(ONE, "close")
    await_that(lambda: bool(site.show("first")["state"] == "forming"))
    refused = site.members.ask(0, "replay", site.at(0), first)
    assert "this worker left job 'first'" in refused
    site.check_sum(OTHER)
    messages, unreachable = zip(*site.members.ask_all(OTHER, "close"), strict=True)
    assert min(messages) > 0  # through the switch, which forwards
    assert unreachable == (0, 0)
