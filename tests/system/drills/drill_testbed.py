# SPDX-License-Identifier: Apache-2.0
"""The system of a drill: switches, a controller and workers as processes. All files are in the drill's folder."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.jobs_client import JobsClient
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.cluster import load_config
from hopsum_controlplane.devices.device import PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.entry_plan import JOB_TABLES
from hopsum_controlplane.switch_controller import set_loss
from hopsum_controlplane.tables.forward import FLOOD_GROUP
from hopsum_topologies.bmv2_process import bmv2_unavailable
from hopsum_topologies.process import ManagedProcess
from hopsum_wire.control import control_pb2 as pb

from .drill import Check, DrillContext, DrillReport, DrillSkipped, await_that, first_sign
from .drill_network import SERVICE_IP, SERVICE_MAC, FurtherSwitch, LoopbackNetwork, VethNetwork
from .silent_proxy import SilentProxy

LEASE_S: Final = 10.0
"""Longer than the longest pause between attempts to reach a controller that was away, and than a busy machine's."""
_HEARTBEAT_S: Final = 0.2
_LAST_SESSION: Final = (1 << 64) - 1
"""Low word of an election id above all sessions of the controller: bmv2 keeps a connection that died in silence."""
_CONFIG: Final = """\
[controller]
database = "{database}"
listen = "{listen}"
metrics_listen = ""
admin_token_file = "{folder}/admin.token"
lease_s = {lease_s}
heartbeat_s = {heartbeat_s}
reconcile_interval_s = 1.0
"""
_SWITCH: Final = """
[[switch]]
name = "{name}"
driver = "{driver}"
address = "{grpc_address}"
mac = "{mac}"
ip = "{ip}"
{service}
ports = [{ports}]
"""


class DrillTestbed:
    """Switch and controller, running, made by `drill_testbed`. `report` is the drill's, to fill in."""

    def __init__(self, context: DrillContext, report: DrillReport, network: LoopbackNetwork, lease_s: float) -> None:
        self.context, self.report, self.network, self.lease_s = context, report, network, lease_s
        self.proxy: SilentProxy | None = None
        """The proxy between controller and switch, where there is one."""
        self.processes: dict[str, ManagedProcess] = {}
        """The processes by name: those that were started last under each name."""
        self._admin = secrets.token_urlsafe(24)
        self._started: list[ManagedProcess] = []
        self._began_s = time.monotonic()

    # ---- processes ------------------------------------------------------------------------------------

    def start(self, name: str, command: list[str], *, namespace: str | None = None) -> ManagedProcess:
        """Start a process under a name. It is stopped with the testbed."""
        log = self.context.folder / f"{name.replace(' ', '-')}-{len(self._started)}.log"
        process = ManagedProcess(command, log, namespace=namespace)
        self._started.append(process)
        self.processes[name] = process
        return process

    def signal(self, name: str, number: signal.Signals) -> float:
        """Send a signal to a process by its id, note it, and return when, as of time.monotonic()."""
        process = self.processes[name]
        os.kill(process.pid, number)
        at_s = self.happened(f"{number.name} to {name}")
        if number is signal.SIGKILL:
            process.stop()
        return at_s

    def happened(self, what: str) -> float:
        """Note a fault or a repair, and return its time, as of time.monotonic()."""
        at_s = time.monotonic()
        self.report.events.append((what, at_s - self._began_s))
        return at_s

    def now(self) -> float:
        """Return the time as of time.monotonic(), the clock of the journals."""
        return time.monotonic()

    def start_switch(self, shard: int = 0) -> None:
        """Start the switch of a shard, without a program. One that was killed is started at the same addresses."""
        driver = self.context.target
        command = self.network.switch_command(driver, sys.executable, shard)
        process = self.start(f"switch {shard}" if shard else "switch", command)
        at = self.network.further[shard - 1].grpc_address if shard else self.network.grpc_address
        host, _, port = at.rpartition(":")
        await_that(lambda: _listens(host, int(port)), "a switch that listens", alive=process)

    @staticmethod
    def switch_name(shard: int) -> str:
        """Return the name of a shard's switch in the controller's configuration."""
        return f"shard{shard}" if shard else "leaf"

    def start_controller(self, *options: str) -> None:
        """Start the controller over its database, with more options. Returns when it serves."""
        command = controller_command(self.context.folder / "cluster.toml")
        await_ready(self.start("controller", [*command, *options]))

    def write_config(self, database: Path = Path("state.sqlite")) -> None:
        """Write the administrator's token and the configuration, with the database in the drill's folder."""
        token = self.context.folder / "admin.token"
        token.touch(mode=0o600)
        token.write_text(self._admin, encoding="utf-8")
        text = _CONFIG.format(
            folder=self.context.folder,
            database=self.context.folder / database,
            listen=self.network.controller_address,
            lease_s=self.lease_s,
            heartbeat_s=_HEARTBEAT_S,
        )
        address = self.network.grpc_address if self.proxy is None else self.proxy.address
        first = FurtherSwitch(address, self.network.service_address, SERVICE_MAC, SERVICE_IP)
        ports = ", ".join(f'{{port = {port}, network = "{network}"}}' for port, network in self.network.ports)
        for shard, each in enumerate([first, *self.network.further]):
            service = f'service_address = "{each.service_address}"' if each.service_address else ""
            text += _SWITCH.format(
                name=self.switch_name(shard),
                driver=self.context.target,
                ports=ports,
                **{**each._asdict(), "service": service},
            )
        (self.context.folder / "cluster.toml").write_text(text, encoding="utf-8")

    def lose(self, losses: Mapping[int, float]) -> None:
        """Let switch ports lose a share of their frames each way. It is called before the controller has the switch."""
        with open_device(self.context.target, self.network.grpc_address) as device:
            ensure_pipeline(device, PipelineConfig.load(*compiled_program()))
            for port, share in losses.items():
                set_loss(device, port, share, share)

    # ---- the operator ---------------------------------------------------------------------------------

    @contextmanager
    def operator(self) -> Iterator[JobsClient]:
        """Ask the controller, for the block."""
        with Channel(ControllerAddress.of(self.network.controller_address, tls=False)) as channel:
            yield JobsClient(channel, self._admin)

    def await_lost(self, job: str, rank: int) -> float:
        """Wait until the controller has given a rank up. Return the time. Raises DrillError."""

        def lost() -> float | None:
            with self.operator() as operator:
                found = {member.rank: member.phase for member in operator.job(job).members}
            return self.now() if found.get(rank) == pb.MEMBER_PHASE_LOST else None

        return first_sign(lost, f"loss of rank {rank} in the controller's database")

    def condition(self) -> str:
        """Return the controller's words about the first switch, empty if nothing is wrong."""
        with self.operator() as operator:
            return str(operator.switches()[0].condition)

    # ---- the end --------------------------------------------------------------------------------------

    def left_on_switch(self) -> list[str]:
        """End the controller, and return what of its jobs is left on switches: nothing, once they are deleted."""
        with self.operator() as operator:
            left = [f"job {job.name} in the database" for job in operator.jobs()]
            left += [f"{each.slots_used} slots in use" for each in operator.switches() if each.slots_used]
        self.processes["controller"].stop()
        for switch in load_config(self.context.folder / "cluster.toml").switches:
            with open_device(switch.driver, switch.address, election_id=(switch.election_id, _LAST_SESSION)) as device:
                for table in JOB_TABLES:
                    left += [f"{len(entries)} entries of {table}" for entries in [device.read_table(table)] if entries]
                left += [f"group {group.id}" for group in device.read_groups() if group.id != FLOOD_GROUP]
        return left

    def stop(self) -> None:
        """Stop all processes, the last one first, those that a signal has stopped as well."""
        for process in reversed(self._started):
            if process.running():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
            process.stop()

    def still_running(self) -> list[str]:
        """Return the processes that have not ended."""
        return [f"process {each.pid} ({each.name})" for each in self._started if os.path.exists(f"/proc/{each.pid}")]


def controller_command(config: Path) -> list[str]:
    return [sys.executable, "-m", "hopsum_cli.main", "controller", "--config", str(config)]


def await_ready(controller: ManagedProcess) -> None:
    """Wait until a controller serves. Raises DrillError."""
    ready = lambda: re.search(r"^ready listen=", controller.log_text(), re.MULTILINE)  # noqa: E731
    await_that(ready, "a controller that serves", alive=controller)


@contextmanager
def drill_testbed(
    context: DrillContext,
    *,
    seats: int = 0,
    losses: Mapping[int, float] | None = None,
    lease_s: float = LEASE_S,
    proxied: bool = False,
    shards: int = 1,
) -> Iterator[DrillTestbed]:
    """Run switches and controller for the block, then end all processes and check that nothing is left.

    Args:
        seats: number of network namespaces for workers; with 0 everything is on loopback.
        losses: share of frames that switch ports lose each way.
        proxied: with a proxy between controller and switch.
        shards: number of switches side by side.

    Raises DrillError when they do not come up, DrillSkipped where the machine lacks root or a program.
    """
    if reason := _unavailable(context.target, seats):
        raise DrillSkipped(reason)
    report = DrillReport(context.name, context.target)
    network = VethNetwork(seats, shards) if seats else LoopbackNetwork(shards)
    testbed = DrillTestbed(context, report, network, lease_s)
    began_s = time.monotonic()
    left: list[str] = []
    with ExitStack() as stack:
        stack.callback(network.close)
        stack.callback(testbed.stop)
        if proxied:
            host = network.grpc_address.rpartition(":")[0]
            testbed.proxy = stack.enter_context(closing(SilentProxy(host, network.grpc_address)))
        testbed.write_config()
        for shard in range(shards):
            testbed.start_switch(shard)
        if losses:
            testbed.lose(losses)
        testbed.start_controller()
        yield testbed
        left = testbed.left_on_switch()
    left += testbed.still_running() + _namespaces()
    report.seconds = time.monotonic() - began_s
    what = "database, tables, groups, processes and namespaces of the drill, after its jobs were deleted"
    report.checks["nothing_left_behind"] = Check(not left, ", ".join(left) or what)


def _unavailable(target: str, seats: int) -> str:
    """Return the reason why this machine can not run the testbed, an empty string if it can."""
    if target == "bmv2" and (reason := bmv2_unavailable()):
        return reason
    if not seats:
        return ""
    if shutil.which("ip") is None:
        return "the `ip` command (iproute2) is not on PATH"
    return "" if os.geteuid() == 0 else "network namespaces need root"


def _namespaces() -> list[str]:
    folder = "/var/run/netns"
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [f"namespace {name}" for name in names if name.startswith(f"hopsum-{os.getpid()}-")]


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
