# SPDX-License-Identifier: Apache-2.0
"""bmv2's simple_switch_grpc as a child process: the reference for the compiled program."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from hopsum_base.owned_folder import OwnedFolder
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.free_port import free_port
from hopsum_topologies.netns import Namespace
from hopsum_topologies.process import ManagedProcess, SwitchProcess

_PROGRAM = "simple_switch_grpc"
# An overloaded machine takes seconds to start bmv2.
_START_S = 60.0


def bmv2_unavailable() -> str | None:
    """Return the reason why bmv2 cannot run here with veths, None if it can. Makes a trial namespace and removes it."""
    if shutil.which(_PROGRAM) is None:
        return f"{_PROGRAM} is not on PATH"
    if shutil.which("ip") is None:
        return "the `ip` command (iproute2) is not on PATH"
    try:
        # Making a namespace is the test of root, of CAP_NET_ADMIN in a container, and of a kernel that has them.
        with Namespace():
            return None
    except TopologyError as error:
        return f"network namespaces cannot be made here: {error}"


def bmv2_versions() -> dict[str, str]:
    """Run `simple_switch_grpc --version`, and return the version that it prints, as {"bmv2": ...}.

    Raises TopologyError when it cannot be run, does not end within 60 s, or prints no version.
    """
    try:
        done = subprocess.run((_PROGRAM, "--version"), capture_output=True, text=True, timeout=_START_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TopologyError(f"{_PROGRAM} cannot be run: {error}") from error
    match = re.search(r"\d+\.\d+\.\d+\S*", done.stdout)
    if match is None:
        raise TopologyError(f"`{_PROGRAM} --version` printed no version: {done.stdout!r} {done.stderr!r}")
    return {"bmv2": match[0]}


@cache
def has_notifications() -> bool:
    """Return True if simple_switch_grpc has an option for notifications, or is not installed. Runs its `--help`.

    A build without nanomsg lacks the option. The first answer is kept for later calls. Raises TopologyError when the
    program does not end within 60 s.
    """
    if shutil.which(_PROGRAM) is None:
        # Its start will fail, and say why.
        return True
    try:
        done = subprocess.run((_PROGRAM, "--help"), capture_output=True, text=True, timeout=_START_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise TopologyError(f"{_PROGRAM} cannot be run: {error}") from error
    return "--notifications-addr" in done.stdout + done.stderr


class Bmv2Switch(SwitchProcess):
    """A simple_switch_grpc process, started without a program. The context manager stops it.

    `interfaces` maps switch ports to interface names in `namespace`, by default in the namespace of the caller.
    `address` is that of the P4Runtime server, a loopback port of the same namespace. The log is in a folder of its own,
    made in `folder`, by default in the folder of temporary files. With `packet_stream` the switch takes frames over
    gRPC at `frames_address` instead of interfaces, see `bmv2_stream`. Without it `frames_address` is "".

    Construction returns when the servers listen. It raises TopologyError when an interface is missing, or bmv2 ends or
    does not listen within 60 s.
    """

    def __init__(
        self,
        interfaces: Mapping[int, str],
        *,
        namespace: Namespace | None = None,
        device_id: int = 0,
        folder: Path | None = None,
        packet_stream: bool = False,
    ) -> None:
        self.device_id = device_id
        self._namespace = namespace
        self._check_interfaces(interfaces)
        # Before the folder, which an error here would leave.
        notifications = has_notifications()
        # A name in another folder is short, since sockets in it have names of at most 107 bytes.
        self._folder = OwnedFolder("bmv2") if folder is None else TemporaryDirectory(prefix="bmv2-", dir=folder)
        home = Path(self._folder.name)
        grpc_port, thrift_port, frames_port = self._free_ports()
        self.address = f"127.0.0.1:{grpc_port}"
        # Without a program: the driver pushes one, as the controller does on a switch that was restarted.
        command = [_PROGRAM, "--no-p4", "--device-id", str(device_id), "--thrift-port", str(thrift_port)]
        # Unset, both default to names that two switches on one machine would share.
        if notifications:
            command += ["--notifications-addr", f"ipc://{home}/notifications.ipc"]
        command += ["--log-console", "--log-level", "warn"]
        for port, interface in interfaces.items():
            command += ["-i", f"{port}@{interface}"]
        command += ["--", "--grpc-server-addr", self.address]
        self.frames_address = f"127.0.0.1:{frames_port}" if packet_stream else ""
        if packet_stream:
            command += ["--dp-grpc-server-addr", self.frames_address]
        try:
            inside = None if namespace is None else namespace.name
            self.process = ManagedProcess(command, home / "log", namespace=inside)
            self.process.wait_for(self._serving, f"a P4Runtime server at {self.address}", _START_S)
        except BaseException:
            self._folder.cleanup()
            raise

    def _inside(self) -> AbstractContextManager[None]:
        return nullcontext() if self._namespace is None else self._namespace.inside()

    def _check_interfaces(self, interfaces: Mapping[int, str]) -> None:
        """Find missing interfaces. bmv2 logs them and continues without the port."""
        with self._inside():
            known = {name for _, name in socket.if_nameindex()}
        for port, interface in interfaces.items():
            if interface not in known:
                where = f"namespace {self._namespace.name}" if self._namespace else "this namespace"
                raise TopologyError(f"port {port}: no interface {interface} in {where}; it has {sorted(known)}")

    def _free_ports(self) -> tuple[int, int, int]:
        with self._inside():
            # Thrift listens at all addresses, so the port must be free at each of them.
            thrift_port = free_port(host="0.0.0.0")
            # The frames port is taken also where no packet stream is wanted: a number costs nothing.
            return free_port(), thrift_port, free_port()

    def _serving(self) -> bool:
        # bmv2 opens its two gRPC servers one after the other, in no order that its manual promises.
        return self._listens(self.address) and (not self.frames_address or self._listens(self.frames_address))

    def _listens(self, address: str) -> bool:
        host, _, port = address.partition(":")
        with self._inside(), socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0
