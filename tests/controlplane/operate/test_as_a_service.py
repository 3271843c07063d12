# SPDX-License-Identifier: Apache-2.0
"""The files of contrib/, the words of processes to service managers, and a standby."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hopsum_base import __version__
from hopsum_base.service_manager import ServiceManager
from hopsum_cli.controller.controller_command import build_parser as controller_parser
from hopsum_controlplane.cluster import StateStore, load_config
from hopsum_controlplane.errors import StoreError
from hopsum_controlplane.service.controller_process import STALE_S, ControllerHealth, MaintenanceThreads
from hopsum_controlplane.service.grpc_service import Service
from hopsum_controlplane.web import WebServer
from hopsum_ptf.fake_device import FakeDevice
from hopsum_switch.cli import build_parser as switch_parser
from hopsum_topologies.process import ManagedProcess

from ...support.pages import blocks, type_in
from ...support.reader import await_end
from ..cluster.world import Cluster, switch_config
from .test_controller import NOBODY, START_S, start, write_config

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[3]
CONTRIB = ROOT / "contrib"
UNITS = sorted((CONTRIB / "systemd").glob("*.service"))
MANIFESTS = sorted((CONTRIB / "kubernetes").glob("*.yaml"))
ANALYZE, WORST_EXPOSURE = shutil.which("systemd-analyze"), 20
PARSERS = {"controller": controller_parser, "switch": switch_parser}
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze on PATH")


def arguments_fit(words: list[str]) -> Any:
    """Parse the words after `hopsum`."""
    return PARSERS[words[0]]().parse_args(words[1:])


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong(unit: Path, tmp_path: Path) -> None:
    program = tmp_path / "hopsum"
    program.touch(0o755)
    copy = tmp_path / unit.name.replace("@", "@leaf1")
    copy.write_text(unit.read_text().replace("/opt/hopsum/bin/hopsum", str(program)))
    done = subprocess.run([str(ANALYZE), "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    rate = [str(ANALYZE), "security", "--offline=true", f"--threshold={WORST_EXPOSURE}", str(copy)]
    done = subprocess.run(rate, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_start_what_there_is(unit: Path) -> None:
    (command,) = re.findall(r"^ExecStart=/opt/hopsum/bin/hopsum (.*)$", unit.read_text(), re.MULTILINE)
    given = re.findall(r"ARGUMENTS=(.*)$", unit.read_text(), re.MULTILINE)
    arguments_fit(shlex.split(command.replace("$ARGUMENTS", "".join(given))))


class Manager:
    """systemd's end of the socket."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.heard: list[str] = []
        self._socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._socket.bind(str(folder / "notify"))
        self.environment = {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "300000"}

    def listen(self) -> list[str]:
        self._socket.setblocking(False)
        while True:
            try:
                self.heard += self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return self.heard


@pytest.mark.parametrize("what", ["controller", "switch"])
def test_the_service_manager_is_told(tmp_path: Path, stack: ExitStack, what: str) -> None:
    manager = Manager(tmp_path, stack)
    command = ["controller", "--config", str(write_config(tmp_path, NOBODY)), "--log", "json"]
    if what == "switch":
        command = ["switch", "--grpc", "127.0.0.1:0", "--udp", "1=127.0.0.1:0"]
    command = [sys.executable, "-m", "hopsum_cli.main", *command]
    process = ManagedProcess(command, tmp_path / "log", environment={**os.environ, **manager.environment})
    stack.callback(process.stop)

    def hears(line: str, times: int = 1) -> None:
        process.wait_for(lambda: manager.listen().count(line) >= times, line, START_S)

    hears("READY=1")
    hears("WATCHDOG=1", 2)
    assert any(line.startswith("STATUS=") and "127.0.0.1:" in line for line in manager.heard)
    os.kill(process.pid, signal.SIGHUP)
    if what == "controller":
        hears("RELOADING=1")
        hears("READY=1", 2)
    else:
        process.wait_for(lambda: "SIGHUP: the switch has nothing to read" in process.log_text(), "the line", START_S)
    assert process.stop() == 0
    assert manager.listen()[-1] == "STOPPING=1"


def test_a_stopped_process_says_nothing(tmp_path: Path, stack: ExitStack) -> None:
    manager = Manager(tmp_path, stack)
    command = [sys.executable, "-m", "hopsum_switch", "--grpc", "127.0.0.1:0"]
    switch = ManagedProcess(command, tmp_path / "log", environment={**os.environ, **manager.environment})
    stack.callback(switch.stop)
    switch.wait_for(lambda: "WATCHDOG=1" in manager.listen(), "a sign of life", START_S)
    os.kill(switch.pid, signal.SIGSTOP)
    try:
        state = Path(f"/proc/{switch.pid}/stat")
        switch.wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "its stop", START_S)
        before = len(manager.listen())
        time.sleep(0.5)
        assert len(manager.listen()) == before
    finally:
        os.kill(switch.pid, signal.SIGCONT)
    switch.wait_for(lambda: len(manager.listen()) > before, "a sign of life", START_S)


def test_a_watchdog_of_another_process_is_left_alone() -> None:
    environment = {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "2000000"}
    assert ServiceManager(environment).watchdog_s == 2.0
    assert ServiceManager({**environment, "WATCHDOG_PID": "1"}).watchdog_s is None
    assert ServiceManager({"WATCHDOG_USEC": "2000000"}).watchdog_s is None
    ServiceManager(environment).ready("nobody hears this")


class HealthWorld:
    """A controller with its page, whose maintenance a test does by hand."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.cluster = Cluster(folder, (switch_config(),), {"s1": FakeDevice()})
        self.cluster.start()
        stack.callback(self.cluster.stop)
        self.now_s = time.monotonic()
        self.maintenance = MaintenanceThreads(self.cluster.controller)
        self.service = stack.enter_context(Service(self.cluster.controller, "127.0.0.1:0"))
        health = ControllerHealth(self.cluster.controller, self.maintenance, self.service, lambda: self.now_s)
        self.web = stack.enter_context(WebServer(self.cluster.controller, "127.0.0.1:0", health=health))

    def ask(self, path: str) -> tuple[int, str]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self.web.address}{path}", timeout=START_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def test_health_and_readiness(tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    world = HealthWorld(tmp_path, stack)
    assert [world.ask(path) for path in ("/healthz", "/readyz")] == [(200, "ok\n")] * 2

    def full() -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(world.cluster.controller._store, "probe", full)
    world.cluster.clock.sleep(11)
    world.cluster.controller.expire()
    assert world.ask("/healthz") == (200, "ok\n")
    assert world.ask("/readyz") == (503, "the disk is full\n")
    monkeypatch.undo()
    world.cluster.clock.sleep(11)
    world.cluster.controller.expire()
    assert world.ask("/readyz") == (200, "ok\n")

    world.now_s += 2 * STALE_S
    status, why = world.ask("/healthz")
    assert (status, why[:26]) == (503, "leases were last looked at")
    world.now_s = time.monotonic()
    world.maintenance.check_leases()
    assert world.ask("/healthz") == (200, "ok\n")
    world.service.close()
    assert world.ask("/readyz")[0] == 503


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.name)
def test_manifests_are_of_the_schema_and_start_what_there_is(manifest: Path, tmp_path: Path) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    import yaml

    for document in yaml.safe_load_all(manifest.read_text()):
        kubernetes_validate.validate(document, "1.31", strict=True)
        if document["kind"] == "ConfigMap":
            path = tmp_path / "cluster.toml"
            path.write_text(document["data"]["cluster.toml"])
            assert load_config(path).switches
        if document["kind"] == "StatefulSet":
            (container,) = document["spec"]["template"]["spec"]["containers"]
            arguments_fit(container["args"])
            probes = [probe["httpGet"]["path"] for name, probe in container.items() if name.endswith("Probe")]
            assert set(probes) == {"/healthz", "/readyz"}


def test_the_image_is_made_of_what_there_is() -> None:
    text = (CONTRIB / "container" / "Containerfile").read_text()
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, packages = pyproject["project"], pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources), line
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert all(f"COPY {package.split('/')[0]} " in text for package in packages)
    assert f"hopsum:{__version__}" in text


def test_the_commands_on_the_page(tmp_path: Path, stack: ExitStack) -> None:
    rating, asking = blocks("administration", "Services")
    world = HealthWorld(tmp_path, stack)
    commands = [asking.replace("127.0.0.1:4701", world.web.address)] + ([rating] if ANALYZE else [])
    for block in commands:
        printed = type_in(ROOT, block)
        assert block is rating or printed == "ok\nok\n"


def test_the_command_on_the_page(tmp_path: Path, stack: ExitStack) -> None:
    (block,) = blocks("administration", "A standby")
    config = write_config(tmp_path, NOBODY)
    first = start(stack, config)
    manager = Manager(tmp_path, stack)
    words = block.split()
    assert words[0] == "hopsum"
    command = ["bash", "-c", f'cd "{tmp_path}" && exec "{sys.executable}" -m hopsum_cli.main {" ".join(words[1:])}']
    environment = {**os.environ, **manager.environment}
    standby = ManagedProcess(command, tmp_path / "standby.log", environment=environment)
    stack.callback(standby.stop)
    standby.wait_for(lambda: "\nstandby\n" in f"\n{standby.log_text()}", "that it waits", START_S)
    standby.wait_for(lambda: manager.listen().count("WATCHDOG=1") >= 2, "signs of life", START_S)
    assert "READY=1" in manager.heard
    assert "ready listen=" not in standby.log_text()

    text = config.read_text()
    config.write_text(text.replace("[controller]", "[controler]"))
    os.kill(standby.pid, signal.SIGHUP)
    standby.wait_for(lambda: "nothing has changed" in standby.log_text(), "the refusal", START_S)
    config.write_text(text)
    os.kill(standby.pid, signal.SIGHUP)
    standby.wait_for(lambda: "SIGHUP: read " in standby.log_text(), "the new configuration", START_S)

    os.kill(first.process.pid, signal.SIGKILL)
    standby.wait_for(lambda: "ready listen=" in standby.log_text(), "that it serves", START_S)
    os.kill(standby.pid, signal.SIGTERM)
    assert await_end(standby) == 0


def test_a_signal_ends_a_standby(tmp_path: Path, stack: ExitStack) -> None:
    config = write_config(tmp_path, NOBODY)
    store = StateStore(tmp_path / "state.sqlite")
    stack.callback(store.close)
    command = [sys.executable, "-m", "hopsum_cli.main", "controller", "--config", str(config), "--standby"]
    standby = ManagedProcess(command, tmp_path / "standby.log")
    stack.callback(standby.stop)
    standby.wait_for(lambda: "\nstandby\n" in f"\n{standby.log_text()}", "that it waits", START_S)
    os.kill(standby.pid, signal.SIGTERM)
    assert await_end(standby) == 0
    assert "SIGTERM: the standby ends" in standby.log_text()
