# SPDX-License-Identifier: Apache-2.0
"""The embedded switch as a child process: needs neither root nor interfaces, but can use both."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hopsum_base.owned_folder import OwnedFolder
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.netns import Namespace
from hopsum_topologies.process import ManagedProcess, SwitchProcess

# A switch that ends is noticed at once. With empty caches on a busy machine it imports and compiles for minutes.
_START_S = 300.0
# hopsum_switch prints this line once all ports are open and P4Runtime answers.
_READY = re.compile(r"^ready grpc=(\S+) device_id=(\d+)\s*$", re.MULTILINE)


class NativeSwitch(SwitchProcess):
    """A native switch process. The context manager stops it.

    `unix` maps switch ports to the paths of AF_UNIX datagram sockets. `udp` maps them to the text after `PORT=` in the
    command's `--udp` option. `interfaces` maps them to interface names in `namespace`, by default in the namespace of
    the caller. `grpc` is the address of the P4Runtime server. The default is any loopback port of the same namespace.
    `grpc="unix"` makes a socket in a folder of its own, which every namespace reaches. `address` is the address in use.
    The folder of the socket also has the log. It is made in `folder`, by default in the folder of temporary files.
    `extra` are more arguments of the switch's command. `environment` is used in place of ours.

    Construction returns when the switch is ready. It raises TopologyError when the switch ends before, or takes 300 s.
    """

    def __init__(
        self,
        program: Path,
        p4info: Path,
        *,
        unix: Mapping[int, Path] | None = None,
        udp: Mapping[int, str] | None = None,
        interfaces: Mapping[int, str] | None = None,
        namespace: Namespace | None = None,
        device_id: int = 0,
        grpc: str = "127.0.0.1:0",
        extra: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        # A name in another folder is short, since sockets in it have names of at most 107 bytes.
        self._folder = OwnedFolder("native") if folder is None else TemporaryDirectory(prefix="native-", dir=folder)
        command = [sys.executable, "-m", "hopsum_switch", "--program", str(program), "--p4info", str(p4info)]
        listen = f"unix:{self._folder.name}/p4runtime" if grpc == "unix" else grpc
        command += ["--grpc", listen, "--device-id", str(device_id), *extra]
        for port, path in (unix or {}).items():
            command += ["--unix", f"{port}={path}"]
        for port, specification in (udp or {}).items():
            command += ["--udp", f"{port}={specification}"]
        for port, interface in (interfaces or {}).items():
            command += ["-i", f"{port}@{interface}"]
        inside = None if namespace is None else namespace.name
        try:
            log = Path(self._folder.name) / "log"
            self.process = ManagedProcess(command, log, namespace=inside, environment=environment)
            self.process.wait_for(self._ready, "the line `ready`", _START_S)
        except BaseException:
            self._folder.cleanup()
            raise
        match = _READY.search(self.process.log_text())
        if match is None:
            raise TopologyError("the native switch took its `ready` line back")
        self.address = match[1]
        self.device_id = int(match[2])

    def _ready(self) -> bool:
        return _READY.search(self.process.log_text()) is not None
