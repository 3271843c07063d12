# SPDX-License-Identifier: Apache-2.0
"""A switch and a controller that several jobs use: one that trains, one whose members are heard, and the attacker's.

`watch` says what the others notice: how fast the training is, and how long calls of an administrator and a member take.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from hopsum.codec import job_tables, make_codec
from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.jobs import JobsClient
from hopsum.rpc.member import MemberClient
from hopsum_topologies.process import ManagedProcess

from ..year.trainings import Training
from .attacker import WORKERS, Site

START_S: Final = 300.0
HOSTILE: Final = "hostile"
"""Name of the attacker's job."""
_PERIOD_S: Final = 0.1
_CONFIG: Final = """\
[controller]
database = "state.sqlite"
listen = "127.0.0.1:0"
metrics_listen = "127.0.0.1:0"
admin_token_file = "admin.token"
audit_log = "audit.jsonl"
heartbeat_s = 1
lease_s = {lease_s}

[[switch]]
name = "leaf1"
driver = "native"
address = "{address}"
mac = "02:00:00:00:00:fe"
ip = "10.0.0.254"
service_address = "{service}"
ports = [{{port = 1, network = "127.0.0.0/8"}}]
"""


@dataclass(frozen=True)
class Watched:
    """The measurements of what others noticed in some seconds, in steps a second, milliseconds and megabytes."""

    steps_a_second: float
    list_ms: float
    """Median of an administrator's `job list`."""
    list_most_ms: float
    heartbeat_ms: float
    """Median of a member's heartbeat."""
    heartbeat_most_ms: float
    create_most_ms: float
    """The longest of an administrator's making and deleting of a job."""
    controller_mb: float


class HostileSite:
    """Everything but the attacker, running from construction on."""

    def __init__(self, folder: Path, stack: ExitStack, lease_s: float = 15.0) -> None:
        self.folder, self._stack = folder, stack
        switch = self._start(
            "switch", "-m", "hopsum_switch", "--grpc", "127.0.0.1:0", "--udp", "1=127.0.0.1:0,as=10.0.0.254:24677"
        )
        switch.wait_for(lambda: "\nudp 1=" in switch.log_text(), "the switch", START_S)
        address, service = re.findall(r"ready grpc=(\S+) |^udp 1=(\S+)", switch.log_text(), re.MULTILINE)
        token = secrets.token_urlsafe(32)
        (folder / "admin.token").touch(0o600)
        (folder / "admin.token").write_text(token)
        text = _CONFIG.format(address=address[0], service=service[1], lease_s=lease_s)
        (folder / "cluster.toml").write_text(text)
        self.controller = self._start("controller", "-m", "hopsum_cli.main", "controller", "--config", "cluster.toml")
        self.controller.wait_for(lambda: "ready listen=" in self.controller.log_text(), "the controller", START_S)
        (self.address,) = re.findall(r"^ready listen=(\S+)", self.controller.log_text(), re.MULTILINE)
        self.channel = stack.enter_context(Channel(ControllerAddress.of(self.address)))
        self.admin = JobsClient(self.channel, token)
        self.members = self._join("patient", 2)
        self.training = self._train()

    def attack(self, name: str, until: Sequence[str] = ()) -> ManagedProcess:
        """Make a job for the attacker and start an attack, which goes on until it has counted `until`."""
        workers = WORKERS.get(name, 2)
        token = self.admin.create(HOSTILE, workers, 16).token
        site = Site(self.address, HOSTILE, token, workers, "victim", until)
        program = Path(__file__).with_name("attacker.py")
        attacker = self._start(f"attacker-{name}", str(program), name, json.dumps(asdict(site)))
        attacker.wait_for(lambda: "attacking" in attacker.log_text(), "the attack", START_S)
        return attacker

    def others(self) -> dict[str, int]:
        """Return the generations of the jobs that are not the attacker's."""
        return {job.name: job.generation for job in self.admin.jobs() if job.name != HOSTILE}

    def end(self, attacker: ManagedProcess) -> dict[str, int]:
        """End an attack and delete its job; return what it counted."""
        os.kill(attacker.pid, signal.SIGTERM)
        give_up_s = time.monotonic() + START_S
        while attacker.running() and time.monotonic() < give_up_s:
            time.sleep(_PERIOD_S)
        attacker.stop()
        found = re.findall(r"^\{.*\}$", attacker.log_text(), re.MULTILINE)
        assert found, attacker.log_text()[-2000:]
        self.admin.delete(HOSTILE)
        return dict(json.loads(found[-1]))

    def watch(self, seconds: float) -> Watched:
        """Look for some seconds at what others notice."""
        began_s, steps = time.monotonic(), self.training.steps(0)
        lists, beats, makings = [], [], []
        while time.monotonic() - began_s < seconds:
            for member in self.members:
                at_s = time.monotonic()
                assert member.heartbeat(self.generation("patient"), {}, START_S).generation
                beats.append(time.monotonic() - at_s)
            at_s = time.monotonic()
            self.admin.jobs()
            lists.append(time.monotonic() - at_s)
            at_s = time.monotonic()
            self.admin.create("brief", 2, 16)
            self.admin.delete("brief")
            makings.append(time.monotonic() - at_s)
            time.sleep(_PERIOD_S)
        rate = (self.training.steps(0) - steps) / (time.monotonic() - began_s)
        resident = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.controller.pid}/status").read_text())
        median = statistics.median
        return Watched(
            rate,
            list_ms=1e3 * median(lists),
            list_most_ms=1e3 * max(lists),
            heartbeat_ms=1e3 * median(beats),
            heartbeat_most_ms=1e3 * max(beats),
            create_most_ms=1e3 * max(makings),
            controller_mb=int(resident[0]) / 1e3,
        )

    def generation(self, job: str) -> int:
        if job not in self._generations:
            self._generations[job] = self.admin.job(job).generation
        return self._generations[job]

    def _join(self, job: str, workers: int) -> list[MemberClient]:
        """Make a job whose members sit in this process."""
        self._generations: dict[str, int] = {}
        token = self.admin.create(job, workers, 16).token
        members = []
        for _ in range(workers):
            source = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            source.bind(("127.0.0.1", 0))
            member = MemberClient(self.channel, job, token)
            member.join(source.getsockname(), START_S)
            members.append(member)
        for member in members:
            member.membership(START_S)
        return members

    def _train(self) -> Training:
        training = Training(
            self._stack, self.folder / "victim", f"hopsum://{self.address}/victim?tls=off", "uhc", 2, {}
        )
        tables: dict[str, Any] = job_tables(make_codec("uhc", workers=2, backend="numpy"))
        (self.folder / "victim" / "token").write_text(self.admin.create("victim", 2, 32, **tables).token)
        training.start()
        training.goes_on()
        return training

    def _start(self, name: str, *words: str) -> ManagedProcess:
        log = self.folder / f"{name}-{secrets.token_hex(3)}.log"
        command = ["bash", "-c", f'cd "{self.folder}" && exec "$0" "$@"', sys.executable, *words]
        process = ManagedProcess(command, log)
        self._stack.callback(process.stop)
        return process
