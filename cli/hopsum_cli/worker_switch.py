# SPDX-License-Identifier: Apache-2.0
"""`hopsum worker-switch`: an embedded switch beside a worker, which registers with the controller by itself."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from hopsum.errors import HopsumError
from hopsum.hosts.host_address import address_towards
from hopsum.hosts.registered_switch import SwitchPlace, run_worker_switch
from hopsum.rpc.channel import ControllerAddress
from hopsum_cli.context import add_operator_arguments
from hopsum_cli.operator import address_of
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.token_files import read_token
from hopsum_topologies.netns import die_with_parent
from hopsum_wire import MAX_SLOTS
from hopsum_wire.control import UNIX
from hopsum_wire.process_end import bound_end

MAX_PORT = 0xFFFF
_EPILOG = """\
One on each host of a job that is made with `hopsum job create --shards hosts`: the host's switch sums its share of
every vector. It says `registered with ADDRESS as NAME` when the controller has it, registers again at a controller that
has forgotten it, and deregisters on SIGTERM and SIGINT. It ends with an error when the controller refuses it.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum worker-switch",
        description="Run an embedded switch beside a worker; it registers with the controller by itself.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_operator_arguments(parser, administrator=False)
    parser.add_argument(
        "--switch-token-file",
        type=Path,
        required=True,
        metavar="PATH",
        help="file with the token for switches, the controller's switch_token_file",
    )
    parser.add_argument(
        "--switch-name",
        metavar="NAME",
        default=os.uname().nodename.partition(".")[0],
        help="name of the switch (default: the name of this host)",
    )
    parser.add_argument(
        "--ip",
        default="",
        metavar="ADDRESS",
        help="IPv4 address of this host for workers and controller (default: that of the interface which "
        "GLOO_SOCKET_IFNAME names, or of the way to the controller)",
    )
    parser.add_argument(
        "--udp-port", type=int, default=0, metavar="PORT", help="UDP port for workers (default: any free one)"
    )
    parser.add_argument(
        "--p4runtime-port",
        type=int,
        default=0,
        metavar="PORT",
        help="TCP port for the controller (default: any free one)",
    )
    parser.add_argument(
        "--slots",
        type=int,
        default=MAX_SLOTS,
        metavar="N",
        help="slots that the controller may use (default %(default)s)",
    )
    parser.add_argument(
        "--die-with-parent",
        type=int,
        metavar="PID",
        help="stop when the thread of process PID that started this process ends, also if it has already",
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run a worker's switch until SIGTERM or SIGINT. Return the exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    for name, port in (("--udp-port", options.udp_port), ("--p4runtime-port", options.p4runtime_port)):
        if not 0 <= port <= MAX_PORT:
            parser.error(f"{name} {port}: ports are 1 to {MAX_PORT}, or 0 for any free one")
    if options.die_with_parent is not None:
        die_with_parent(options.die_with_parent)
    # The switch and its registration run in this process: a signal ends both, deregistration first.
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        bound_end()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        controller = address_of(options)
        token = read_token(options.switch_token_file, "switch_token_file")
        # The address is found before the switch starts: the switch binds it, and the controller is told it.
        place = SwitchPlace(_own_address(controller, options.ip), options.p4runtime_port, options.udp_port)
        run_worker_switch(controller, token, options.switch_name, place, options.slots, stop=stop, say=_say)
    except (HopsumError, ControlPlaneError, OSError) as error:
        print(f"hopsum worker-switch: error: {error}", file=sys.stderr)
        return 1
    return 0


def _own_address(controller: ControllerAddress, ip: str) -> str:
    """Return the address for workers and controller. Raises ConfigError."""
    # A controller at a unix socket is on this host: workers on it reach the switch by loopback.
    host = "127.0.0.1" if controller.target.startswith(UNIX) else controller.target.rpartition(":")[0].strip("[]")
    return address_towards(host, "the controller", ip, os.environ)


def _say(line: str) -> None:
    print(line, flush=True)
