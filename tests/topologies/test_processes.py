# SPDX-License-Identifier: Apache-2.0
"""Child processes, free ports, messages of a pool's workers, and what dead owners left."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hopsum_topologies import TopologyError, netns, remove_stale_namespaces, shaping
from hopsum_topologies import free_port as module
from hopsum_topologies.free_port import free_port
from hopsum_topologies.process import ManagedProcess
from hopsum_topologies.worker_pool import WorkerPool

pytestmark = pytest.mark.system


def test_ports_that_nobody_bound_to_yet_are_not_returned_twice() -> None:
    assert len({free_port() for _ in range(500)}) == 500


@pytest.mark.parametrize("program", ["ip", "tc"])
def test_a_command_that_hangs_is_an_error_of_this_package(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / program
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(netns, "_IP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(shaping, "_TC_TIMEOUT_S", 0.2)
    namespace = cast(netns.Namespace, SimpleNamespace(name="any"))
    runs = {"ip": lambda: netns.processes_in("any"), "tc": lambda: shaping.tc(namespace, "qdisc")}
    with pytest.raises(TopologyError, match=rf"`{program} .*` did not end in 0\.2 s"):
        runs[program]()


def test_taken_ports_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        taken = [free_port(socket.SOCK_DGRAM) for _ in range(3)]
        for port in taken[:2]:
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).bind(("127.0.0.1", port))
        monkeypatch.setattr(module, "_returned", [])
        monkeypatch.setattr(module.OWN_RANDOM, "sample", lambda ports, count: taken)
        assert free_port(socket.SOCK_DGRAM) == taken[2]
        monkeypatch.setattr(module.OWN_RANDOM, "sample", lambda ports, count: taken[:2])
        with pytest.raises(TopologyError, match=r"none of 1000 ports of 127\.0\.0\.1 between 120.. and 24000"):
            free_port(socket.SOCK_DGRAM)


def _python(code: str, folder: Path) -> ManagedProcess:
    return ManagedProcess([sys.executable, "-u", "-c", code], folder / "log")


def test_waits_for_what_it_prints_and_stops_it(tmp_path: Path) -> None:
    process = _python("import time; print('here'); time.sleep(600)", tmp_path)
    try:
        process.wait_for(lambda: "here" in process.log_text(), "here", 600)
        assert process.running()
    finally:
        process.stop()
    assert not process.running()
    process.stop()


def test_early_end_shows_status_and_the_end_of_the_log(tmp_path: Path) -> None:
    process = _python("import sys; print('the reason'); sys.exit(3)", tmp_path)
    with pytest.raises(TopologyError, match=r"(?s)ended with 3 before a sign.*the reason"):
        process.wait_for(lambda: False, "a sign", 600)


def test_a_module_of_python_is_named_by_itself(tmp_path: Path) -> None:
    process = ManagedProcess([sys.executable, "-m", "no_such_module"], tmp_path / "log")
    with pytest.raises(TopologyError, match=r"^no_such_module ended with 1 before"):
        process.wait_for(lambda: False, "a sign", 600)


def test_time_over_stops_it(tmp_path: Path) -> None:
    process = _python("import time; time.sleep(600)", tmp_path)
    with pytest.raises(TopologyError, match=r"no sign of life in 0\.1 s"):
        process.wait_for(lambda: False, "life", 0.1)
    assert not process.running()


def test_an_interrupted_wait_stops_it(tmp_path: Path) -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    process = _python("import time; time.sleep(600)", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        process.wait_for(interrupt, "life", 600)
    assert not process.running()


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum_topologies.process._TERMINATE_S", 0.1)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf'); time.sleep(600)"
    process = _python(code, tmp_path)
    process.wait_for(lambda: "deaf" in process.log_text(), "deaf", 600)
    process.stop()
    assert not process.running()


def test_missing_program_is_named(tmp_path: Path) -> None:
    process = ManagedProcess(["no-such-program"], tmp_path / "log")
    with pytest.raises(TopologyError, match="cannot run no-such-program"):
        process.wait_for(lambda: False, "anything", 600)


def test_missing_namespace_is_named(tmp_path: Path) -> None:
    process = ManagedProcess(["true"], tmp_path / "log", namespace="hopsum-no-such")
    with pytest.raises(TopologyError, match="network namespace hopsum-no-such cannot be opened"):
        process.wait_for(lambda: False, "anything", 600)


def test_a_worker_that_continues_at_once_is_not_mistaken() -> None:
    """The first worker has sent two messages before the second one has sent any."""
    pool = WorkerPool([], lambda *_: None, None)
    ends = [multiprocessing.Pipe() for _ in range(2)]
    pool.pipes = [ours for ours, _ in ends]
    first, second = (theirs for _, theirs in ends)
    first.send(("ready", 1))
    first.send(("step", 2))
    first.send(("step", 3))
    assert pool.receive() == (0, ("ready", 1))
    first.send(("done", 4))
    pool._kept.append((0, ("ready", 0)))  # as another gathering may leave it
    second.send(("ready", 5))
    assert pool.gather("ready") == [(0,), (5,)]
    assert [pool.receive() for _ in range(3)] == [(0, ("step", 2)), (0, ("step", 3)), (0, ("done", 4))]
    for pipe in (*pool.pipes, first, second):
        pipe.close()


def dead_pid() -> int:
    return int(subprocess.run((sys.executable, "-c", "import os; print(os.getpid())"), capture_output=True).stdout)


@pytest.mark.usefixtures("namespaces")
def test_what_runs_in_a_stale_namespace_is_ended() -> None:
    name = f"hopsum-{dead_pid()}-7"
    subprocess.run(("ip", "netns", "add", name), check=True)
    left = subprocess.Popen(("ip", "netns", "exec", name, "sleep", "600"))
    try:
        while str(left.pid) not in subprocess.run(("ip", "netns", "pids", name), capture_output=True, text=True).stdout:
            assert left.poll() is None
        assert name in remove_stale_namespaces()
        assert left.wait(60) == -9
        assert not Path(f"/var/run/netns/{name}").exists()
    finally:
        left.kill()
        left.wait()


GPUS_OF_WORKERS = """
import os
from hopsum_topologies.worker_pool import WorkerPool

# Read by the import, as torch may read it.
seen = os.environ.get("CUDA_VISIBLE_DEVICES")

def work(seat, plan, pipe):
    pipe.send(("gpus", seen))

if __name__ == "__main__":
    told = []
    for gpus in (False, True):
        with WorkerPool([0, 1], work, None, gpus=gpus) as pool:
            told.append(pool.gather("gpus"))
    print([*told, os.environ.get("CUDA_VISIBLE_DEVICES")])
"""


@pytest.mark.parametrize("own", [None, "0,1"])
def test_workers_see_no_gpu_unless_they_are_to(tmp_path: Path, own: str | None) -> None:
    script = tmp_path / "pool.py"
    script.write_text(GPUS_OF_WORKERS)
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    if own is not None:
        environment["CUDA_VISIBLE_DEVICES"] = own
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([[("",)] * 2, [(own,)] * 2, own])


INTERRUPTED = """
import os
import signal
from hopsum_topologies.worker_pool import WorkerPool

def work(seat, plan, pipe):
    pipe.send(("ready",))
    pipe.recv()

if __name__ == "__main__":
    with WorkerPool([0, 1], work, None) as pool:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # While workers import, and while they work.
        os.killpg(0, signal.SIGINT)
        pool.gather("ready")
        os.killpg(0, signal.SIGINT)
        pool.send(None)
        pool.gather("finished")
"""


def test_an_interrupt_of_all_processes_is_for_the_parent_of_workers(tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(INTERRUPTED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, start_new_session=True)
    assert (done.returncode, done.stderr) == (0, "")
