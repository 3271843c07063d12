# SPDX-License-Identifier: Apache-2.0
"""The command line of the switch process."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypeVar

from hopsum_base.arguments import existing_file
from hopsum_base.log_writer import LogWriter
from hopsum_base.process_end import bound_end, die_with_parent
from hopsum_base.service_manager import ServiceManager
from hopsum_base.shown import escape_controls
from hopsum_base.tls_server import TlsServerFiles
from hopsum_base.units import whole
from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.grpc_address import ServerError, ServerTls, default_address
from hopsum_switch.observe.metrics import MetricsError, MetricsServer
from hopsum_switch.observe.trace import Trace, trace_to
from hopsum_switch.p4runtime.status import P4RuntimeError
from hopsum_switch.ports.interface import InterfacePort
from hopsum_switch.ports.port import PortError, check_port_number
from hopsum_switch.ports.udp import UdpAddress, UdpPort, parse_udp_address
from hopsum_switch.ports.unix import UnixPort
from hopsum_switch.server import DEFAULT_DEVICE_ID, SwitchServer
from hopsum_switch.state.randomness import MASK

T = TypeVar("T")
MAX_TCP_PORT = 65535
# Three signs of life in each period of the watchdog: a late one does no harm.
_BEATS_PER_WATCHDOG = 3
_log = logging.getLogger(__name__)

_EPILOG = """\
A UDP port: peers send datagrams to HOST:PORT; each becomes an Ethernet/IPv4/UDP frame from the peer's
address to HOST:PORT (or to the as= address). Frames to send are stripped and sent to their destination address.
An AF_UNIX port: one datagram is one frame; the switch's end is PATH, the other end PATH.peer.
An interface port: every frame of the interface, both ways; frames with pending segmentation offload are dropped.
Without --program the switch waits for a P4Runtime client to push one.
When it serves, it prints one line on stdout: ready grpc=ADDRESS device_id=N
and then one line for each UDP port with the number 0: udp PORT=HOST:PORT
SIGTERM and SIGINT end it in order, with status 0; a second one ends it at once. SIGHUP reloads the files of TLS.
"""


class UdpArgument(NamedTuple):
    """The parts of the option --udp PORT=HOST:PORT[,as=IP:UDPPORT][,gso=off]. Without as=, `shown_as` is None."""

    number: int
    address: UdpAddress
    shown_as: UdpAddress | None
    joined: bool = True
    """False: one system call for each datagram (gso=off)."""


def main(argv: Sequence[str] | None = None, *, prog: str = "hopsum switch") -> int:
    """Run a switch until SIGTERM or SIGINT. Return the exit status: 0, or 1 after an error on stderr.

    Sets the signal handlers and the logging of the process, and prints the `ready` line. Wrong arguments raise
    SystemExit(2). `argv`: the arguments without the program's name. None: those of this process.
    """
    parser = build_parser(prog)
    arguments = parser.parse_args(argv)
    if (arguments.program is None) != (arguments.p4info is None):
        parser.error("--program and --p4info go together: p4c-bm2-ss writes both from one P4 source")
    if arguments.backend == Backend.NATIVE.value and arguments.trace:
        parser.error("native code reports no events: for a trace leave --backend native out")
    if (arguments.tls_certificate is None) != (arguments.tls_key is None):
        parser.error("--tls-certificate and --tls-key go together")
    if arguments.tls_client_ca is not None and arguments.tls_certificate is None:
        parser.error("--tls-client-ca needs --tls-certificate and --tls-key")
    if arguments.tls_client_names is not None and arguments.tls_client_ca is None:
        parser.error("--tls-client-names needs --tls-client-ca: names are those in clients' certificates")
    if arguments.trace_values and not arguments.trace:
        parser.error("--trace-values adds to a trace: give --trace too")
    logging.basicConfig(handlers=[LogWriter()], level=logging.WARNING, format="%(name)s: %(message)s")
    if arguments.die_with_parent is not None:
        die_with_parent(arguments.die_with_parent, signal.SIGTERM)
    try:
        _serve(arguments)
    except (ServerError, MetricsError, PortError, P4RuntimeError, OSError, UnicodeDecodeError) as error:
        # Names in a program's files are written as they are.
        print(f"{prog}: error: {escape_controls(str(error))}", file=sys.stderr)
        return 1
    return 0


def parse_udp_port(text: str) -> UdpArgument:
    """Read PORT=HOST:PORT[,as=IP:UDPPORT][,gso=off]. Raises PortError: the message shows what is wrong."""
    number, rest = _split_port(text, "--udp 1=127.0.0.1:0,as=10.0.0.1:24677")
    address, *options = rest.split(",")
    shown_as, joined = None, True
    for option in options:
        if option.startswith("as="):
            shown_as = parse_udp_address(option[3:])
        elif option in ("gso=auto", "gso=off"):
            joined = option == "gso=auto"
        else:
            raise PortError(f"{text!r}: {option!r} is unknown: the options are as=IP:UDPPORT and gso=off")
    return UdpArgument(number, parse_udp_address(address), shown_as, joined)


def parse_unix_port(text: str) -> tuple[int, str]:
    """Read PORT=PATH. Raises PortError: the message shows what is wrong."""
    return _split_port(text, "--unix 1=/tmp/port1")


def parse_metrics_address(text: str) -> tuple[str, int]:
    """Read [HOST:]PORT, by default on loopback. Raises PortError. The message shows the fault."""
    host, colon, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or (colon and not host) or int(port) > MAX_TCP_PORT:
        raise PortError(f"{text!r} is not HOST:PORT or PORT, as in --metrics 127.0.0.1:9100")
    return host or "127.0.0.1", int(port)


def parse_interface_port(text: str) -> tuple[int, str]:
    """Read PORT@NAME, as simple_switch does. Raises PortError: the message shows what is wrong."""
    number, at, name = text.partition("@")
    if not at or not name:
        raise PortError(f"{text!r} is not PORT@NAME, as in -i 1@veth1")
    return _port_number(number), name


def _serve(arguments: argparse.Namespace) -> None:
    with ExitStack() as stack:
        trace = None
        if arguments.trace is not None:
            trace = stack.enter_context(trace_to(arguments.trace, values=arguments.trace_values))
        _serve_observed(arguments, trace, stack)


def _serve_observed(arguments: argparse.Namespace, trace: Trace | None, stack: ExitStack) -> None:
    server = SwitchServer(
        arguments.grpc,
        device_id=arguments.device_id,
        cpu_port=arguments.cpu_port,
        make_engine=engine_maker(Backend(arguments.backend), seed=arguments.seed, observer=trace),
        capture_folder=arguments.pcap,
        tls=_tls(arguments),
    )

    def stop(signum: int, frame: FrameType | None) -> None:
        bound_end()
        server.stop()

    # Before the switch serves, the kernel's default action suffices, and also ends a compilation.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, lambda *_: _read_again(server.tls))
    # Python runs `stop` in this thread, which may be about to sleep in the packet loop.
    signal.set_wakeup_fd(server.dataplane.wake_fileno(), warn_on_full_buffer=False)
    found: list[str] = []
    try:
        for udp in arguments.udp:
            bound = UdpPort.bind(udp.number, udp.address, udp.shown_as, joined=udp.joined)
            server.dataplane.bind(udp.number, bound)
            if udp.address.port == 0:
                found.append(f"udp {udp.number}={bound.address}")
        for number, path in arguments.unix:
            server.dataplane.bind(number, UnixPort.bind(path))
        for number, name in arguments.interface:
            server.dataplane.bind(number, InterfacePort(name))
        if arguments.program is not None:
            server.load(arguments.p4info.read_text(), arguments.program.read_bytes())
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, stop)
        server.open()
        if arguments.metrics is not None:
            metrics = stack.enter_context(MetricsServer(server.dataplane, *arguments.metrics))
            print(f"metrics {metrics.url}", flush=True)
        print(f"ready grpc={server.grpc_address} device_id={server.device_id}", *found, sep="\n", flush=True)
        stack.enter_context(_told(ServiceManager(), server))
        server.run()
    finally:
        signal.set_wakeup_fd(-1)
        server.close()


@contextmanager
def _told(manager: ServiceManager, server: SwitchServer) -> Iterator[None]:
    """Notify the service manager during the block: ready, alive while the packet loop runs, stopping."""
    over = threading.Event()

    def watch(watchdog_s: float) -> None:
        while not over.wait(watchdog_s / _BEATS_PER_WATCHDOG):
            if server.dataplane.responds_within(watchdog_s / _BEATS_PER_WATCHDOG):
                manager.alive()

    manager.ready(f"serves P4Runtime at {server.grpc_address}")
    if manager.watchdog_s is not None:
        threading.Thread(target=watch, args=(manager.watchdog_s,), name="watchdog", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        manager.stopping()


def _read_again(tls: ServerTls | None) -> None:
    """Reload the files of TLS at a SIGHUP. Without TLS only log: an unhandled SIGHUP would end the process."""
    if tls is None:
        _log.warning("SIGHUP: the switch has nothing to read again, and continues")
        return
    try:
        tls.reload()
    except ServerError as error:
        _log.error("SIGHUP: %s; nothing has changed", error)
    else:
        _log.warning("SIGHUP: read certificates, key and names of clients again")


def _tls(arguments: argparse.Namespace) -> ServerTls | None:
    if arguments.tls_certificate is None:
        return None
    files = TlsServerFiles(arguments.tls_certificate, arguments.tls_key, arguments.tls_client_ca)
    return ServerTls(files, arguments.tls_client_names)


def build_parser(prog: str = "hopsum switch") -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Run a P4 program compiled by p4c-bm2-ss (v1model) as a switch with P4Runtime.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_file = partial(parser.add_argument, type=existing_file)
    add_file("--program", metavar="X.json", help="compiled program, the JSON of p4c-bm2-ss")
    add_file("--p4info", metavar="X.p4info.txtpb", help="P4Info of the program, in text format")
    parser.add_argument(
        "--backend",
        choices=[backend.value for backend in Backend],
        default=Backend.AUTO.value,
        help="native compiles the program for this processor; auto interprets other programs, with a warning"
        f" (default {Backend.AUTO.value})",
    )
    parser.add_argument(
        "--seed",
        type=_checked(_seed),
        default=0,
        metavar="N",
        help=f"seed of random(), 0..{MASK} (default 0); equal seeds give equal numbers",
    )
    parser.add_argument(
        "--grpc",
        default=default_address(),
        metavar="ADDRESS",
        help="address of P4Runtime and management: unix:PATH, for this user alone, or HOST:PORT, for all clients that "
        "reach it; PORT 0 is any free one (default %(default)s)",
    )
    for name, what in (
        ("certificate", "certificate of P4Runtime and management (PEM); with --tls-key: TLS"),
        ("key", "key of the certificate, without a password, which no other user can read"),
        ("client-ca", "certificate authority of clients, which need a certificate then"),
        ("client-names", "file with common names of certificates, one a line: no other client may call"),
    ):
        parser.add_argument(f"--tls-{name}", type=Path, metavar="FILE", help=what)
    parser.add_argument(
        "--device-id",
        type=whole(0, MASK),
        default=DEFAULT_DEVICE_ID,
        metavar="N",
        help=f"P4Runtime device id (default {DEFAULT_DEVICE_ID})",
    )
    parser.add_argument(
        "--cpu-port",
        type=port_number,
        metavar="N",
        help="CPU port: its frames are packet-ins, and packet-outs enter there",
    )
    udp = "PORT=HOST:PORT[,as=IP:UDPPORT][,gso=off]"
    for options, parse, form, what in (
        (["--udp"], _checked(parse_udp_port), udp, "a switch port over UDP"),
        (["--unix"], _checked(parse_unix_port), "PORT=PATH", "a switch port over AF_UNIX datagrams"),
        (
            ["-i", "--interface"],
            _checked(parse_interface_port),
            "PORT@NAME",
            "network interface of a switch port, needs root",
        ),
    ):
        parser.add_argument(
            *options, type=parse, action="append", default=[], metavar=form, help=f"{what}; may be repeated"
        )
    parser.add_argument(
        "--metrics",
        type=_checked(parse_metrics_address),
        metavar="[HOST:]PORT",
        help="serve Prometheus metrics (without HOST on loopback only); prints `metrics URL` before `ready`",
    )
    parser.add_argument(
        "--pcap",
        type=Path,
        metavar="DIR",
        help="folder for every port's frames, both directions, in portN.pcapng for Wireshark and scapy",
    )
    parser.add_argument(
        "--trace",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write every packet's events to FILE (none or -: stderr); always interpreted",
    )
    parser.add_argument(
        "--trace-values",
        action="store_true",
        help="every assignment and the values in conditions as well, in the trace of --trace",
    )
    parser.add_argument(
        "--die-with-parent",
        type=whole(0, (1 << 31) - 1),
        metavar="PID",
        help="stop when the thread of process PID that started this process ends, also if it has already",
    )
    return parser


def _split_port(text: str, example: str) -> tuple[int, str]:
    number, equals, rest = text.partition("=")
    if not equals or not rest:
        raise PortError(f"{text!r} does not start with PORT=, as in {example}")
    return _port_number(number), rest


def _port_number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise PortError(f"{text!r} is not a switch port number")
    return check_port_number(int(text))


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > MASK:
        raise PortError(f"{text!r} is not a seed: 0..{MASK}")
    return int(text)


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make argparse show the parser's own message."""

    def parse_argument(text: str) -> T:
        try:
            return parse(text)
        except PortError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_argument


port_number = _checked(_port_number)
"""The parser of a switch port's number, for argparse. It raises ArgumentTypeError outside 0..510."""
