# SPDX-License-Identifier: Apache-2.0
"""An operator's year by the pages of docs/, in a minute or two: two jobs train from the first season to the last.

Controller and switch run with the settings of their unit files, with TLS on both sides. The operator types what the
pages have. The first version is an older one where the repository's history has it.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hopsum_topologies.free_port import free_port

from .trainings import Training
from .units import Unit

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[3]
OLDER = "66bd08d"
"""The first commit that has unit files."""
CONFIG = """\
[controller]
database = "{root}/var/lib/hopsum/state.sqlite"
listen = "127.0.0.1:{service}"
metrics_listen = "127.0.0.1:{metrics}"
admin_token_file = "admin.token"
tls_certificate = "server.pem"
tls_key = "server.key"
tls_client_ca = "ca.pem"
lease_s = 60
{more}

[[switch]]
name = "leaf1"
driver = "native"
address = "127.0.0.1:{grpc}"
mac = "02:00:00:00:00:fe"
ip = "10.0.0.254"
service_address = "127.0.0.1:{workers}"
ports = [{{port = 1, network = "127.0.0.0/8"}}]
"""


AUDIT = 'audit_log = "audit.jsonl"'
SWITCH_TLS = ("--tls-certificate", "leaf1.pem", "--tls-key", "leaf1.key", "--tls-client-ca", "ca.pem")
JOBS = {"digits": "thc", "vectors": "uhc"}


def blocks(page: str) -> list[str]:
    """Return the blocks of commands of a page."""
    return re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)


def older_source(folder: Path) -> Path | None:
    """Unpack the source of the older version; None where this repository has no history."""
    packages = ["wire", "host", "switch", "controlplane", "topologies", "evaluation", "labs", "cli", "p4/build"]
    command = ["git", "-C", str(ROOT), "archive", OLDER, *packages]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


class Operator:
    """Two machines, a terminal, and what runs."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.ports = {name: free_port() for name in ("service", "metrics", "grpc")}
        self.ports["workers"] = free_port(socket.SOCK_DGRAM)
        self.root = folder / "first"
        self.etc = self.root / "etc" / "hopsum"
        self.etc.mkdir(parents=True)
        programs = folder / "bin"
        programs.mkdir()
        (programs / "hopsum").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hopsum_cli.main "$@"\n')
        (programs / "hopsum").chmod(0o755)
        self._path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.units: list[Unit] = []
        self.trainings: list[Training] = []
        self._began_s = time.monotonic()
        self.told = self.of_switch = ""

    def files(self) -> dict[str, Path]:
        names = {"ca_file": "ca.pem", "certificate_file": "alice.pem", "key_file": "alice.key"}
        return {key: self.etc / name for key, name in names.items()}

    def type(self, block: str, status: int = 0) -> str:
        """Run a block of a page in the folder of the configuration; return what it printed."""
        names = {f"HOPSUM_{key.upper()}": str(path) for key, path in self.files().items()}
        environment = {**os.environ, **names, "PATH": self._path, "HOME": str(self.folder)}
        environment["HOPSUM_CONTROLLER"] = f"127.0.0.1:{self.ports['service']}"
        block = block.replace("127.0.0.1:4701", f"127.0.0.1:{self.ports['metrics']}")
        command = ["bash", "-euo", "pipefail", "-c", block]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done: subprocess.CompletedProcess[str]
        done = subprocess.run(command, cwd=self.etc, env=environment, text=True, check=False, **pipes)
        assert done.returncode == status, (block, done.stdout)
        self.told += done.stdout
        return done.stdout

    def unit(self, file: str, **settings: object) -> Unit:
        unit = Unit(file, self.root, **settings)  # type: ignore[arg-type]
        self._stack.callback(unit.end)
        self.units.append(unit)
        return unit

    def write_config(self, more: str = "") -> None:
        """Write cluster.toml, with more keys of the controller."""
        text = CONFIG.format(root=self.root, more=more, **self.ports)
        (self.etc / "cluster.toml").write_text(text + self.of_switch)

    def write_switch_config(self, *more: str) -> None:
        """Write switch-leaf1.conf, with more arguments: files of the folder of the configuration by their options."""
        place = "--grpc 127.0.0.1:{grpc} --udp 1=127.0.0.1:{workers},as=10.0.0.254:24677".format(**self.ports)
        files = [f"{option} {self.etc / name}" for option, name in zip(more[::2], more[1::2], strict=True)]
        (self.etc / "switch-leaf1.conf").write_text(f"ARGUMENTS={' '.join([place, *files])}\n")

    def move(self) -> None:
        """Go on at another machine, with the files that a backup does not have."""
        first, self.root = self.etc, self.folder / "second"
        self.etc = self.root / "etc" / "hopsum"
        shutil.copytree(first, self.etc)

    def train(self, job: str, codec: str) -> None:
        """Start the workers of a job, with the token that is in the folder of the configuration."""
        url = f"hopsum://127.0.0.1:{self.ports['service']}/{job}"
        training = Training(self._stack, self.folder / job, url, codec, 2, self.files())
        shutil.copy(self.etc / f"{job}.token", training.plan.token_file)
        training.start()
        self.trainings.append(training)

    def all_go_on(self, when: str) -> None:
        """Wait until all ranks of all jobs have done some more steps."""
        for training in self.trainings:
            training.goes_on()
        print(f"{time.monotonic() - self._began_s:6.1f} s: {when}")

    def generations(self) -> list[list[int]]:
        """Return of each job the generations that its steps were in."""
        return [training.generations() for training in self.trainings]

    def check_secrets(self) -> None:
        """Look for every token in all that was logged, printed, and written down of who did what."""
        logs = "".join(unit.log_text() for unit in self.units) + self.told
        logs += "".join(path.read_text() for path in self.folder.rglob("audit.jsonl"))
        tokens = {line.split()[-1] for path in self.folder.rglob("*.token") for line in path.read_text().splitlines()}
        assert len(tokens) >= 5
        assert [token for token in tokens if token in logs] == []

    def serving(self, controller: Unit) -> Unit:
        """Note which controller signals of the pages go to."""
        (self.etc / "controller.pid").write_text(str(controller.pid))
        return controller

    def hang_up(self, controller: Unit) -> None:
        """Send SIGHUP as the pages do; returns when the controller has read everything."""
        before = self.serving(controller).ready_count
        self.type(blocks("signals")[0])
        controller.until_ready(before + 1)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with ExitStack() as stack:
        yield Operator(tmp_path, stack)


def begin(operator: Operator) -> tuple[Unit, Unit]:
    """Make certificates and tokens, start both services, of the older version where there is one, and make two jobs."""
    older = older_source(operator.folder / "older")
    operator.type(blocks("secrets")[2])
    operator.write_config()
    operator.type(blocks("operating")[1])
    operator.write_switch_config()
    switch = operator.unit("hopsum-switch@.service", instance="leaf1", source=older)
    controller = operator.unit("hopsum-controller.service", source=older)
    switch.start()
    controller.start()
    operator.type(blocks("operating")[3])
    for job, codec in JOBS.items():
        operator.train(job, codec)
    operator.all_go_on(f"two jobs train, with version {'of today' if older is None else OLDER}")
    return switch, controller


def upgrade(operator: Operator, switch: Unit, controller: Unit) -> None:
    """Install this version, in the order of docs/backup.md. The new configuration has an audit log."""
    if controller.source is None:
        operator.type(blocks("backup")[0])
    controller.stop()
    state = operator.root / "var" / "lib" / "hopsum" / "state.sqlite"
    shutil.copy(state, operator.folder / "before-the-upgrade.sqlite")
    controller.source = None
    operator.write_config(AUDIT)
    controller.start()
    operator.all_go_on("the controller is upgraded")
    switch.stop()
    switch.source = None
    switch.start()
    operator.all_go_on("the switch is upgraded")


def encrypt(operator: Operator, switch: Unit, controller: Unit) -> None:
    """Give P4Runtime TLS with certificates on both sides."""
    operator.type(blocks("secrets")[3])
    switch.stop()
    operator.write_switch_config(*SWITCH_TLS)
    switch.start()
    (keys,) = re.findall(r"```toml\n(tls_ca.*?)```", (ROOT / "docs" / "secrets.md").read_text(), re.DOTALL)
    operator.of_switch = keys
    operator.write_config(AUDIT)
    controller.stop()
    controller.start()
    operator.all_go_on("P4Runtime has TLS")


def rotate(operator: Operator, switch: Unit, controller: Unit) -> None:
    """Replace every secret as docs/secrets.md has it."""
    admin, job_token, certify, switches, _ = blocks("secrets")
    first = (operator.etc / "admin.token").read_text()
    served = (operator.etc / "server.pem").read_bytes()
    before = controller.ready_count
    operator.serving(controller)
    operator.type(admin)
    controller.until_ready(before + 1)
    operator.type(job_token)
    (digits, _) = operator.trainings
    shutil.copy(operator.etc / "digits-2.token", digits.plan.token_file)
    operator.type("".join(certify.splitlines(keepends=True)[1:]) + switches)  # of the same authority
    switch.reload()
    switch.wait_for(lambda: "SIGHUP: read certificates" in switch.log_text(), "the new certificate")
    assert (operator.etc / "server.pem").read_bytes() != served
    tokens = (operator.etc / "admin.token").read_text()
    assert tokens.startswith(first)
    (operator.etc / "admin.token").write_text(tokens.removeprefix(first))
    operator.hang_up(controller)
    (operator.etc / "first.token").touch(0o600)
    (operator.etc / "first.token").write_text(first)
    assert "another token" in operator.type("hopsum job list --admin-token-file first.token", status=1)
    assert "digits" in operator.type("hopsum job list --admin-token-file alice.token")
    operator.all_go_on("every secret is another one")


def kill(operator: Operator, switch: Unit, controller: Unit) -> None:
    """Kill the switch, the controller and a worker, which comes again with the new token of its job."""
    switch.kill()
    operator.all_go_on("the switch was killed")
    before = operator.generations()
    controller.kill()
    operator.all_go_on("the controller was killed")
    assert operator.generations() == before
    (digits, _) = operator.trainings
    digits.kill(1)
    digits.start(1)
    operator.all_go_on("a worker was killed")


def restore(operator: Operator, controller: Unit) -> Unit:
    """Lose the controller's machine after a backup, and go on with it on another one, beside which a standby waits."""
    taking, restoring = blocks("backup")
    operator.type(taking.replace("admin.token", "alice.token"))
    before = operator.generations()
    controller.lose()
    operator.all_go_on("the controller's machine is lost")
    operator.move()
    operator.write_config(AUDIT)
    database = operator.root / "var" / "lib" / "hopsum"
    database.mkdir(parents=True)
    elsewhere = operator.unit("hopsum-controller.service")
    operator.type(restoring.replace("state.sqlite", str(database / "state.sqlite")))
    elsewhere.start()
    operator.all_go_on("another controller goes on with the backup")
    assert operator.generations() == before, "jobs of the backup are adopted"
    return elsewhere


def take_over(operator: Operator, controller: Unit) -> Unit:
    """Start a standby and lose the first controller."""
    assert "--standby" in blocks("standby")[0]
    standby = operator.unit("hopsum-controller.service", more="--standby")
    standby.start()
    before = operator.generations()
    controller.lose()
    standby.wait_for(lambda: "ready listen=" in standby.log_text(), "service by the standby")
    operator.all_go_on("the standby serves")
    assert operator.generations() == before
    assert operator.type(blocks("service")[1]) == "ok\nok\n"
    return standby


def end(operator: Operator, switch: Unit, controller: Unit) -> None:
    """Let one job come to its end, and delete it; delete the other one while it trains; stop the services."""
    digits, vectors = operator.trainings
    digits.finish()
    token = "--admin-token-file alice.token"
    operator.type(f"hopsum job delete digits {token}")
    assert "vectors" in operator.type(f"hopsum job delete vectors {token}", status=1)
    vectors.goes_on()
    operator.type(f"hopsum job delete vectors --yes {token}")
    for rank in range(2):
        assert vectors.status(rank) != 0
        assert "was deleted by alice" in vectors.entries(rank, "failed")[-1]["text"]
    assert json.loads(operator.type(f"hopsum job list --json {token}")) == {"jobs": []}
    (deleted,) = map(json.loads, operator.type(blocks("audit")[0]).splitlines())
    assert (deleted["identity"], deleted["after"]) == ("alice", None)
    controller.stop()
    switch.stop()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command to make certificates with")
def test_a_year(operator: Operator) -> None:
    switch, controller = begin(operator)
    upgrade(operator, switch, controller)
    encrypt(operator, switch, controller)
    rotate(operator, switch, controller)
    kill(operator, switch, controller)
    controller = restore(operator, controller)
    controller = take_over(operator, controller)
    end(operator, switch, controller)
    for training in operator.trainings:
        training.check()
    operator.check_secrets()
