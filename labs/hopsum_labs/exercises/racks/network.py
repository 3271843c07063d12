#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Two racks in Mininet, with a P4 program on every switch. Edit it.

    HOPSUM=$(command -v hopsum) /usr/bin/python3 network.py --worker worker.py             (as root)

It starts the network, lets hopsum write the entries of the handout, runs `all_reduce` of the worker on every host, and
gives Mininet's prompt.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

from mininet.cli import CLI
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.topo import Topo
from p4_switches import Bmv2P4Switch, EmbeddedP4Switch, hopsum_python

# A leaf's port to the spine; its workers are at the ports from 1 on.
UPLINK = 9
HERE = os.path.dirname(os.path.abspath(__file__))


class TwoRacks(Topo):
    """Two leaves with workers, and a spine between them."""

    def build(self, workers=2):
        """Add switches, hosts and links. Each rack has `workers` hosts."""
        spine = self.addSwitch("spine", device_id=0)
        for rack in (1, 2):
            leaf = self.addSwitch(f"leaf{rack}", device_id=rack)
            self.addLink(leaf, spine, port1=UPLINK, port2=rack)
            for place in range(workers):
                number = (rack - 1) * workers + place + 1
                host = self.addHost(f"h{number}", ip=f"10.0.0.{number}/24", mac=f"02:00:00:00:00:{number:02x}")
                self.addLink(host, leaf, port1=0, port2=place + 1)


def describe(net, program):
    """Return the network for hopsum_labs.network, in the form of `hopsum topology run --program`."""
    switches, hosts = {}, {}
    for switch in net.switches:
        ports = {}
        for number, interface in switch.intfs.items():
            if interface.link:
                ends = interface.link.intf1, interface.link.intf2
                ports[number] = next(end.node.name for end in ends if end is not interface)
        switches[switch.name] = {"p4runtime": switch.p4runtime, "device_id": switch.device_id, "ports": ports}
    for switch, each in switches.items():
        for number, name in each["ports"].items():
            if name not in switches:
                hosts[name] = {"ip": net[name].IP(), "mac": net[name].MAC(), "switch": switch, "port": number}
    described = {"program": program, "p4info": program.replace(".json", ".p4info.txtpb")}
    return {**described, "driver": net.switches[0].driver, "switches": switches, "hosts": hosts}


def run_workers(net, worker, environment):
    """Run the worker on every host, all at once, and print their output. Return the largest exit status."""
    running = []
    for rank, host in enumerate(net.hosts):
        words = [hopsum_python(), "-m", "hopsum_labs.network", "worker", worker, "--interface", host.defaultIntf().name]
        ranks = {"RANK": str(rank), "WORLD_SIZE": str(len(net.hosts))}
        child = host.popen(words, env={**environment, **ranks}, stderr=subprocess.STDOUT, universal_newlines=True)
        running.append(child)
    for child in running:
        print(child.communicate()[0], end="", flush=True)
    return max(child.returncode for child in running)


def main():
    """Run the network, the control plane, the workers and the prompt. Return the workers' exit status."""
    parser = argparse.ArgumentParser(description="two racks in Mininet, with a P4 program on every switch")
    parser.add_argument("--switch", choices=["embedded", "bmv2"], default="embedded", help="default: embedded")
    parser.add_argument("--program", default=os.path.join(HERE, "aggregate.json"), help="default: aggregate.json")
    parser.add_argument("--workers", type=int, default=2, help="workers in each rack (default: 2)")
    parser.add_argument("--worker", metavar="FILE", help="a worker.py of level 1, to run on every host")
    parser.add_argument("--no-prompt", action="store_true", help="end after the workers")
    options = parser.parse_args()
    if not os.path.exists(options.program):
        parser.error(f"{options.program} is not there: compile aggregate.p4 as the handout says")
    setLogLevel("warning")
    # Otherwise Mininet raises limits of the whole machine.
    Mininet.inited = True
    kind = EmbeddedP4Switch if options.switch == "embedded" else Bmv2P4Switch
    net = Mininet(topo=TwoRacks(options.workers), switch=kind, controller=None)
    status = 0
    try:
        net.start()
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "HOPSUM_NETWORK": os.path.join(folder, "network.json")}
            with open(environment["HOPSUM_NETWORK"], "w", encoding="utf-8") as file:
                json.dump(describe(net, options.program), file)
            words = [hopsum_python(), "-m", "hopsum_labs.network", "control", "racks"]
            subprocess.run(words, env=environment, check=True)
            if options.worker:
                status = run_workers(net, os.path.abspath(options.worker), environment)
            if not options.no_prompt:
                # What the prompt answers.
                setLogLevel("output")
                CLI(net)
    finally:
        net.stop()
    return status


if __name__ == "__main__":
    sys.exit(main())
