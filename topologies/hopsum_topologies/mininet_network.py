# SPDX-License-Identifier: Apache-2.0
"""The Mininet of a description with bmv2. This module starts `mininet_script` and talks to it.

Mininet's own "root namespace" is a namespace of ours, the home, and all its processes are in one process namespace that
ends with the script. So it leaves nothing on the machine, however it ends, and never asks `mn -c` for help, which would
end the processes of others.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from hopsum_topologies.bmv2_process import bmv2_unavailable
from hopsum_topologies.description import HOST_INTERFACE, Link, Topology
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.netns import Namespace, add_neighbour
from hopsum_topologies.process import launcher_command
from hopsum_topologies.running_network import NamespaceNetwork, RunningNetwork, interfaces_of
from hopsum_topologies.shaping import DELAYED_FRAMES, require_delay_support

PYTHON: Final = "/usr/bin/python3"
"""The system's Python. Debian's Mininet is installed for no other Python."""
_SCRIPT: Final = Path(__file__).with_name("mininet_script.py")
# The first process of a process namespace: when it ends, the kernel ends all processes of Mininet.
_CONFINE: Final = ("unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
RATE_MAX_BPS: Final = 1e9
"""The largest rate of a link. Mininet logs a larger rate as out of range and does not set it."""
_PROBE_S: Final = 30.0
_END_S: Final = 20.0
_TAIL_BYTES: Final = 2000


def mininet_unavailable() -> str | None:
    """Return the reason why Mininet with bmv2 cannot run here, None if it can. Makes a trial namespace."""
    for program in ("mnexec", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not on PATH"
    try:
        done = subprocess.run(
            (PYTHON, "-I", "-c", "import mininet.net"), capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{PYTHON} cannot be run: {error}"
    if done.returncode != 0:
        return f"{PYTHON} cannot import mininet: {done.stderr.strip().rpartition(chr(10))[2]}"
    return bmv2_unavailable()


class MininetNetwork:
    """A Mininet whose switches are bmv2: a `RunningNetwork`. Its files are written to `folder`.

    The links have rates and delays. `NetworkControl` makes their losses. The context manager takes the network down.
    Raises TopologyError without root, Mininet, bmv2 or netem for a delay, and for a rate above Mininet's largest rate.
    Nothing is left then.
    """

    driver = "bmv2"

    def __init__(self, topology: Topology, folder: Path) -> None:
        if (reason := mininet_unavailable()) is not None:
            hint = "`apt-get install mininet` and be root; or use --target native"
            raise TopologyError(f"Mininet with bmv2 cannot run here: {reason}; {hint}")
        _require_rates(topology)
        require_delay_support(topology)
        self.topology = topology
        self._log = folder / "mininet.log"
        plan = folder / "plan.json"
        plan.write_text(json.dumps(plan_of(topology, folder)))
        with ExitStack() as stack:
            self.home = stack.enter_context(Namespace())
            command, environment = launcher_command([*_CONFINE, PYTHON, "-I", str(_SCRIPT), str(plan)], self.home.name)
            log = stack.enter_context(self._log.open("wb"))
            # The script's stdin and stdout are pipes. Mininet's prompt needs the terminal under other numbers.
            self._terminal = [os.dup(number) for number in range(3)]
            for descriptor in self._terminal:
                stack.callback(os.close, descriptor)
            self._script = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
                pass_fds=self._terminal,
            )
            stack.callback(self._end)
            self.addresses: Mapping[str, str] = self._hear()["ready"]
            self.pids: Mapping[str, int] = dict.fromkeys(topology.switches, self._script.pid)
            # Hosts get their namespaces from Mininet. A second name for each makes them usable by `ip` and by workers.
            self.hosts: Mapping[str, Namespace] = {
                host: stack.enter_context(Namespace(_shell_of(host, self._script.pid))) for host in topology.hosts
            }
            self._settle()
            self._stack = stack.pop_all()

    def prompt(self) -> None:
        """Run Mininet's prompt on our terminal. Return when the user leaves it.

        Call it in the main thread. Ctrl-C ends the command at the prompt, not the network. Raises TopologyError when
        Mininet has ended.
        """
        script = _only_child(self._script.pid)
        # The terminal sends Ctrl-C to this process group, in which the script is not.
        before = signal.signal(signal.SIGINT, lambda number, frame: os.kill(script, number))
        try:
            assert self._script.stdin is not None
            # Where the script has ended, reading to the end of its output raises with its last words.
            with suppress(BrokenPipeError):
                self._script.stdin.write(json.dumps(self._terminal).encode())
                self._script.stdin.flush()
            self._hear()
        finally:
            signal.signal(signal.SIGINT, before)

    def __enter__(self) -> MininetNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _settle(self) -> None:
        """Switch offloads off at both ends of all links."""
        for switch in self.topology.switches:
            for interface in interfaces_of(self.topology, switch).values():
                self.home.wait_until_carrying(interface)
                self.home.disable_offloads(interface)
        for host, namespace in self.hosts.items():
            switch = self.topology.switch_of(host)
            namespace.disable_offloads(HOST_INTERFACE)
            with namespace.inside():
                add_neighbour(HOST_INTERFACE, self.topology.ip(switch), self.topology.mac(switch))

    def _hear(self) -> dict[str, Any]:
        assert self._script.stdout is not None
        line = self._script.stdout.readline()
        if not line:
            status = self._script.wait()
            tail = self._log.read_text(errors="replace")[-_TAIL_BYTES:].strip()
            raise TopologyError(f"the Mininet script ended with {status}; it said:\n{tail}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def _end(self) -> None:
        """Let the script take the network down. Where the script does not, all its processes end at once."""
        assert self._script.stdin is not None
        assert self._script.stdout is not None
        with suppress(BrokenPipeError):
            self._script.stdin.close()
        try:
            self._script.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._script.kill()
            self._script.wait()
        self._script.stdout.close()


def start_network(topology: Topology, target: str, folder: Path, home: Namespace | None = None) -> RunningNetwork:
    """Start a network and return it. Its context manager takes it down.

    Args:
        target: "native" or "bmv2", in namespaces, or "mininet".
        folder: gets the files of the network, logs for example.
        home: the namespace of the switches. None: one is made. Ignored with target mininet.

    Raises TopologyError when it cannot run here. Nothing is left then.
    """
    if target == "mininet":
        return MininetNetwork(topology, folder)
    return NamespaceNetwork(topology, target, folder, home)


def _require_rates(topology: Topology) -> None:
    too_fast = [str(link) for link in topology.links if (link.rate_bps or 0.0) > RATE_MAX_BPS]
    if too_fast:
        raise TopologyError(
            f"topology {topology.name!r}: Mininet sets no rate above {RATE_MAX_BPS / 1e9:g} Gbit/s, and "
            f"{', '.join(too_fast)} would have none; describe them without a rate, or use --target native or bmv2"
        )


def _shell_of(host: str, script_pid: int) -> int:
    """Return the process that holds a host's network namespace: the shell that Mininet marks with its name.

    Raises TopologyError: it is not among the descendants of the script.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            marked = (folder / "cmdline").read_bytes().rstrip(b"\0").endswith(f"\0mininet:{host}".encode())
            if marked and script_pid in _ancestors(int(folder.name)):
                return int(folder.name)
    raise TopologyError(f"Mininet's host {host} has no shell: is this Mininet 2.2 or later?")


def _only_child(pid: int) -> int:
    """Return the script's process, which `unshare` has forked."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while pid > 1:
        # State and parent follow the program's name, which may have spaces and parentheses.
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def plan_of(topology: Topology, folder: Path) -> dict[str, Any]:
    """Return the input of `mininet_script`: the description with all addresses, ports and interfaces, for JSON.

    `folder` is the folder in which switches write their logs.
    """
    return {
        "hosts": [{"name": host, "ip": topology.ip(host), "mac": topology.mac(host)} for host in topology.hosts],
        "switches": [
            {
                "name": switch,
                "device_id": topology.device_id(switch),
                "interfaces": interfaces_of(topology, switch),
                "folder": str(folder),
            }
            for switch in topology.switches
        ],
        "links": [
            {
                "ends": [_end_of(topology, end, link) for end in link.ends],
                "rate_bps": link.rate_bps,
                "delay_s": link.delay_s,
                "delayed_frames": DELAYED_FRAMES,
            }
            for link in topology.links
        ],
    }


def _end_of(topology: Topology, node: str, link: Link) -> dict[str, Any]:
    port = topology.port(node, link) if node in topology.switches else 0
    return {"node": node, "interface": topology.interface(node, link), "port": port}
