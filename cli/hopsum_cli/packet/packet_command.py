# SPDX-License-Identifier: Apache-2.0
"""`hopsum packet send`: arguments, and the exchange as text and as JSON."""

from __future__ import annotations

import argparse
import ipaddress
import json
import sys
from collections.abc import Sequence
from typing import Any

from hopsum_base.units import real, whole
from hopsum_cli.packet.packet_exchange import (
    Address,
    AnswerLimits,
    PacketError,
    PacketExchange,
    exchange_over_udp,
    parse_arguments,
    text_of,
    values_of,
)

NO_ANSWER = """\
no answer. A switch answers an UPDATE when its round is complete, a PROBE at once, and a packet that it drops never.
The counter `drops` of the switch has the reason: hopsum switch-ctl snapshot --name HopsumIngress.drops"""


def print_exchange(exchange: PacketExchange) -> None:
    """Print the packet that was sent and its answers as layers, or NO_ANSWER."""
    print(f"sent, {exchange.way}\n{text_of(exchange.sent)}")
    for number, answer in enumerate(exchange.answers, 1):
        print(f"\nanswer {number}, after {answer.after_s * 1e3:.1f} ms\n{text_of(answer.packet)}")
    if not exchange.answers:
        print(f"\n{NO_ANSWER}")


def exchange_values(exchange: PacketExchange) -> dict[str, Any]:
    """Return an exchange as a dict for JSON: `way`, `sent`, and `answers` with the seconds after which each came."""
    answers = [{"after_s": answer.after_s, **values_of(answer.packet)} for answer in exchange.answers]
    return {"way": exchange.way, "sent": values_of(exchange.sent), "answers": answers}


_SEND_EPILOG = """\
examples:
  hopsum packet send kind=PROBE worker=0 slot=3 generation=7 --to 127.0.0.1:24677 --from 127.0.0.1:6000
  hopsum packet send kind=UPDATE op=ADD32 generation=7 slot=3 lanes=1,2,3 --to 127.0.0.1:24677 --from 127.0.0.1:6000

A switch takes a worker's packets from the worker's own address and UDP port only.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum packet", description="Send one packet by hand, and show the answers.")
    words = parser.add_subparsers(required=True, metavar="WORD")
    _add_send(words)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Send the packet, and print it and its answers. Return 0, or 1 with a printed reason if it cannot be sent."""
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
        " codes=1,2,... (zeros follow) or payload=HEX",
    )
    word.add_argument(
        "--to", type=parse_address, required=True, metavar="IP:PORT", help="send a UDP datagram to this address"
    )
    word.add_argument(
        "--from",
        dest="source",
        type=parse_address,
        default=("0.0.0.0", 0),
        metavar="IP:PORT",
        help="address to send from (default: any free UDP port)",
    )
    word.add_argument(
        "--wait",
        type=real(0, 86_400),
        default=1.0,
        metavar="SECONDS",
        help="collect answers for this long (default %(default)s)",
    )
    word.add_argument(
        "--answers", type=whole(1), metavar="N", help="stop after so many answers (default: only by --wait)"
    )
    word.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    word.set_defaults(run=_send, parser=word)


def _send(options: argparse.Namespace) -> int:
    arguments, patience = parse_arguments(options.fields), AnswerLimits(options.wait, options.answers)
    exchange = exchange_over_udp(arguments, options.to, options.source, patience)
    if options.json:
        print(json.dumps(exchange_values(exchange)))
    else:
        print_exchange(exchange)
    return 0
