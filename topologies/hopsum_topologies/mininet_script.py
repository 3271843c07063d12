# SPDX-License-Identifier: Apache-2.0
"""The Mininet of a description: bmv2 switches, hosts, and commands on them. Debian's own python3 runs this file.

    /usr/bin/python3 -I mininet_script.py PLAN.json

It imports Mininet and the standard library only. `mininet_network` writes the plan and starts it. One JSON object a
line, requests on stdin and events on stdout:

    {"start": [{"label": str, "host": str, "arguments": [str], "environment": {}, "folder": str}, ...]}   run these
    {"end": [label, ...]}    SIGTERM, and SIGKILL if that does not help        end of stdin: take everything down
    {"prompt": [fd, fd, fd]}    Mininet's own prompt, on the terminal that is open at these descriptors

    {"ready": {switch: "127.0.0.1:PORT"}}                            P4Runtime servers
    {"line": [label, "stdout" or "stderr", text]}      {"ended": [label, status]}      {"prompt_ended": true}

It runs as the first process of a process namespace, so nothing of it outlives it, and in the network namespace that
is the home of the switches.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from mininet.cli import CLI
from mininet.link import TCIntf, TCLink
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Switch

START_S = 60.0
END_S = 5.0
POLL_S = 0.05


class SimpleSwitchGrpc(Switch):  # type: ignore[misc]  # Mininet has no types
    """A bmv2 with a P4Runtime server on the home's loopback. `plan` is the switch's part of the plan."""

    def __init__(self, name: str, plan: dict[str, Any], **params: Any) -> None:
        super().__init__(name, **{**params, "inNamespace": False})
        self.plan = plan
        self.child: Any = None
        self.address = ""

    def start(self, controllers: Any) -> None:
        """Start the process, without a program."""
        grpc, thrift = free_ports()
        self.address = f"127.0.0.1:{grpc}"
        command = ["simple_switch_grpc", "--no-p4", "--device-id", str(self.plan["device_id"])]
        command += ["--thrift-port", str(thrift), "--log-console", "--log-level", "warn"]
        # By default all bmv2 of a machine share one path for notifications.
        command += ["--notifications-addr", f"ipc://{self.plan['folder']}/{self.name}.ipc"]
        for number, interface in self.plan["interfaces"].items():
            command += ["-i", f"{number}@{interface}"]
        command += ["--", "--grpc-server-addr", self.address]
        with open(f"{self.plan['folder']}/{self.name}.log", "wb") as log:
            self.child = self.popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for_server(self.child, ("127.0.0.1", grpc), self.name)

    def stop(self, deleteIntfs: bool = True) -> None:
        """End the process."""
        if self.child is not None:
            end([self.child])
        super().stop(deleteIntfs)


class ShapedInterface(TCIntf):  # type: ignore[misc]
    """An interface with rate and delay. An error of tc ends the network, where Mininet logs it and continues."""

    def tc(self, cmd: str, tc: str = "tc") -> str:
        """Run one tc command and return its output. Raises SystemExit when it says more than warnings."""
        said: str = super().tc(cmd, tc)
        if " show " not in cmd and any(line and not line.startswith("Warning:") for line in said.splitlines()):
            raise SystemExit(f"{self.name}: `{cmd % (tc, self)}` said: {said.strip()}")
        return said


def free_ports() -> tuple[int, int]:
    """Return two TCP ports of loopback that are free now."""
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def wait_for_server(child: Any, address: tuple[str, int], name: str) -> None:
    """Wait until a process listens there. Raises SystemExit when the process ends, or takes too long."""
    give_up = time.monotonic() + START_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(address) == 0:
                return
        if child.poll() is not None or time.monotonic() > give_up:
            raise SystemExit(f"switch {name} does not serve: see {name}.log")
        time.sleep(POLL_S)


def end(children: list[Any]) -> None:
    """End commands with their groups, which mnexec has made: SIGTERM, then SIGKILL to those that are still there."""
    living = [child for child in children if child.poll() is None]
    for child in living:
        signal_group(child, signal.SIGTERM)
    give_up = time.monotonic() + END_S
    for child in living:
        try:
            child.wait(max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            signal_group(child, signal.SIGKILL)
            child.wait()


def signal_group(child: Any, number: int) -> None:
    """Send a signal to a command and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def build(plan: dict[str, Any]) -> Any:
    """Make the network of a plan. The switches do not run yet."""
    # Otherwise Mininet raises the limits of the whole machine.
    Mininet.inited = True
    net = Mininet(controller=None, link=TCLink, build=False)
    for each in plan["hosts"]:
        host = net.addHost(each["name"], ip=each["ip"] + "/24", mac=each["mac"])
        for scope in ("all", "default"):
            host.cmd(f"echo 1 > /proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
    for each in plan["switches"]:
        net.addSwitch(each["name"], cls=SimpleSwitchGrpc, plan=each, dpid=f"{each['device_id'] + 1:x}")
    for each in plan["links"]:
        left, right = each["ends"]
        shape: dict[str, Any] = {"cls1": ShapedInterface, "cls2": ShapedInterface}
        if each["rate_bps"] is not None:
            shape["bw"] = each["rate_bps"] / 1e6
        if each["delay_s"]:
            shape |= {"delay": f"{each['delay_s'] * 1e6:.0f}us", "max_queue_size": each["delayed_frames"]}
        names = {"intfName1": left["interface"], "intfName2": right["interface"]}
        net.addLink(left["node"], right["node"], port1=left["port"], port2=right["port"], **names, **shape)
    net.build()
    return net


class CommandRunner:
    """Starts commands on hosts, reads their output, and reports their ends."""

    def __init__(self, net: Any) -> None:
        self.net = net
        self.children: dict[str, Any] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        self.requests = b""

    def start(self, commands: list[dict[str, Any]]) -> None:
        """Start commands in their hosts."""
        for each in commands:
            host, label = self.net.get(each["host"]), each["label"]
            child = host.popen(each["arguments"], env=each["environment"], stdin=subprocess.DEVNULL, cwd=each["folder"])
            self.children[label] = child
            for stream, pipe in (("stdout", child.stdout), ("stderr", child.stderr)):
                os.set_blocking(pipe.fileno(), False)
                self.selector.register(pipe, selectors.EVENT_READ, [label, stream, b""])

    def serve(self) -> None:
        """Carry out requests and report events, until stdin ends."""
        while True:
            for key, _ in self.selector.select(POLL_S):
                # stdin has no label, the pipes of commands have one.
                if key.data is None:
                    if not self.take_requests():
                        return
                else:
                    self.read(key)
            self.reap()

    def take_requests(self) -> bool:
        """Carry out the requests that have arrived. Return False at the end of stdin."""
        data = os.read(sys.stdin.fileno(), 1 << 16)
        *lines, self.requests = (self.requests + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            self.start(request.get("start", []))
            end([self.children[label] for label in request.get("end", []) if label in self.children])
            if "prompt" in request:
                prompt(self.net, request["prompt"])
        return bool(data)

    def read(self, key: Any) -> None:
        """Pass lines on."""
        label, stream, rest = key.data
        data = os.read(key.fd, 1 << 16)
        *lines, key.data[2] = (rest + data).split(b"\n")
        if not data:
            self.selector.unregister(key.fileobj)
            lines = [rest] if rest else []
        for line in lines:
            tell({"line": [label, stream, line.decode(errors="replace")]})

    def reap(self) -> None:
        """Report the ends of commands whose output has been read."""
        for label, child in list(self.children.items()):
            if child.poll() is None:
                continue
            # Output that was written before the end is in the pipes, and is reported before the end.
            mine = [key for key in self.selector.get_map().values() if key.data and key.data[0] == label]
            ready = {key.fd for key, _ in self.selector.select(0)}
            if any(key.fd in ready for key in mine):
                continue
            # The pipes are open still where the command has left children.
            for key in mine:
                self.selector.unregister(key.fileobj)
            del self.children[label]
            tell({"ended": [label, child.returncode if child.returncode >= 0 else 128 - child.returncode]})


def prompt(net: Any, terminal: list[int]) -> None:
    """Run Mininet's prompt on the terminal, until `exit` or the end of its input."""
    # The script's own stdin and stdout carry the JSON lines, and come back after the prompt.
    kept = [os.dup(number) for number in range(3)]
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    # The answers of the prompt are of level "output". Everything else of Mininet's log stays hidden.
    setLogLevel("output")
    try:
        for number, descriptor in enumerate(terminal):
            os.dup2(descriptor, number)
        CLI(net)
    finally:
        sys.stdout.flush()
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)
        setLogLevel("warning")
        signal.signal(signal.SIGINT, handler)
    tell({"prompt_ended": True})


def tell(event: dict[str, Any]) -> None:
    """Write one event."""
    print(json.dumps(event), flush=True)


def stop(number: int, frame: Any) -> None:
    """Exit through the code that takes the network down."""
    raise SystemExit(128 + number)


def main() -> None:
    """Bring the network up, serve, take it down."""
    setLogLevel("warning")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    net = build(plan)
    try:
        net.start()
        runner = CommandRunner(net)
        tell({"ready": {switch.name: switch.address for switch in net.switches}})
        try:
            runner.serve()
        finally:
            end(list(runner.children.values()))
    finally:
        net.stop()


if __name__ == "__main__":
    main()
