# SPDX-License-Identifier: Apache-2.0
"""One packet from key=value arguments, sent to a switch, and its answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from scapy.packet import Packet, Raw

from hopsum.errors import HopsumError
from hopsum_wire import HOPSUM_BYTES, Header, Kind, Op
from hopsum_wire._layout import HOPSUM_FIELDS, LANES_BYTES, Flag
from hopsum_wire.errors import WireError
from hopsum_wire.payload import SHAPES, lanes, pack_codes, unpack_codes
from hopsum_wire.scapy import Hopsum

PAYLOAD_KEYS: Final = ("lanes", "codes", "payload")
_FIELDS: Final = tuple(field.name for field in HOPSUM_FIELDS)
_ENUMS: Final[dict[str, type[IntEnum]]] = {"kind": Kind, "op": Op, "flags": Flag}
_WITH_LANES: Final = (Kind.UPDATE, Kind.RESULT, Kind.PARTIAL)


class PacketError(HopsumError):
    """A packet cannot be built, sent or read as asked. The message says what to change."""


class PacketArguments(NamedTuple):
    """A packet, as the arguments describe it."""

    header: Header
    payload: bytes


def parse_arguments(words: Sequence[str]) -> PacketArguments:
    """Return the packet of arguments such as kind=UPDATE, slot=3, lanes=1,2,3.

    Fields left out: kind UPDATE, op ADD32 (PROBE: 0), round 1, count and length those of the payload, all others 0.
    An UPDATE, RESULT or PARTIAL has a whole payload of zeros. Nothing is checked against the protocol: a packet that a
    switch must drop can be built.

    Raises PacketError: an unknown key, a key given twice, or a value that no field has.
    """
    values = _split(words)
    numbers = {name: _number(name, values[name]) for name in _FIELDS if name in values}
    kind = numbers.setdefault("kind", Kind.UPDATE)
    op = numbers.setdefault("op", Op.ADD32 if kind != Kind.PROBE else 0)
    payload = _payload(kind, op, {key: values[key] for key in PAYLOAD_KEYS if key in values})
    # Rounds count the uses of a slot from 1: round 0 is that of a slot without any use.
    numbers.setdefault("round", 1)
    numbers.setdefault("length", len(payload))
    if payload and op in SHAPES:
        numbers.setdefault("count", SHAPES[op].elements)
    header = Header(**numbers)
    try:
        header.pack()
    except WireError as error:
        raise PacketError(str(error)) from error
    return PacketArguments(header, payload)


def _split(words: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise PacketError(f"{word!r} is not KEY=VALUE, as in slot=3")
        if key not in (*_FIELDS, *PAYLOAD_KEYS):
            raise PacketError(
                f"{key!r} is no key of a packet; header fields: {', '.join(_FIELDS)}; payload:"
                f" {', '.join(PAYLOAD_KEYS)}"
            )
        if key in values:
            raise PacketError(f"{key} is given twice, as {values[key]!r} and as {value!r}: leave one out")
        values[key] = value
    return values


def _number(name: str, text: str) -> int:
    members = {str(member.name): int(member) for member in _ENUMS.get(name, ())}
    if text.upper() in members:
        return members[text.upper()]
    try:
        return int(text, 0)
    except ValueError:
        names = f" or one of {', '.join(members)}" if members else ""
        raise PacketError(f"{name}={text}: {text!r} is not a number (decimal, 0x..., 0b...){names}") from None


def _payload(kind: int, op: int, given: Mapping[str, str]) -> bytes:
    if len(given) > 1:
        raise PacketError(f"{' and '.join(given)} both say what the payload is: leave one out")
    if "payload" in given:
        try:
            return bytes.fromhex(given["payload"])
        except ValueError as error:
            raise PacketError(
                f"payload={given['payload']}: it must be hexadecimal bytes, as in payload=00ff"
            ) from error
    if not given and kind not in _WITH_LANES:
        return b""
    if op not in SHAPES:
        if not given:
            return b""
        raise PacketError(f"op {op} has no lanes or codes; give the bytes themselves, as in payload=00ff")
    key = next(iter(given), "codes" if _has_codes(kind, op) else "lanes")
    numbers = [_number(key, text) for text in given.get(key, "").split(",") if text]
    return _codes(op, numbers) if key == "codes" else _lanes(op, numbers)


def _has_codes(kind: int, op: int) -> bool:
    """Return whether a packet has codes in place of lanes."""
    shape = SHAPES[op]
    return (kind == Kind.UPDATE and shape.has_codes) or (kind == Kind.RESULT and shape.down_codes)


def _lanes(op: int, numbers: Sequence[int]) -> bytes:
    """Return a whole payload of lanes: `numbers`, then zeros."""
    shape = SHAPES[op]
    dtype = np.dtype(shape.lane_dtype)
    lanes = np.zeros(LANES_BYTES // dtype.itemsize, dtype)
    _check(f"lanes of {Op(op).name}", numbers, len(lanes), shape.lane_bits)
    lanes[: len(numbers)] = numbers
    return lanes.tobytes()


def _codes(op: int, numbers: Sequence[int]) -> bytes:
    """Return a whole payload of codes: `numbers`, then zeros."""
    if not SHAPES[op].has_codes:
        raise PacketError(f"{Op(op).name} carries lanes and no codes: give lanes=...")
    shape = SHAPES[op]
    codes = np.zeros(shape.elements, np.uint8)
    _check(f"codes of {Op(op).name}", numbers, len(codes), shape.code_bits)
    codes[: len(numbers)] = numbers
    return pack_codes(codes, shape.lane_bits, bits=shape.code_bits).tobytes()


def _check(what: str, numbers: Sequence[int], most: int, bits: int) -> None:
    if len(numbers) > most:
        raise PacketError(f"{what}: {len(numbers)} are given, a payload has {most}")
    wrong = next((number for number in numbers if not 0 <= number < 1 << bits), None)
    if wrong is not None:
        raise PacketError(f"{what}: {wrong} does not fit in {bits} bits")


# A packet for people, as scapy shows its layers, and for programs.

_SHOWN: Final = 16
"""Elements of a payload that are shown. What follows is counted."""


def text_of(packet: Packet) -> str:
    """Return a packet as text: its Hopsum layer with a line for each field, then one line for its payload."""
    # Built and dissected again, so that lengths are shown with their values.
    whole = Hopsum(bytes(packet))
    payload = bytes(whole.payload)
    # The payload has a line of its own: scapy would show its bytes as one long text.
    whole.remove_payload()
    layers = "\n".join(line.rstrip() for line in whole.show(dump=True).rstrip().splitlines())
    return f"{layers}\n{payload_text(whole, payload)}"


def payload_text(header: Packet, payload: bytes) -> str:
    """Return one line about a payload: its number of bytes, and its first codes, lanes or bytes.

    `header` is the Hopsum layer, whose kind and op say which these are.
    """
    if not payload:
        return "  no payload"
    name, elements = _elements(header.kind, header.op, payload)
    more = f" ... ({len(elements)})" if len(elements) > _SHOWN else ""
    return f"  payload: {len(payload)} bytes, {name} {' '.join(map(str, elements[:_SHOWN]))}{more}"


def values_of(packet: Packet) -> dict[str, Any]:
    """Return the fields of a packet's hopsum header by name, and its whole payload as `codes`, `lanes` or `bytes`.

    Kind and op are names, or numbers without a name. Flags are a list of names. Bytes are hexadecimal text. An empty
    payload has no key.
    """
    data = bytes(packet)
    header, payload = Header.unpack(data[:HOPSUM_BYTES]), data[HOPSUM_BYTES:]
    values: dict[str, Any] = {field.name: getattr(header, field.name) for field in HOPSUM_FIELDS}
    flags = [flag.name for flag in Flag if header.flags & flag]
    values |= {"kind": _name(Kind, header.kind), "op": _name(Op, header.op), "flags": flags}
    if payload:
        name, elements = _elements(header.kind, header.op, payload)
        values[name] = payload.hex() if name == "bytes" else elements
    return values


def _elements(kind: int, op: int, payload: bytes) -> tuple[str, list[Any]]:
    """Return the word for the elements of a payload, and the elements, or bytes where op and length do not fit."""
    shape, data = SHAPES.get(op), np.frombuffer(payload, np.uint8)
    # Codes travel in as many bytes in either direction.
    if shape is not None and _has_codes(kind, op) and len(payload) == shape.up_bytes:
        return "codes", unpack_codes(data, shape.lane_bits, bits=shape.code_bits).tolist()
    if shape is not None and len(payload) == (LANES_BYTES if kind == Kind.PARTIAL else shape.down_bytes):
        return "lanes", lanes(op, data).tolist()
    return "bytes", [f"{byte:02x}" for byte in payload]


def _name(enum: type[Kind] | type[Op], value: int) -> str | int:
    return enum(value).name if value in list(enum) else value


# One packet to a switch over a UDP socket, and the answers.

_MAX_DATAGRAM_BYTES = 65535
Address = tuple[str, int]


class PacketAnswer(NamedTuple):
    """A packet that came back, `after_s` seconds after the first one had left."""

    packet: Packet
    after_s: float


class AnswerLimits(NamedTuple):
    """End of the collection of answers: after `wait_s` seconds, or once there are `answers` of them."""

    wait_s: float
    answers: int | None = None


class PacketExchange(NamedTuple):
    """The packet that was sent, its addresses in words, and the answers in order of arrival."""

    sent: Packet
    way: str
    answers: tuple[PacketAnswer, ...]


def exchange_over_udp(
    arguments: PacketArguments, to: Address, source: Address, patience: AnswerLimits
) -> PacketExchange:
    """Send the packet as a datagram, and collect answers from `to` until `patience` ends. The socket is closed then.

    Args:
        to: IPv4 address and UDP port of the switch.
        source: address to send from. UDP port 0 is any free one.

    Raises PacketError: an address that cannot be used, or no process listens there.
    """
    values = {field.name: getattr(arguments.header, field.name) for field in HOPSUM_FIELDS}
    packet = Hopsum(**values) / Raw(arguments.payload) if arguments.payload else Hopsum(**values)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(source)
            # Connected: only the switch's datagrams arrive, and a closed port there is reported.
            sock.connect(to)
            sock.send(bytes(packet))
            own_ip, own_port = sock.getsockname()
            way = f"UDP {own_ip}:{own_port} -> {to[0]}:{to[1]}"
            answers = tuple(_collect(patience, sock))
        except ConnectionRefusedError as error:
            what = f"no process listens at UDP {to[0]}:{to[1]}: is the switch's port bound there?"
            raise PacketError(what) from error
        except OSError as error:
            raise PacketError(f"UDP {source[0]}:{source[1]} -> {to[0]}:{to[1]}: {error.strerror or error}") from error
    return PacketExchange(packet, way, answers)


def _collect(patience: AnswerLimits, sock: socket.socket) -> Iterator[PacketAnswer]:
    """Yield the hopsum packets that a socket receives, as long as there is patience."""
    # From the end of sending: the time to build the packet is not the switch's.
    started, count = time.monotonic(), 0
    while count != patience.answers and (left := started + patience.wait_s - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            data = sock.recv(_MAX_DATAGRAM_BYTES)
        except TimeoutError:
            return
        if len(data) >= HOPSUM_BYTES:
            count += 1
            yield PacketAnswer(Hopsum(data), time.monotonic() - started)
