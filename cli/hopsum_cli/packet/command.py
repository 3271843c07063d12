# SPDX-License-Identifier: Apache-2.0
"""The words after `hopsum packet`."""

from __future__ import annotations

import argparse
import ipaddress
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hopsum_cli.packet import report
from hopsum_cli.packet.capture import Capture, in_order_of_time, read_capture
from hopsum_cli.packet.exchange import Address, AnswerLimits, over_interface, over_udp
from hopsum_cli.packet.fields import PacketError, parse_arguments
from hopsum_cli.packet.rounds import Generation, Round, generations_of
from hopsum_wire import HOPSUM_UDP_PORT

_SEND_EPILOG = """\
examples:
  hopsum packet send kind=PROBE worker=0 slot=3 generation=7 --to 127.0.0.1:24677 --from 127.0.0.1:6000
  hopsum packet send kind=UPDATE op=ADD32 generation=7 slot=3 lanes=1,2,3 --to 127.0.0.1:24677 --from 127.0.0.1:6000
  hopsum packet send kind=PROBE generation=7 dst_ip=10.0.0.254 --interface eth0

A switch takes a worker's packets from the worker's own address and UDP port only.
"""
_SHOWN_PORTS = 5


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum packet", description="Send one packet by hand, or list the rounds in a capture."
    )
    words = parser.add_subparsers(required=True, metavar="WORD")
    _add_send(words)
    _add_decode(words)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return 1 if the packet cannot be sent, or a file not be read or without a hopsum packet."""
    options = build_parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except PacketError as error:
        print(f"hopsum packet: {error}", file=sys.stderr)
        return 1
    return status


def parse_address(text: str) -> Address:
    """Return IPv4 address and UDP port of IP:PORT. Raises ArgumentTypeError."""
    host, _, port = text.rpartition(":")
    try:
        number = int(port)
        if not 0 <= number < 1 << 16:
            raise ValueError
        return str(ipaddress.IPv4Address(host)), number
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not IP:PORT, as in 127.0.0.1:24677") from None


def _add_send(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "send one packet, and show it and the answers as scapy layers"
    word = words.add_parser(
        "send",
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=_SEND_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    word.add_argument(
        "fields",
        nargs="*",
        metavar="KEY=VALUE",
        help="fields of the hopsum header by name, numbers or names of kinds, ops and flags; lanes=1,2,... or"
        " codes=1,2,... (zeros follow) or payload=HEX; with --interface also src_mac, dst_mac, src_ip, dst_ip,"
        " src_port, dst_port",
    )
    way = word.add_mutually_exclusive_group(required=True)
    way.add_argument("--to", type=parse_address, metavar="IP:PORT", help="send a UDP datagram to this address")
    way.add_argument("--interface", metavar="NAME", help="network interface to send a whole frame on; needs root")
    word.add_argument(
        "--from",
        dest="source",
        type=parse_address,
        default=("0.0.0.0", 0),
        metavar="IP:PORT",
        help="address to send from, with --to (default: any free UDP port)",
    )
    word.add_argument(
        "--wait",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="collect answers for this long (default %(default)s)",
    )
    word.add_argument(
        "--answers", type=_positive, metavar="N", help="stop after so many answers (default: only by --wait)"
    )
    word.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    word.set_defaults(run=_send)


def _add_decode(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "list captures of one switch by generation, slot and round"
    word = words.add_parser("decode", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    word.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="pcap or pcapng files; several are put in order of time"
    )
    word.add_argument(
        "--udp-port",
        type=int,
        default=HOPSUM_UDP_PORT,
        metavar="PORT",
        help="UDP port of the service (default %(default)s)",
    )
    word.add_argument("--generation", type=int, metavar="N", help="show this generation only")
    word.add_argument("--slot", type=int, metavar="N", help="show this slot only")
    word.add_argument(
        "--unusual",
        action="store_true",
        help="show only rounds in which something was missing, came twice or was asked for",
    )
    word.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    word.set_defaults(run=_decode)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return seconds


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of answers, 1 or more")
    return int(text)


def _send(options: argparse.Namespace) -> int:
    arguments, patience = parse_arguments(options.fields), AnswerLimits(options.wait, options.answers)
    if options.to is not None:
        exchange = over_udp(arguments, options.to, options.source, patience)
    else:
        exchange = over_interface(arguments, options.interface, patience)
    if options.json:
        print(json.dumps(report.exchange_values(exchange)))
    else:
        report.print_exchange(exchange)
    return 0


def _decode(options: argparse.Namespace) -> int:
    captures = [read_capture(path, options.udp_port) for path in options.files]
    generations = [
        (generation, _chosen(generation, options))
        for generation in generations_of(in_order_of_time(captures))
        if options.generation in (None, generation.number)
    ]
    if options.json:
        print(json.dumps(report.capture_values(captures, generations)))
    else:
        report.print_captures(captures, generations)
    if not any(capture.packets for capture in captures):
        print(f"hopsum packet: {_nothing_found(captures, options.udp_port)}", file=sys.stderr)
        return 1
    return 0


def _chosen(generation: Generation, options: argparse.Namespace) -> list[Round]:
    return [
        found
        for found in generation.rounds.values()
        if options.slot in (None, found.slot) and not (options.unusual and found.is_plain(generation.workers))
    ]


def _nothing_found(captures: Sequence[Capture], udp_port: int) -> str:
    ports: Counter[int] = sum((capture.udp_ports for capture in captures), Counter())
    seen = ", ".join(f"{port} ({count})" for port, count in ports.most_common(_SHOWN_PORTS))
    said = f"no hopsum packet to or from UDP port {udp_port}"
    return f"{said}; datagrams went to UDP ports {seen}: --udp-port names another" if seen else said
