# SPDX-License-Identifier: Apache-2.0
"""The course on a network with interfaces: in namespaces or Mininet, with the embedded switch or bmv2. Needs root.

    hopsum topology run star --target mininet --program my-switch/aggregate.json \\
        --control "python3 -m hopsum_labs.network control ethernet" -- \\
        python3 -m hopsum_labs.network worker my-switch/worker.py

`control` writes the entries of the level's handout to the network's switches. `worker` calls the `all_reduce` of a
worker.py on the interface of its host, and checks the sum.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scapy.config import conf

from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.devices.p4runtime_device import P4RuntimeDevice
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_labs.control_plane import ControlPlane, ProgramError
from hopsum_labs.levels import LEVELS
from hopsum_labs.packets import total
from hopsum_labs.rule_checks import Failed, LabError
from hopsum_labs.worker_process import load_worker
from hopsum_topologies.description import HOST_INTERFACE

VALUES = 20
"""Length of the vectors: two chunks are full, the third one is not."""


class InterfacePort:
    """A port for `all_reduce` of `worker.py`: scapy packets through a network interface. Needs root."""

    def __init__(self, interface: str) -> None:
        self._socket = conf.L2socket(iface=interface)

    def send(self, packet: Any) -> None:
        """Send a packet to the switch."""
        self._socket.send(packet)

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the next packet, or None when no packet came for `timeout_s` seconds. Without `timeout_s`, wait."""
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if give_up is None else max(0.0, give_up - time.monotonic())
            if not select.select([self._socket], [], [], left)[0]:
                return None
            # select wakes for our own frames too, for which scapy returns None: then the wait continues.
            packet = self._socket.recv()
            if packet is not None:
                return packet


def control(word: str) -> None:
    """Load the program on the switches of the network, and write the entries of level `word`.

    The environment variable HOPSUM_NETWORK names the description of the network. Raises LabError, ProgramError,
    ControlPlaneError.
    """
    network = _network()
    program, p4info = Path(network["program"]), Path(network["p4info"])
    with ExitStack() as stack:
        planes = {}
        for name, switch in network["switches"].items():
            opened = open_device(network["driver"], switch["p4runtime"], switch["device_id"])
            assert isinstance(opened, P4RuntimeDevice), "the course's switches speak P4Runtime"
            planes[name] = ControlPlane(stack.enter_context(opened), program, p4info)
        LEVELS[word].set_up_network(planes, network)


def work(path: Path, interface: str) -> None:
    """Sum a vector by the `all_reduce` of the worker.py at `path`, check the sum and print a line.

    Rank and number of workers are in the environment, RANK and WORLD_SIZE. Raises Failed: the worker cannot be
    imported, or the sum is wrong.
    """
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Every worker computes all vectors, and so knows the sum without a second network.
    vectors = [[1000 * (each + 1) + place for place in range(VALUES)] for each in range(workers)]
    all_reduce: Any = load_worker(path)
    sums = list(all_reduce(InterfacePort(interface), rank, workers, vectors[rank]))
    if sums != total(vectors):
        raise Failed(f"rank {rank}: the sum is {total(vectors)}; all_reduce returned {sums}")
    print(f"rank {rank} of {workers}: {VALUES} sums are right: {sums[0]}, {sums[1]}, ... {sums[-1]}")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(prog="python -m hopsum_labs.network", description="The course on interfaces.")
    words = parser.add_subparsers(required=True, metavar="WORD")
    plane = words.add_parser("control", help="write the entries of a level on the network's switches")
    plane.add_argument("level", choices=list(LEVELS), metavar="LEVEL", help=f"one of {', '.join(LEVELS)}")
    plane.set_defaults(run=lambda options: control(options.level))
    worker = words.add_parser("worker", help="run all_reduce of a worker.py on this host's interface")
    worker.add_argument("worker", type=Path, metavar="FILE", help="the level's worker.py")
    worker.add_argument("--interface", default=HOST_INTERFACE, help="the host's interface (default %(default)s)")
    worker.set_defaults(run=lambda options: work(options.worker, options.interface))
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one of the two commands. Return 0, or 1 after an error, whose message is printed on stderr."""
    options = build_parser().parse_args(arguments)
    try:
        options.run(options)
    except (LabError, ProgramError, ControlPlaneError, Failed) as error:
        print(f"hopsum_labs.network: {error}", file=sys.stderr)
        return 1
    return 0


def _network() -> Any:
    """Read the description of `hopsum topology run --program`. Raises LabError where it does not run this command."""
    if "HOPSUM_NETWORK" not in os.environ:
        raise LabError("HOPSUM_NETWORK is not set: `hopsum topology run --program` sets it for its commands")
    return json.loads(Path(os.environ["HOPSUM_NETWORK"]).read_text())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
