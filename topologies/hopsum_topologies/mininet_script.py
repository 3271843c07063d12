# SPDX-License-Identifier: Apache-2.0
"""The Mininet of a description: bmv2 switches, hosts, and Mininet's prompt. Debian's own python3 runs this file.

    /usr/bin/python3 -I mininet_script.py PLAN.json

It imports Mininet and the standard library only. `mininet_network` writes the plan and starts it. One JSON value a
line, requests on stdin and answers on stdout:

    {"ready": {switch: "127.0.0.1:PORT"}}    the network is up, with these P4Runtime servers
    [fd, fd, fd]    Mininet's own prompt, on the terminal that is open at these descriptors; {"prompt_ended": true}
    end of stdin    everything is taken down

It runs as the first process of a process namespace, so nothing of it outlives it, and in the network namespace that
is the home of the switches.
"""

from __future__ import annotations

import contextlib
import json
import os
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
        """Start the process, without a program, and wait until it listens. `controllers` is ignored.

        Raises SystemExit when the process ends, or does not listen in time.
        """
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
        """End the process. Remove the interfaces of the switch unless `deleteIntfs` is False."""
        if self.child is not None:
            end_process_group(self.child)
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
    """Wait until a process listens at an address. Raises SystemExit naming `name` when it ends, or after 60 s."""
    give_up = time.monotonic() + START_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(address) == 0:
                return
        if child.poll() is not None or time.monotonic() > give_up:
            raise SystemExit(f"switch {name} does not serve: see {name}.log")
        time.sleep(POLL_S)


def end_process_group(child: Any) -> None:
    """End a switch with its process group, which mnexec has made: SIGTERM, and after 5 s SIGKILL. Wait for its end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(END_S)


def build_network(plan: dict[str, Any]) -> Any:
    """Make the network of a plan, and return Mininet's object. The switches do not run yet."""
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


def run_prompt(net: Any, terminal: list[int]) -> None:
    """Run Mininet's prompt on the terminal, until `exit` or the end of its input. Then write {"prompt_ended": true}.

    `terminal` has the descriptors for stdin, stdout and stderr.
    """
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
    write_event({"prompt_ended": True})


def write_event(event: dict[str, Any]) -> None:
    """Write one event on stdout as a line of JSON."""
    print(json.dumps(event), flush=True)


def exit_on_signal(number: int, frame: Any) -> None:
    """Handle a signal: raise SystemExit with 128 and the signal's number, so that the network is taken down."""
    raise SystemExit(128 + number)


def main() -> None:
    """Bring the network of the plan up, serve the requests on stdin until its end, and take the network down."""
    setLogLevel("warning")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, exit_on_signal)
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    net = build_network(plan)
    try:
        net.start()
        write_event({"ready": {switch.name: switch.address for switch in net.switches}})
        # Not by sys.stdin, which is the terminal's during a prompt and would keep what it has read ahead.
        while request := os.read(sys.stdin.fileno(), 1 << 16):
            run_prompt(net, json.loads(request))
    finally:
        net.stop()


if __name__ == "__main__":
    main()
