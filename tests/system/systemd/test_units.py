# SPDX-License-Identifier: Apache-2.0
"""The unit files under systemd, installed by the commands of docs/administration.md, while a job trains."""

from __future__ import annotations

import secrets
import socket
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.jobs_client import JobsClient
from hopsum_topologies.free_port import free_port

from ...support.pages import blocks
from ..drills.plain_training import PlainTraining
from .machine import Machine, why_not

ROOT = Path(__file__).resolve().parents[3]

CONFIG = """\
[controller]
database = "/var/lib/hopsum/state.sqlite"
listen = "127.0.0.1:{service}"
metrics_listen = "127.0.0.1:{metrics}"
admin_token_file = "admin.token"
lease_s = 120

[[switch]]
name = "leaf1"
driver = "native"
address = "127.0.0.1:{grpc}"
mac = "02:00:00:00:00:fe"
ip = "10.0.0.254"
service_address = "127.0.0.1:{workers}"
ports = [{{port = 1, network = "127.0.0.0/8"}}]
"""
UNITS = ("hopsum-switch@leaf1", "hopsum-controller")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if why := why_not():
        pytest.skip(why)
    try:
        made = Machine(tmp_path)
    except RuntimeError as error:
        pytest.skip(str(error))
    yield made
    made.stop()


def environment_script() -> str:
    """Return a script that makes /opt/hopsum of this environment, wherever that is: services see no home folders."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["dev-mode-dirs"]
    folders = {"source": ROOT, "packages": sysconfig.get_path("purelib"), "python": sys.base_prefix}
    binds = "".join(f"mkdir -p /opt/{name}; mount --bind '{place}' /opt/{name}\n" for name, place in folders.items())
    path = ":".join([*(f"/opt/source/{each}" for each in packages), "/opt/packages"])
    python = f"/opt/python/bin/{Path(sys.executable).resolve().name}"
    settings = f"PYTHONPATH={path} LD_LIBRARY_PATH=/opt/python/lib"
    start = f'#!/bin/sh\n{settings} exec {python} -m hopsum_cli.main "$@"\n'
    program = "/opt/hopsum/bin/hopsum"
    return f"{binds}mkdir -p /opt/hopsum/bin; cat > {program} <<'END'\n{start}END\nchmod 755 {program}"


def install(machine: Machine, token: str) -> dict[str, int]:
    """Type what the page has, with this environment in the place of a new one; return the ports."""
    block = blocks("administration", "Services", "text")[0]
    environment, *commands, start = block.splitlines()
    assert environment.startswith("python3 -m venv /opt/hopsum && ")
    ports = {name: free_port() for name in ("service", "metrics", "grpc")} | {"workers": free_port(socket.SOCK_DGRAM)}
    place = "--grpc 127.0.0.1:{grpc} --udp 1=127.0.0.1:{workers},as=10.0.0.254:24677".format(**ports)
    machine.run(environment_script())
    machine.run(f"cd '{ROOT}'\n" + "\n".join(commands))
    machine.run(
        f"cd /etc/hopsum; cat > cluster.toml <<'END'\n{CONFIG.format(**ports)}END\n"
        f"echo 'ARGUMENTS={place}' > switch-leaf1.conf\n"
        f"(umask 077; echo '{token}' > admin.token); chown hopsum admin.token"
    )
    machine.run(start)
    return ports


def test_the_units(machine: Machine, tmp_path: Path) -> None:
    token = secrets.token_urlsafe(32)
    ports = install(machine, token)
    for unit in UNITS:
        assert machine.shown(unit, "ActiveState") == "active"
        assert machine.run(f"ps -o user= -p {machine.shown(unit, 'MainPID')}").strip() == "hopsum"
    assert machine.shown("hopsum-controller", "StatusText") == f"listens at 127.0.0.1:{ports['service']}"
    assert machine.run("stat -c '%U %a' /var/lib/hopsum /var/lib/hopsum/state.sqlite").split() == [
        "hopsum", "700", "hopsum", "600"
    ]  # fmt: skip

    with ExitStack() as stack:
        address = f"127.0.0.1:{ports['service']}"
        operator = JobsClient(stack.enter_context(Channel(ControllerAddress.of(address))), token)
        machine.wait_for(f"curl -fs http://127.0.0.1:{ports['metrics']}/readyz", "readiness")
        training = PlainTraining(stack, tmp_path / "train", operator, address, "train")
        assert "interpret" not in machine.run("journalctl --no-pager -u hopsum-switch@leaf1")

        machine.run("systemctl reload hopsum-controller hopsum-switch@leaf1")
        machine.wait_for("journalctl --no-pager -u hopsum-controller | grep 'SIGHUP: read '", "the reload")
        for unit in UNITS:
            machine.run(f"systemctl kill -s KILL {unit}")
            machine.wait_for(f"[ $(systemctl show --value -p NRestarts {unit}) -ge 1 ]", "the restart")
            machine.wait_for(f"systemctl is-active {unit}", "the service")
            training.continues()

        machine.run("mkdir -p /run/systemd/system/hopsum-controller.service.d")
        machine.run(
            "printf '[Service]\\nWatchdogSec=5\\n' > /run/systemd/system/hopsum-controller.service.d/short.conf"
        )
        machine.run("systemctl daemon-reload; systemctl restart hopsum-controller")
        machine.run("systemctl kill -s STOP hopsum-controller")
        machine.wait_for("journalctl --no-pager -u hopsum-controller | grep 'Watchdog timeout'", "the watchdog")
        machine.wait_for("systemctl is-active hopsum-controller", "the service")
        training.continues()
        training.finish()
    machine.run("systemctl stop hopsum-controller hopsum-switch@leaf1")
    for unit in UNITS:
        assert machine.shown(unit, "Result") == "success"
        assert machine.shown(unit, "ExecMainStatus") == "0"
