# SPDX-License-Identifier: Apache-2.0
"""A trial of the ways between ranks: datagrams and a connection to each address, answered by the rank that is meant."""

from __future__ import annotations

import secrets
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from hopsum.config import ConfigError
from hopsum.hosts.host_address import INTERFACE_VARIABLE

TRY_S: Final = 3.0
"""Seconds for all answers."""
# The shortest of a few: a round trip that waited for a processor says nothing about the network.
ROUNDS: Final = 8
"""Times that a rank which answers is asked: the shortest round trip of these counts."""
_AGAIN_S: Final = 0.1
_NONCE_BYTES: Final = 16
_LEAST_S: Final = 1e-3
_NUMBER_BYTES: Final = 4
_ASKS: Final = b"hopsum?"
"""The beginning of a question. The rest of it comes back behind the nonce."""


class Responder(NamedTuple):
    """A rank that answers: its address, its ports, and the text by which it is known, hexadecimal."""

    ip: str
    udp_port: int
    tcp_port: int
    nonce: str


class ReachEcho:
    """Answers every datagram and every connection with its nonce, in a thread, until closed.

    A datagram's number comes back with the nonce, so that nobody takes an answer for that of a later question.

    Raises OSError: the address is not this host's.
    """

    def __init__(self, ip: str) -> None:
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._udp.bind((ip, 0))
            self._tcp.bind((ip, 0))
            self._tcp.listen(128)
        except OSError:
            self.close()
            raise
        self.place = Responder(ip, self._udp.getsockname()[1], self._tcp.getsockname()[1], self._nonce.hex())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="hopsum-echo", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more."""
        if hasattr(self, "_thread"):
            self._over.set()
            self._thread.join()
        self._udp.close()
        self._tcp.close()

    def __enter__(self) -> ReachEcho:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            ready, _, _ = select.select([self._udp, self._tcp], [], [], _AGAIN_S)
            try:
                if self._udp in ready:
                    asked, peer = self._udp.recvfrom(64)
                    self._udp.sendto(self._nonce + asked[len(_ASKS) :], peer)
                if self._tcp in ready:
                    connection, _ = self._tcp.accept()
                    with connection:
                        connection.sendall(self._nonce)
            except OSError:  # a peer that went, or an ICMP answer: the next one is answered
                continue


def require_reachable(own_ip: str, others: Mapping[int, Responder], *, try_s: float = TRY_S) -> float:
    """Try all ranks at once. Return the round trip to the farthest of them in seconds, 0.0 without others.

    Raises ConfigError naming those that do not answer, by which way.
    """
    trips_s = _round_trips(own_ip, others, try_s)
    silent = sorted(set(others) - set(trips_s))
    problems = [f"rank {rank} at {others[rank].ip} does not answer datagrams" for rank in silent]
    for rank, place in others.items():
        if rank not in silent and (why := _silent_by_tcp(own_ip, place, try_s)):
            problems.append(f"rank {rank} at {place.ip} takes no connection ({why})")
    if problems:
        raise ConfigError(
            f"from {own_ip}, {', '.join(problems)}. On every host, set {INTERFACE_VARIABLE} to the interface between "
            "the hosts, or the setting `ip` to its address, and let UDP and TCP between the hosts pass"
        )
    return max(trips_s.values(), default=0.0)


def _round_trips(own_ip: str, others: Mapping[int, Responder], try_s: float) -> dict[int, float]:
    """Return the shortest of ROUNDS round trips to each rank that answers datagrams within `try_s`, in seconds."""
    trips_s: dict[int, list[float]] = {rank: [] for rank in others}
    ranks = {bytes.fromhex(place.nonce): rank for rank, place in others.items()}
    asked_at: list[float] = []
    until = time.monotonic() + try_s
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.bind((own_ip, 0))
        while time.monotonic() < until and (asked := [rank for rank in others if len(trips_s[rank]) < ROUNDS]):
            question = _ASKS + len(asked_at).to_bytes(_NUMBER_BYTES, "big")
            asked_at.append(time.monotonic())
            for rank in asked:
                try:
                    asker.sendto(question, (others[rank].ip, others[rank].udp_port))
                # A rank without a route is a rank that does not answer: the message names all of them together.
                except OSError:  # no route: as no answer
                    continue
            for rank, trip_s in _answers(asker, asked_at, ranks, len(asked)):
                trips_s[rank].append(trip_s)
    return {rank: min(found) for rank, found in trips_s.items() if found}


def _answers(
    asker: socket.socket, asked_at: Sequence[float], ranks: Mapping[bytes, int], count: int
) -> Iterator[tuple[int, float]]:
    """Yield (rank, seconds) for each answer, until `count` are of the last question or it is time to ask again."""
    while count:
        asker.settimeout(max(_LEAST_S, asked_at[-1] + _AGAIN_S - time.monotonic()))
        try:
            answer = asker.recv(64)
        except OSError:
            return
        rank, number = ranks.get(answer[:_NONCE_BYTES]), int.from_bytes(answer[_NONCE_BYTES:], "big")
        if rank is not None and number < len(asked_at):
            # A late answer to an earlier question counts as a round trip, but does not end the wait for this question.
            count -= number == len(asked_at) - 1
            yield rank, time.monotonic() - asked_at[number]


def _silent_by_tcp(own_ip: str, place: Responder, try_s: float) -> str:
    """Try a TCP connection to a rank. Return the reason why it fails, empty if it works."""
    try:
        with socket.create_connection((place.ip, place.tcp_port), try_s, (own_ip, 0)) as connection:
            return "" if connection.recv(64) == bytes.fromhex(place.nonce) else "somebody else answers"
    except OSError as error:
        return str(error.strerror or error)
