# SPDX-License-Identifier: Apache-2.0
"""`hopsum controller` as a process: it serves, ends in good order, and comes back to its database."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_cli.controller.controller_command import main
from hopsum_controlplane.cluster import StateStore
from hopsum_controlplane.service.controller_process import ENOUGH, MaintenanceThreads, raise_open_files_limit
from hopsum_topologies import Bmv2Switch
from hopsum_topologies.process import ManagedProcess

pytestmark = pytest.mark.system
START_S = 300.0
NOBODY = "127.0.0.1:1"
CONFIG = """\
[controller]
database = "{database}"
listen = "127.0.0.1:0"
metrics_listen = "127.0.0.1:0"
{more}
[[switch]]
name = "leaf1"
driver = "{driver}"
address = "{address}"
mac = "02:00:00:00:00:fe"
ip = "10.0.0.254"
ports = [{{port = 1, network = "127.0.0.0/8"}}]
"""


def write_config(folder: Path, address: str, more: str = "", driver: str = "native") -> Path:
    path = folder / "cluster.toml"
    path.write_text(CONFIG.format(database=folder / "state.sqlite", address=address, more=more, driver=driver))
    return path


class Controller:
    """A controller process; its stdout and its log are in one file."""

    def __init__(self, config: Path, *more: str, before: Sequence[str] = ()) -> None:
        command = [*before, sys.executable, "-m", "hopsum_cli.main", "controller", "--config", str(config), *more]
        self.process = ManagedProcess(command, config.parent / "controller.log")
        self.process.wait_for(lambda: self._address() is not None, "the line `ready`", START_S)

    def _address(self) -> str | None:
        found = re.search(r"^ready listen=(\S+) switches=leaf1$", self.process.log_text(), re.MULTILINE)
        return None if found is None else found[1]

    @property
    def address(self) -> str:
        return self._address() or ""

    def operator(self, stack: ExitStack) -> JobsClient:
        return JobsClient(stack.enter_context(Channel(ControllerAddress.of(self.address))))


def start(stack: ExitStack, config: Path, *more: str, before: Sequence[str] = ()) -> Controller:
    controller = Controller(config, *more, before=before)
    stack.callback(controller.process.stop)
    return controller


def start_native(folder: Path, stack: ExitStack) -> str:
    return start_switch(folder, stack, "--udp", "1=127.0.0.1:0")[1]


def start_switch(folder: Path, stack: ExitStack, *options: str) -> tuple[ManagedProcess, str]:
    """Start an embedded switch without a program; return it, and where its P4Runtime server is."""
    command = [sys.executable, "-m", "hopsum_switch", "--grpc", "127.0.0.1:0", *options]
    switch = ManagedProcess(command, folder / "switch.log")
    stack.callback(switch.stop)
    switch.wait_for(lambda: "ready grpc=" in switch.log_text(), "the switch", START_S)
    (address,) = re.findall(r"^ready grpc=(\S+)", switch.log_text(), re.MULTILINE)
    return switch, str(address)


def start_bmv2(folder: Path, stack: ExitStack) -> str:
    if shutil.which("simple_switch_grpc") is None:
        pytest.skip("simple_switch_grpc is not on PATH")
    return stack.enter_context(Bmv2Switch({})).address


@pytest.mark.parametrize(("driver", "start_switch"), [("native", start_native), ("bmv2", start_bmv2)])
def test_it_pushes_the_program_and_finds_its_jobs_again(
    tmp_path: Path, stack: ExitStack, driver: str, start_switch: Callable[[Path, ExitStack], str]
) -> None:
    config = write_config(tmp_path, start_switch(tmp_path, stack), 'log_level = "debug"', driver=driver)

    first = start(stack, config, "--log", "json")
    token = first.operator(stack).create("train", 2, 16).token
    lines = [json.loads(line) for line in first.process.log_text().splitlines() if line.startswith("{")]
    (made,) = [line for line in lines if line.get("job") == "train"]
    (order,) = [line for line in lines if line.get("audit", {}).get("action") == "CreateJob"]
    assert re.fullmatch(r"audit: CreateJob train by anybody ipv4:127\.0\.0\.1:\d+", order["message"])
    assert (made["switch"], made["state"], made["level"]) == ("leaf1", "forming", "info")
    assert token not in first.process.log_text()
    assert first.process.stop() == 0
    assert "SIGTERM: ending" in first.process.log_text()

    second = start(stack, config)
    (job,) = second.operator(stack).jobs()
    assert (job.name, job.slots) == ("train", 16)
    (seen,) = second.operator(stack).switches()
    assert seen.reachable
    assert (seen.slots_used, seen.condition) == (16, "")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("heartbeats_s = 1", "unknown key 'heartbeats_s'; did you mean heartbeat_s?"),
        ('admin_token_file = "/nowhere/admin.token"', "admin token file /nowhere/admin.token cannot be read"),
        ('tls_certificate = "/nowhere/a.pem"\ntls_key = "/nowhere/a.key"', "TLS: "),
    ],
)
@pytest.mark.parametrize("check", [["--check"], []], ids=["check", "serve"])
def test_a_configuration_that_does_not_fit_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: None, more: str, why: str, check: list[str]
) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    assert main(["--config", str(write_config(tmp_path, NOBODY, more)), *check]) == 1
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == handlers
    told = capsys.readouterr()
    assert why in told.err
    assert told.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.toml"]


def test_check_refuses_the_databases_that_a_start_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: None
) -> None:
    path = write_config(tmp_path, NOBODY, "")
    (tmp_path / "folder").mkdir()
    (tmp_path / "emptied").touch()
    (tmp_path / "damaged").write_bytes(b"no database " * 1000)
    for name, why in (("missing/x", "make "), ("folder", "writable"), ("emptied", "backup"), ("damaged", "backup")):
        path.write_text(path.read_text().replace("state.sqlite", name))
        for more in (["--check"], []):
            assert main(["--config", str(path), *more]) == 1
            (told,) = capsys.readouterr().err.splitlines()
            assert f"{tmp_path / name} " in told
            assert why in told
        path.write_text(path.read_text().replace(name, "state.sqlite"))
    assert main(["--config", str(path), "--check"]) == 0
    assert not (tmp_path / "state.sqlite").exists()
    store = StateStore(tmp_path / "state.sqlite")
    assert main(["--config", str(path), "--check"]) == 0
    assert "a controller serves with the database" in capsys.readouterr().out
    store.close()


def test_check_says_what_a_configuration_means(tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: None) -> None:
    assert main(["--config", str(write_config(tmp_path, NOBODY, "lease_s = 30")), "--check"]) == 0
    told = capsys.readouterr().out
    for words in ("leases of 30 s", f"switch leaf1: native at {NOBODY}", "127.0.0.0/8 at port 1", "10.0.0.254:24677"):
        assert words in told
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.toml"]


TREE = """
[[switch]]
name = "spine"
driver = "native"
address = "127.0.0.1:2"
mac = "02:00:00:00:00:fd"
ip = "10.0.0.253"

[[link]]
leaf = "leaf1"
leaf_port = 9
spine = "spine"
spine_port = 4
"""


def test_check_says_what_links_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: None) -> None:
    path = write_config(tmp_path, NOBODY)
    path.write_text(path.read_text() + TREE)
    assert main(["--config", str(path), "--check"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-3:] == [
        "  2048 slots; no worker is connected to it",
        "tree of leaf1, then spine",
        "  leaf1 port 9 to spine port 4",
    ]


class Stumbling:
    """A cluster controller whose duties fail every other time."""

    switch_names = ("leaf1",)

    def __init__(self) -> None:
        self.calls = {"leases": 0, "leaf1": 0}
        self.enough = threading.Event()
        self.liveness = self

    def expire(self) -> None:
        self._count("leases")

    def extend_for_absence(self, away_s: float) -> None:
        assert away_s > 0

    def reconcile(self, switch: str) -> None:
        self._count(switch)

    def _count(self, name: str) -> None:
        self.calls[name] += 1
        if min(self.calls.values()) >= 4:
            self.enough.set()
        if self.calls[name] % 2:
            raise RuntimeError("stumbled")


def test_the_threads_continue_whatever_fails(caplog: pytest.LogCaptureFixture) -> None:
    controller = Stumbling()
    with MaintenanceThreads(controller, period_s=0.001):  # type: ignore[arg-type]
        assert controller.enough.wait(START_S)
    calls = dict(controller.calls)
    assert "hopsum-switch-leaf1 failed, and continues" in caplog.text
    assert calls == controller.calls, "it beats on after the end"


class Leases:
    """A cluster controller that notes what it is told about leases."""

    switch_names = ()

    def __init__(self) -> None:
        self.told: list[float | str] = []
        self.liveness = self

    def extend_for_absence(self, away_s: float) -> None:
        self.told.append(away_s)

    def expire(self) -> None:
        self.told.append("expire")


def test_leases_are_extended_for_an_absence_of_the_controller() -> None:
    controller, now_s = Leases(), 100.0
    maintenance = MaintenanceThreads(controller, period_s=0.25, clock=lambda: now_s)  # type: ignore[arg-type]
    for passed_s in (0.25, 0.9, 60.0, 0.25):  # stopped for a minute, then not any more
        now_s += passed_s
        maintenance.check_leases()
    assert controller.told == ["expire", "expire", 60.0, "expire", "expire"], "before anybody is judged"


def test_idle_connections_leave_descriptors_for_others(tmp_path: Path, stack: ExitStack) -> None:
    """More than the process may have files, at both of its ports; they hold their places for seconds at most."""
    few = ["bash", "-c", 'ulimit -n 256 && exec "$0" "$@"']
    controller = start(stack, write_config(tmp_path, start_native(tmp_path, stack)), before=few)
    operator = controller.operator(stack)
    page = re.search(r"^page http://(\S+):(\d+)/$", controller.process.log_text(), re.MULTILINE)
    assert page is not None
    host, port = controller.address.rsplit(":", 1)
    for place in ((host, int(port)), (page[1], int(page[2]))):
        for _ in range(300):
            stack.enter_context(socket.create_connection(place, timeout=START_S))

    def answered() -> bool:
        try:
            return operator.switches()[0].reachable
        except ControllerError:
            return False

    controller.process.wait_for(answered, "an answer", START_S)
    assert "descriptor limit" not in controller.process.log_text()


def test_the_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (1024, 1 << 20)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.update(now=wanted))
    assert (raise_open_files_limit(), limits["now"]) == (ENOUGH, (ENOUGH, 1 << 20))
    for before, after in (((256, 512), 512), ((1 << 20, 1 << 20), 1 << 20), ((9, resource.RLIM_INFINITY), ENOUGH)):
        limits["now"] = before
        assert (raise_open_files_limit(), limits["now"]) == (after, (after, before[1]))
