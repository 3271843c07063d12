# SPDX-License-Identifier: Apache-2.0
"""`hopsum worker-switch` and `hosts://`: switches on the workers' hosts, registered with a controller or without."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsum
from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_topologies.free_port import free_port
from hopsum_topologies.process import ManagedProcess
from hopsum_topologies.star import Star

from ...support.processes import await_that, is_alive
from ...support.targets import require_namespaces

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


SCRIPT = Path(__file__).with_name("training_script.py")
HOSTS_WAIT_S = 240.0


@contextmanager
def torchrun(star: Star, host: int, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the script under torchrun on a host of two, without capabilities."""
    plain = [shutil.which("setpriv") or "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    where = ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={host}", f"--master-addr={star.host_ip(0)}"]
    command = ["-m", "torch.distributed.run", *where, "--master-port=29511", str(SCRIPT), str(folder), *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    with (folder / f"log{host}").open("wb") as log:
        process = subprocess.Popen(
            ["ip", "netns", "exec", star.hosts[host].name, *plain, sys.executable, *command],
            env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()  # torchrun ends its ranks
        process.wait(60)


def told(folder: Path, processes: list[subprocess.Popen[bytes]] | None = None) -> list[dict[str, Any]]:
    """Return what both ranks wrote."""
    until = time.monotonic() + HOSTS_WAIT_S
    files = [folder / f"rank{rank}.json" for rank in range(2)]
    while not all(file.exists() and file.stat().st_size for file in files):
        logs = "\n".join((folder / f"log{host}").read_text(errors="replace")[-3000:] for host in range(2))
        assert time.monotonic() < until, logs
        assert processes is None or all(each.poll() in (None, 0) for each in processes), logs
        time.sleep(0.05)
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture
def star() -> Iterator[Star]:
    require_namespaces()
    with Star(2) as star:
        yield star


def test_one_line_in_a_script_sums_over_the_hosts(star: Star, tmp_path: Path) -> None:
    with ExitStack() as stack:
        running = [stack.enter_context(torchrun(star, host, tmp_path)) for host in range(2)]
        first, second = told(tmp_path, running)
        for process in running:
            assert process.wait(HOSTS_WAIT_S) == 0, (tmp_path / "log0").read_text() + (tmp_path / "log1").read_text()
    assert first["digest"] == second["digest"]
    assert first["losses"][-1] < first["losses"][0]
    assert [place.split(":")[0] for place in first["shards"]] == ["10.0.0.1", "10.0.0.2"]
    assert first["shards"] == second["shards"]
    assert (len(first["children"]), len(second["children"])) == (2, 1)
    for pid in (*first["children"], *second["children"]):
        assert not Path(f"/proc/{pid}").exists()


def test_children_end_with_a_rank_that_is_killed(star: Star, tmp_path: Path) -> None:
    with ExitStack() as stack:
        running = [stack.enter_context(torchrun(star, host, tmp_path, "stay")) for host in range(2)]
        found = told(tmp_path, running)
        for each in found:
            os.kill(each["pid"], signal.SIGKILL)
        children = [pid for each in found for pid in each["children"]]
        await_that(lambda: not any(map(is_alive, children)), "end of the ranks' children")
