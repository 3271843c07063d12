# SPDX-License-Identifier: Apache-2.0
"""A network whose switches run a user's program: push it, let the control command write entries, run the workers.

The control command and the workers read the network from the JSON file that HOPSUM_NETWORK names::

    {"program": "X.json", "p4info": "X.p4info.txtpb", "driver": "native or bmv2",
     "switches": {"s1": {"p4runtime": "HOST:PORT or unix:PATH", "device_id": 0, "ports": {"1": "h1", ...}}, ...},
     "hosts": {"h1": {"ip": "10.0.0.1", "mac": "02:00:00:00:02:00", "switch": "s1", "port": 1}, ...}}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from hopsum_cli.topology.worker_commands import commands_for, print_events
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.devices.drivers import open_device
from hopsum_topologies.commands import HostTask, run_in_namespaces
from hopsum_topologies.description import JobPlan, Topology
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.process import launcher_command
from hopsum_topologies.running_network import RunningNetwork

PUSH_ELECTION_ID: Final = (0, 1)
"""The lowest election id, so that a control command with any other one takes the switches over."""


def run_program(
    network: RunningNetwork, program: tuple[Path, Path], control: Sequence[str], command: Sequence[str], folder: Path
) -> int:
    """Push the program to all switches, run the control command, then the workers. Return the worst exit status.

    Writes the network's description to network.json in `folder`. An empty `control` or `command` is not run. The
    output of workers is printed with the rank in front. Call it in the network's home.

    Raises TopologyError: the control command failed. ControlPlaneError: a switch refuses the program.
    """
    pipeline = PipelineConfig.load(*program)
    for switch, address in network.addresses.items():
        device_id = network.topology.device_id(switch)
        with open_device(network.driver, address, device_id, election_id=PUSH_ELECTION_ID) as device:
            device.set_pipeline_config(pipeline)
    described = folder / "network.json"
    described.write_text(json.dumps(describe(network, program), indent=2))
    environment = {"HOPSUM_NETWORK": str(described)}
    if control:
        _run_control(control, network.home.name, environment)
    if not command:
        return 0
    with closing(run_in_namespaces(_tasks(network.topology, command, environment), network.hosts)) as events:
        return print_events(events)


def describe(network: RunningNetwork, program: tuple[Path, Path]) -> dict[str, Any]:
    """Return the JSON object that control command and workers read, as the module's docstring has it."""
    topology = network.topology
    switches = {
        switch: {
            "p4runtime": network.addresses[switch],
            "device_id": topology.device_id(switch),
            "ports": {topology.port(switch, link): link.other(switch) for link in topology.links_of(switch)},
        }
        for switch in topology.switches
    }
    hosts = {}
    for host in topology.hosts:
        switch = topology.switch_of(host)
        port = topology.port(switch, topology.link_between(host, switch))
        hosts[host] = {"ip": topology.ip(host), "mac": topology.mac(host), "switch": switch, "port": port}
    json_file, p4info = (str(path.absolute()) for path in program)
    described = {"program": json_file, "p4info": p4info, "driver": network.driver}
    return {**described, "switches": switches, "hosts": hosts}


def _run_control(command: Sequence[str], home: str, environment: Mapping[str, str]) -> None:
    """Run the control command where the switches' servers are, with our own terminal."""
    arguments, variables = launcher_command(command, home, {**os.environ, **environment})
    # The control command writes to our terminal directly: what we have printed comes first.
    sys.stdout.flush()
    status = subprocess.run(arguments, env=variables, check=False).returncode
    if status:
        raise TopologyError(f"the control command {' '.join(command)!r} ended with {status}; no worker was started")


def _tasks(topology: Topology, command: Sequence[str], environment: Mapping[str, str]) -> list[HostTask]:
    """Return a command for every worker of every job, or, without jobs, for every host."""
    named = topology if topology.jobs else replace(topology, jobs=(JobPlan("hosts", topology.hosts),))
    tasks = commands_for(named, command, {}, "")
    return [task._replace(environment={**task.environment, **environment, "HOPSUM_HOST": task.host}) for task in tasks]
