# SPDX-License-Identifier: Apache-2.0
"""The system that an attacker shares with others: a job that trains, and one whose members send heartbeats."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Final

from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.jobs_client import JobsClient
from hopsum.rpc.member_client import MemberClient
from hopsum_topologies.free_port import free_port
from hopsum_topologies.process import ManagedProcess

from ..drills.plain_training import PlainTraining
from .attacker import WORKERS, Site

START_S: Final = 300.0
HOSTILE: Final = "hostile"
"""Name of the attacker's job."""
_PERIOD_S: Final = 0.1
_CONFIG: Final = """\
[controller]
database = "state.sqlite"
listen = "127.0.0.1:0"
metrics_listen = "{page}"
admin_token_file = "admin.token"
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


class HostileSite:
    """A switch, a controller, a job that trains and one whose members send heartbeats. It runs from construction on."""

    def __init__(self, folder: Path, stack: ExitStack, lease_s: float) -> None:
        self.folder, self._stack, self._lease_s = folder, stack, lease_s
        switch = self._start(
            "switch", "-m", "hopsum_switch", "--grpc", "127.0.0.1:0", "--udp", "1=127.0.0.1:0,as=10.0.0.254:24677"
        )
        switch.wait_for(lambda: "\nudp 1=" in switch.log_text(), "the switch", START_S)
        address, service = re.findall(r"ready grpc=(\S+) |^udp 1=(\S+)", switch.log_text(), re.MULTILINE)
        token = secrets.token_urlsafe(32)
        (folder / "admin.token").touch(0o600)
        (folder / "admin.token").write_text(token)
        self._page = f"127.0.0.1:{free_port()}"
        text = _CONFIG.format(page=self._page, address=address[0], service=service[1], lease_s=lease_s)
        (folder / "cluster.toml").write_text(text)
        self.controller = self._start("controller", "-m", "hopsum_cli.main", "controller", "--config", "cluster.toml")
        self.controller.wait_for(lambda: "ready listen=" in self.controller.log_text(), "the controller", START_S)
        (self.address,) = re.findall(r"^ready listen=(\S+)", self.controller.log_text(), re.MULTILINE)
        self._channel = stack.enter_context(Channel(ControllerAddress.of(self.address)))
        self.admin = JobsClient(self._channel, token)
        self._members = self._join()
        self.training = PlainTraining(stack, folder / "victim", self.admin, self.address, "victim")

    def attack(self, name: str, until: Sequence[str] = ()) -> ManagedProcess:
        """Make a job for the attacker and start an attack, which lasts until the attacker has counted `until`."""
        workers = WORKERS.get(name, 2)
        token = self.admin.create(HOSTILE, workers, 16).token
        site = Site(self.address, self._page, HOSTILE, token, workers, "victim", until)
        program = Path(__file__).with_name("attacker.py")
        attacker = self._start(f"attacker-{name}", str(program), name, json.dumps(asdict(site)))
        attacker.wait_for(lambda: "attacking" in attacker.log_text(), "the attack", START_S)
        return attacker

    def others(self) -> dict[str, int]:
        """Return the generations of the jobs that are not the attacker's."""
        return {job.name: job.generation for job in self.admin.jobs() if job.name != HOSTILE}

    def end(self, attacker: ManagedProcess) -> dict[str, int]:
        """End an attack, delete its job, and return its counts."""
        os.kill(attacker.pid, signal.SIGTERM)
        give_up_s = time.monotonic() + START_S
        while attacker.running() and time.monotonic() < give_up_s:
            time.sleep(_PERIOD_S)
        attacker.stop()
        found = re.findall(r"^\{.*\}$", attacker.log_text(), re.MULTILINE)
        assert found, attacker.log_text()[-2000:]
        self.admin.delete(HOSTILE)
        return dict(json.loads(found[-1]))

    def watch(self, seconds: float) -> None:
        """Be the others for some seconds: members send heartbeats, the administrator lists, makes and deletes jobs."""
        give_up_s = time.monotonic() + seconds
        while time.monotonic() < give_up_s:
            began_s = time.monotonic()
            for member in self._members:
                assert member.heartbeat(self._generation, {}, START_S).generation
            self.admin.jobs()
            assert time.monotonic() - began_s < self._lease_s, "heartbeats came too late to keep a place"
            self.admin.create("brief", 2, 16)
            self.admin.delete("brief")
            time.sleep(_PERIOD_S)
        self.training.continues(3)

    def _join(self) -> list[MemberClient]:
        """Make a job of two workers whose members are in this process."""
        token = self.admin.create("patient", 2, 16).token
        members = []
        for _ in range(2):
            source = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            source.bind(("127.0.0.1", 0))
            member = MemberClient(self._channel, "patient", token)
            member.join(source.getsockname(), START_S)
            members.append(member)
        memberships = [member.membership(START_S) for member in members]
        self._generation = memberships[0].generation
        return members

    def _start(self, name: str, *words: str) -> ManagedProcess:
        log = self.folder / f"{name}-{secrets.token_hex(3)}.log"
        command = ["bash", "-c", f'cd "{self.folder}" && exec "$0" "$@"', sys.executable, *words]
        process = ManagedProcess(command, log)
        self._stack.callback(process.stop)
        return process
