# SPDX-License-Identifier: Apache-2.0
"""The words after `hopsum packet`: send and decode, as tables for people and as values for programs."""

from __future__ import annotations

import argparse
import ipaddress
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hopsum_cli.packet.captured_rounds import Capture, Generation, Round, generations_of, in_order_of_time, read_capture
from hopsum_cli.packet.packet_exchange import (
    Address,
    AnswerLimits,
    PacketError,
    PacketExchange,
    over_interface,
    over_udp,
    parse_arguments,
    text_of,
    values_of,
)
from hopsum_wire import HOPSUM_UDP_PORT
from hopsum_wire._layout import Op

NO_ANSWER = """\
no answer. A switch answers an UPDATE when its round is complete, a PROBE at once, and a packet that it drops never.
The counter `drops` of the switch has the reason: hopsum switch-ctl snapshot --name HopsumIngress.drops"""

_HEADING: Final = ("slot", "round", "op", "sent by", "again", "sum of", "result to", "stale", "missing, and the rest")


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


def print_captures(captures: Sequence[Capture], generations: Sequence[tuple[Generation, Sequence[Round]]]) -> None:
    """Print what is in files, and these rounds of each generation."""
    for capture in captures:
        print(_capture_line(capture))
        for note in capture.notes:
            print(f"  {note}")
    for generation, rounds in generations:
        print(f"\n{_generation_line(generation)}")
        for line in _table(generation, rounds) if rounds else ():
            print(line)
        if len(rounds) < len(generation.rounds):
            print(f"{len(generation.rounds) - len(rounds)} rounds are not shown")


def _capture_line(capture: Capture) -> str:
    parts = [f"{capture.path}: {capture.frames} frames, {len(capture.packets)} hopsum packets"]
    for what, counts in (("foreign", capture.foreign), ("malformed", capture.malformed)):
        if counts:
            parts.append(f"{counts.total()} {what} ({_counts(counts)})")
    return ", ".join(parts)


def _generation_line(generation: Generation) -> str:
    rounds = generation.rounds.values()
    complete = sum(found.complete for found in rounds)
    slots = len({found.slot for found in rounds})
    return (
        f"generation {generation.number}: workers {_ranks(generation.workers)}; {len(rounds)} rounds in {slots} slots,"
        f" {complete} complete; {_counts(generation.packets)}; {sum(found.sent_again for found in rounds)} sent again,"
        f" {sum(found.answered_again for found in rounds)} answered again"
    )


def _table(generation: Generation, rounds: Iterable[Round]) -> Iterator[str]:
    """Yield a heading and a line for each round, as wide as the widest needs: a terminal may be narrower."""
    rows = [_HEADING, *(_row(found, generation.workers) for found in rounds)]
    # No wrapping: a wrapped row of a wide table cannot be read, and `less -S` scrolls.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(found: Round, workers: set[int]) -> tuple[str, ...]:
    return (
        str(found.slot),
        str(found.round),
        _op(found.op),
        _ranks(found.updates),
        str(found.sent_again or ""),
        _ranks(found.contributors),
        _times(found.results),
        _times(found.stale),
        "; ".join(remarks(found, workers)),
    )


def remarks(found: Round, workers: set[int]) -> list[str]:
    """Return what is missing in a round, and what happened beside contributions and results."""
    said = [] if found.complete else ["no RESULT"]
    for words, ranks in (
        ("no UPDATE of", found.silent(workers)),
        ("not in the sum:", found.left_out()),
        ("no RESULT to", found.without_result()),
    ):
        if ranks:
            said.append(f"{words} {_ranks(ranks)}")
    if found.held:
        said.append(f"the slot held round {', '.join(map(str, sorted(found.held)))}")
    for words, count in (
        ("FLUSH", found.flushes),
        ("PROBE", found.probes.total()),
        ("STATE", found.states.total()),
        ("PARTIAL", found.partials.total()),
    ):
        if count:
            said.append(f"{count} {words}")
    return said


def capture_values(
    captures: Sequence[Capture], generations: Sequence[tuple[Generation, Sequence[Round]]]
) -> dict[str, Any]:
    """Return files, generations and these rounds as JSON values."""
    files = [
        {
            "file": str(capture.path),
            "frames": capture.frames,
            "hopsum": len(capture.packets),
            "foreign": dict(capture.foreign),
            "malformed": dict(capture.malformed),
            "notes": capture.notes,
        }
        for capture in captures
    ]
    return {"files": files, "generations": [_generation_values(*each) for each in generations]}


def _generation_values(generation: Generation, rounds: Sequence[Round]) -> dict[str, Any]:
    everything = generation.rounds.values()
    return {
        "generation": generation.number,
        "workers": sorted(generation.workers),
        "packets": dict(generation.packets),
        "rounds_seen": len(everything),
        "rounds_complete": sum(found.complete for found in everything),
        "sent_again": sum(found.sent_again for found in everything),
        "answered_again": sum(found.answered_again for found in everything),
        "rounds": [_round_values(found, generation.workers) for found in rounds],
    }


def _round_values(found: Round, workers: set[int]) -> dict[str, Any]:
    counted = ("updates", "partials", "results", "stale", "probes", "states")
    return {
        "slot": found.slot,
        "round": found.round,
        "op": _op(found.op),
        "first_s": found.first_s,
        "last_s": found.last_s,
        "complete": found.complete,
        **{name: {str(rank): count for rank, count in sorted(getattr(found, name).items())} for name in counted},
        "flushes": found.flushes,
        "contributors": sorted(found.contributors),
        "held": sorted(found.held),
        "silent": sorted(found.silent(workers)),
        "left_out": sorted(found.left_out()),
        "without_result": sorted(found.without_result()),
    }


def _op(op: int) -> str:
    return Op(op).name if op in list(Op) else ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _ranks(ranks: Iterable[int]) -> str:
    return " ".join(map(str, sorted(ranks)))


def _times(counts: Counter[int]) -> str:
    """Return ranks, with the number of answers where there were several."""
    return " ".join(f"{rank}x{count}" if count > 1 else str(rank) for rank, count in sorted(counts.items()))


# The words after `hopsum packet`.

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
        print(json.dumps(exchange_values(exchange)))
    else:
        print_exchange(exchange)
    return 0


def _decode(options: argparse.Namespace) -> int:
    captures = [read_capture(path, options.udp_port) for path in options.files]
    generations = [
        (generation, _chosen(generation, options))
        for generation in generations_of(in_order_of_time(captures))
        if options.generation in (None, generation.number)
    ]
    if options.json:
        print(json.dumps(capture_values(captures, generations)))
    else:
        print_captures(captures, generations)
    # Status 1 also with an empty table, for scripts that look for traffic.
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
    # The service is often at another port on loopback: the ports that were seen are the best hint.
    ports: Counter[int] = sum((capture.udp_ports for capture in captures), Counter())
    seen = ", ".join(f"{port} ({count})" for port, count in ports.most_common(_SHOWN_PORTS))
    said = f"no hopsum packet to or from UDP port {udp_port}"
    return f"{said}; datagrams went to UDP ports {seen}: --udp-port names another" if seen else said
