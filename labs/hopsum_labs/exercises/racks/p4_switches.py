# SPDX-License-Identifier: Apache-2.0
"""P4 switches for Mininet scripts: hopsum's embedded switch, and bmv2.

    net = Mininet(topo=MyTopo(), switch=EmbeddedP4Switch, controller=None)
    net.start()
    net["s1"].p4runtime       # "127.0.0.1:PORT": its P4Runtime server, in the namespace of the script
    net["s1"].device_id

Port N of a switch is the interface that `addLink(..., port2=N)` gave it. A switch has no program until a P4Runtime
client pushes one. This file needs Mininet and the standard library. It runs under the system's Python, hopsum does not
have to: the environment variable HOPSUM, or PATH, says where the command `hopsum` is.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time

from mininet.node import Switch

START_S = 60.0
END_S = 5.0


def hopsum_command():
    """Return the path of the command `hopsum`. Raises SystemExit: it is not there."""
    found = os.environ.get("HOPSUM") or shutil.which("hopsum")
    if not found or not os.path.exists(found):
        raise SystemExit("where is hopsum? Set HOPSUM=$(command -v hopsum) in front of this command")
    return found


def hopsum_python():
    """Return the path of the Python that runs hopsum, from the first line of its command. Raises SystemExit: none."""
    with open(hopsum_command(), encoding="utf-8", errors="replace") as file:
        first = file.readline()
    if not first.startswith("#!"):
        raise SystemExit(f"{hopsum_command()} does not say which Python runs it: set HOPSUM to pip's script")
    return first[2:].strip()


class P4Switch(Switch):
    """A switch process with a P4Runtime server. `driver` is hopsum's name for its kind."""

    driver = ""

    def __init__(self, name, device_id=0, **params):
        # Mininet wants an id; nothing uses it.
        own = {"inNamespace": False, "dpid": f"{int(device_id) + 1:x}"}
        super().__init__(name, **{**params, **own})
        self.device_id = int(device_id)
        self.p4runtime = f"127.0.0.1:{free_port()}"
        self.log = os.path.join(tempfile.gettempdir(), f"{self.name}.log")
        self.child = None

    def start(self, controllers):
        """Start the process and wait until its server answers. Raises SystemExit when it ends, or after 60 s."""
        del controllers
        ports = {number: str(each) for number, each in self.intfs.items() if str(each) != "lo"}
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(self.command(ports), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        give_up = time.monotonic() + START_S
        while not is_listening(self.p4runtime):
            if self.child.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"switch {self.name} does not serve: see {self.log}")
            time.sleep(0.05)

    def stop(self, deleteIntfs=True):
        """End the process. Remove the interfaces of the switch unless `deleteIntfs` is False."""
        if self.child is not None:
            self.child.terminate()
            try:
                self.child.wait(END_S)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
            self.child = None
        super().stop(deleteIntfs)

    def command(self, ports):
        """Return the command line of a switch with these interfaces by port number."""
        raise NotImplementedError


class EmbeddedP4Switch(P4Switch):
    """hopsum's embedded switch. `options` are more options of `hopsum switch`, such as ["--trace", "/tmp/s1.trace"]."""

    driver = "native"

    def __init__(self, name, options=(), **params):
        super().__init__(name, **params)
        self.options = list(options)

    def command(self, ports):
        """Return the command line."""
        interfaces = [word for number, name in ports.items() for word in ("-i", f"{number}@{name}")]
        server = ["--grpc", self.p4runtime, "--device-id", str(self.device_id)]
        return [hopsum_command(), "switch", *server, *interfaces, *self.options]


class Bmv2P4Switch(P4Switch):
    """bmv2's simple_switch_grpc."""

    driver = "bmv2"

    def command(self, ports):
        """Return the words of the command that runs simple_switch_grpc. `ports` has interface names by port number."""
        interfaces = [word for number, name in ports.items() for word in ("-i", f"{number}@{name}")]
        own = ["--thrift-port", str(free_port()), "--notifications-addr", f"ipc://{self.log}.ipc"]
        words = ["simple_switch_grpc", "--no-p4", "--device-id", str(self.device_id), *own, *interfaces]
        return [*words, "--log-console", "--log-level", "warn", "--", "--grpc-server-addr", self.p4runtime]


def free_port():
    """Return a TCP port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_listening(address):
    """Return True if a server listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
