# SPDX-License-Identifier: Apache-2.0
"""The words after `hopsum packet`: send and decode, as text and as JSON."""

from __future__ import annotations

import argparse
import ipaddress
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from hopsum_cli.packet.captured_packets import Capture, CapturedPacket, read_capture
from hopsum_cli.packet.packet_exchange import (
    Address,
    AnswerLimits,
    PacketError,
    PacketExchange,
    header_values,
    over_interface,
    over_udp,
    parse_arguments,
    text_of,
    values_of,
)
from hopsum_wire import HOPSUM_UDP_PORT
from hopsum_wire.scapy import Hopsum

NO_ANSWER = """\
no answer. A switch answers an UPDATE when its round is complete, a PROBE at once, and a packet that it drops never.
The counter `drops` of the switch has the reason: hopsum switch-ctl snapshot --name HopsumIngress.drops"""


def print_exchange(exchange: PacketExchange) -> None:
    """Print the packet that was sent and its answers as layers."""
    print(f"sent, {exchange.way}\n{text_of(exchange.sent)}")
    for number, answer in enumerate(exchange.answers, 1):
        print(f"\nanswer {number}, after {answer.after_s * 1e3:.1f} ms\n{text_of(answer.packet)}")
    if not exchange.answers:
        print(f"\n{NO_ANSWER}")


def exchange_values(exchange: PacketExchange) -> dict[str, Any]:
    """Return the same as JSON values."""
    answers = [{"after_s": answer.after_s, **values_of(answer.packet)} for answer in exchange.answers]
    return {"way": exchange.way, "sent": values_of(exchange.sent), "answers": answers}


def print_captures(captures: Sequence[Capture], packets: Sequence[CapturedPacket]) -> None:
    """Print the counts of each file, and a line for each of these packets. Times count from the first one."""
    for capture in captures:
        parts = [f"{capture.path}: {capture.frames} frames, {len(capture.packets)} hopsum packets"]
        for what, counts in (("foreign", capture.foreign), ("malformed", capture.malformed)):
            if counts:
                parts.append(f"{counts.total()} {what} ({_counts(counts)})")
        print(", ".join(parts))
    for packet in packets:
        header = packet.header
        # The layer's own summary, so that `decode`, `send` and scapy name a packet alike.
        summary = Hopsum(header.pack()).mysummary()
        more = [f"flags {'+'.join(header_values(header)['flags'])}"] if header.flags else []
        more += [f"held {header.held}"] if header.held else []
        more += [f"contributors {_ranks(header.contributors)}"] if header.contributors else []
        # Counted from the first packet shown: times since 1970 hide differences of microseconds.
        after_s = packet.time_s - packets[0].time_s
        print(f"{after_s:.6f}  {packet.source} > {packet.destination}  {' '.join([summary, *more])}")


def capture_values(captures: Sequence[Capture], packets: Sequence[CapturedPacket]) -> dict[str, Any]:
    """Return files and these packets as JSON values."""
    files = [
        {
            "file": str(capture.path),
            "frames": capture.frames,
            "hopsum": len(capture.packets),
            "foreign": dict(capture.foreign),
            "malformed": dict(capture.malformed),
        }
        for capture in captures
    ]
    shown = [
        {
            "time_s": packet.time_s,
            "source": packet.source,
            "destination": packet.destination,
            **header_values(packet.header),
        }
        for packet in packets
    ]
    return {"files": files, "packets": shown}


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _ranks(bitmap: int) -> str:
    return ",".join(str(rank) for rank in range(bitmap.bit_length()) if bitmap >> rank & 1)


_SEND_EPILOG = """\
examples:
  hopsum packet send kind=PROBE worker=0 slot=3 generation=7 --to 127.0.0.1:24677 --from 127.0.0.1:6000
  hopsum packet send kind=UPDATE op=ADD32 generation=7 slot=3 lanes=1,2,3 --to 127.0.0.1:24677 --from 127.0.0.1:6000
  hopsum packet send kind=PROBE generation=7 dst_ip=10.0.0.254 --interface eth0

A switch takes a worker's packets from the worker's own address and UDP port only.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum packet", description="Send one packet by hand, or list the packets of a capture."
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
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="collect answers for this long (default %(default)s)",
    )
    word.add_argument("--answers", type=int, metavar="N", help="stop after so many answers (default: only by --wait)")
    word.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    word.set_defaults(run=_send, parser=word)


def _add_decode(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "list the hopsum packets of captures in order of time"
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
    word.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    word.set_defaults(run=_decode)


def _send(options: argparse.Namespace) -> int:
    if not 0 <= options.wait < inf:
        options.parser.error(f"--wait {options.wait:g}: it is a number of seconds, 0 or more")
    if options.answers is not None and options.answers < 1:
        options.parser.error(f"--answers {options.answers}: it is a number of 1 or more")
    arguments, patience = parse_arguments(options.fields), AnswerLimits(options.wait, options.answers)
    if options.to is not None:
        exchange = over_udp(arguments, options.to, options.source, patience)
    else:
        exchange = over_interface(arguments, options.interface, patience)
    if options.json:
        print(json.dumps(exchange_values(exchange)))
    else:
        print_exchange(exchange)
    return 0


def _decode(options: argparse.Namespace) -> int:
    captures = [read_capture(path, options.udp_port) for path in options.files]
    packets = [
        packet
        for packet in sorted(
            (packet for capture in captures for packet in capture.packets), key=lambda each: each.time_s
        )
        if options.generation in (None, packet.header.generation) and options.slot in (None, packet.header.slot)
    ]
    if options.json:
        print(json.dumps(capture_values(captures, packets)))
    else:
        print_captures(captures, packets)
    # Status 1 also with an empty list, for scripts that look for traffic.
    if not any(capture.packets for capture in captures):
        # The service is often at another port on loopback: the counts of foreign frames name the ports that were seen.
        foreign = sum((capture.foreign for capture in captures), Counter[str]())
        seen = f" among {_counts(foreign)}; --udp-port names another port" if foreign else ""
        print(f"hopsum packet: no hopsum packet to or from UDP port {options.udp_port}{seen}", file=sys.stderr)
        return 1
    return 0
