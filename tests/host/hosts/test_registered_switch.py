# SPDX-License-Identifier: Apache-2.0
"""`hopsum worker-switch`: real switches that register with a real controller, and a job over all of them."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import hopsum
from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_topologies.free_port import free_port
from hopsum_topologies.process import ManagedProcess

pytestmark = pytest.mark.system
TOKEN = "the-token-for-the-switches"
WAIT_S = 120.0
CONFIG = """\
[controller]
database = "{folder}/state.sqlite"
listen = "127.0.0.1:{port}"
metrics_listen = ""
switch_token_file = "{folder}/switch.token"
lease_s = 60.0
heartbeat_s = 0.2
"""


def until(condition: Callable[[], object], what: str, *processes: ManagedProcess) -> None:
    give_up = time.monotonic() + WAIT_S
    while not condition():
        logs = "\n".join(each.log_text()[-2000:] for each in processes)
        assert time.monotonic() < give_up, f"no {what}: {logs}"
        time.sleep(0.02)


class Site:
    """A controller without switches, and hosts that are addresses of loopback."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack, self.port, self.starts = folder, stack, free_port(), 0
        token = folder / "switch.token"
        token.touch(mode=0o600)
        token.write_text(TOKEN)
        (folder / "controller.toml").write_text(CONFIG.format(folder=folder, port=self.port))
        self.controller = self.start_controller()

    def start(self, *arguments: str) -> ManagedProcess:
        self.starts += 1
        command = [sys.executable, "-m", "hopsum_cli.main", *arguments]
        process = ManagedProcess(command, self.folder / f"{arguments[0]}-{self.starts}.log")
        self.stack.callback(process.stop)
        return process

    def start_controller(self) -> ManagedProcess:
        self.controller = self.start("controller", "--config", str(self.folder / "controller.toml"))
        until(lambda: "ready listen=" in self.controller.log_text(), "controller", self.controller)
        return self.controller

    def start_switch(self, host: int, *more: str) -> ManagedProcess:
        token = more or ("--switch-token-file", str(self.folder / "switch.token"))
        where = ("--controller", f"127.0.0.1:{self.port}", "--switch-name", f"host{host}", "--ip", f"127.0.0.{host}")
        return self.start("worker-switch", *where, *token)

    @contextmanager
    def operator(self) -> Iterator[JobsClient]:
        with Channel(ControllerAddress.of(f"127.0.0.1:{self.port}", tls=False)) as channel:
            yield JobsClient(channel)

    def await_registered(self, *names: str) -> None:
        with self.operator() as operator:

            def there() -> bool:
                try:
                    found = {each.name for each in operator.switches() if each.registered and each.reachable}
                except ControllerError:
                    return False
                return found == set(names)

            until(there, f"switches {names}", self.controller)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def completed(site: Site, name: str) -> list[int]:
    """Return how many rounds each switch of a job that runs has completed."""
    with site.operator() as operator:
        parts = operator.job(name).parts
    assert [part.switch for part in parts] == ["host2", "host3"]
    return [part.counters["completed"] for part in parts]


def summed(site: Site, name: str) -> list[np.ndarray]:
    """Make a job over all hosts, and return the means that two workers get."""
    with site.operator() as operator:
        made = operator.create(name, 2, 16, hosts=True)
    found: list[np.ndarray | BaseException] = [RuntimeError("nothing came"), RuntimeError("nothing came")]
    counted: list[list[int]] = [[], []]
    vectors = [np.linspace(rank, 1, 5000, dtype=np.float32) for rank in range(2)]

    def work(rank: int) -> None:
        try:
            url = f"hopsum://127.0.0.1:{site.port}/{name}"
            with hopsum.connect(url, token=made.token, rank=rank, codec="fixed", backend="numpy") as agent:
                mean = hopsum.allreduce(vectors[rank], agent)
                counted[rank] = completed(site, name)
                found[rank] = mean
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(isinstance(each, BaseException) for each in found), found
    assert all(each and all(each) for each in counted), f"both hosts' switches have summed: {counted}"
    means = [each for each in found if isinstance(each, np.ndarray)]
    assert np.abs(means[0] - np.mean(vectors, axis=0)).max() < 1e-3
    assert means[0].tobytes() == means[1].tobytes()
    return means


def test_hosts_register_sum_and_register_again_at_a_controller_that_forgot_them(site: Site) -> None:
    switches = [site.start_switch(host) for host in (2, 3)]
    site.await_registered("host2", "host3")
    summed(site, "first")
    os.kill(site.controller.pid, signal.SIGKILL)
    site.controller.stop()
    until(lambda: all("not registered: " in each.log_text() for each in switches), "word of that", *switches)
    for file in site.folder.glob("state.sqlite*"):
        file.unlink()
    site.start_controller()
    site.await_registered("host2", "host3")
    summed(site, "second")
    with site.operator() as operator:
        operator.delete("second")
    for switch in switches:
        os.kill(switch.pid, signal.SIGTERM)
        until(lambda: not switch.running(), "end", switch)  # noqa: B023
        assert "deregistered" in switch.log_text()
    site.await_registered()


def test_a_switch_ends_where_it_is_refused_or_its_child_dies(site: Site) -> None:
    (site.folder / "wrong.token").touch(mode=0o600)
    (site.folder / "wrong.token").write_text("not-the-token-of-the-switches")
    wrong = site.start_switch(2, "--switch-token-file", str(site.folder / "wrong.token"))
    until(lambda: not wrong.running(), "end", wrong)
    assert "this call has another token than that for switches" in wrong.log_text()
    dying = site.start_switch(3)
    site.await_registered("host3")
    children = Path(f"/proc/{dying.pid}/task").glob("*/children")
    found = [int(pid) for file in children for pid in file.read_text().split()]
    assert len(found) == 1
    os.kill(found[0], signal.SIGKILL)
    until(lambda: not dying.running(), "end", dying)
    assert re.search(r"error: switch ended with status -9", dying.log_text())
