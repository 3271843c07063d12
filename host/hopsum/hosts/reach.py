# SPDX-License-Identifier: Apache-2.0
"""A trial of the paths between ranks: datagrams and a connection to each address, answered by the right rank.

Datagrams are tried short, as long as a job's, and several sent together (UDP_SEGMENT), which some kernels mangle.
"""

from __future__ import annotations

import secrets
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from hopsum.config import ConfigError
from hopsum.hosts.host_address import INTERFACE_VARIABLE
from hopsum.transport.offload import SOL_UDP, UDP_SEGMENT
from hopsum_base.own_random import OWN_RANDOM
from hopsum_wire.payload import LONGEST_BYTES

TRY_S: Final = 15.0
"""Seconds for all answers. A machine that other programs keep busy may stand still for some of them."""
TOGETHER_S: Final = 3.0
"""The same for datagrams that are sent together, which a job can do without."""
_DIALS: Final = 16
"""Connections that are tried at one time."""
# The shortest of a few: a round trip that waited for a processor says nothing about the network.
ROUNDS: Final = 8
"""Questions to each rank that answers. The shortest of their round trips counts."""
_AGAIN_S: Final = 0.1
_NONCE_BYTES: Final = 16
_LEAST_S: Final = 1e-3
_NUMBER_BYTES: Final = 4
_TOGETHER: Final = 4
"""Datagrams that are sent together."""
# A socket has room for some ninety long datagrams by default. All ranks of a large job ask at one time.
_RANKS_AT_ONCE: Final = 8
"""Ranks that one question goes to, if it is sent several times."""
_ASKS: Final = b"hopsum?"
"""The beginning of a question. The rest of it comes back behind the nonce."""


class Responder(NamedTuple):
    """The place of a rank's `ReachEcho`: its address, its ports, and the nonce in its answers, hexadecimal."""

    ip: str
    udp_port: int
    tcp_port: int
    nonce: str


class ReachEcho:
    """Answers every datagram and every TCP connection at free ports of an address with its nonce, until closed.

    The constructor opens the sockets and starts a thread. `place` has the ports. A datagram's number comes back with
    the nonce, so an answer is never taken for that of a later question.

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
        """End the thread and close the sockets."""
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
    """Try the paths to all other ranks. Return the round trip to the farthest rank in seconds, 0.0 without others.

    Args:
        own_ip: the address to send from.
        others: the place of each other rank.
        try_s: the longest wait of each trial: short datagrams, connections, and long datagrams.

    Raises:
        ConfigError: ranks do not answer. The message names them, and the trial that failed.
        OSError: `own_ip` is not this host's.
    """
    trips_s = {rank: min(found) for rank, found in _ask(own_ip, others, try_s)[0].items() if found}
    silent = sorted(set(others) - set(trips_s))
    problems = [f"rank {rank} at {others[rank].ip} does not answer datagrams" for rank in silent]
    with ThreadPoolExecutor(_DIALS) as pool:
        told = pool.map(lambda rank: (rank, _silent_by_tcp(own_ip, others[rank], try_s)), trips_s)
        problems += [f"rank {rank} at {others[rank].ip} takes no connection ({why})" for rank, why in told if why]
    if problems:
        raise ConfigError(
            f"from {own_ip}, {', '.join(problems)}. On every host, set {INTERFACE_VARIABLE} to the interface between "
            "the hosts, or the setting `ip` to its address, and let UDP and TCP between the hosts pass"
        )
    found = _ask(own_ip, others, try_s, 1, LONGEST_BYTES)[0]
    if narrow := [f"rank {rank} at {others[rank].ip}" for rank in others if not found[rank]]:
        raise ConfigError(
            f"from {own_ip}, {', '.join(narrow)} answers short datagrams and none of {LONGEST_BYTES} bytes: raise the "
            "MTU of every link between, and of the hosts' interfaces (ip link set dev INTERFACE mtu 1500)"
        )
    return max(trips_s.values(), default=0.0)


def gso_arrives(own_ip: str, others: Mapping[int, Responder], *, try_s: float = TOGETHER_S) -> bool:
    """Return whether at least three quarters of the datagrams that this host sends together reach each other rank.

    They are sent in one system call (GSO). The ranks are reachable by single datagrams (`require_reachable`). True
    without others. Blocks for `try_s` at most. Raises OSError if `own_ip` is not this host's.
    """
    # Every rank in an order of its own: else all would ask the same few first.
    mixed = dict(OWN_RANDOM.sample(list(others.items()), len(others)))
    trips_s, asked = _ask(own_ip, mixed, try_s, 2 * ROUNDS * _TOGETHER, LONGEST_BYTES, _TOGETHER)
    # Any network may lose some.
    return all(4 * len(found) >= 3 * _TOGETHER * asked[rank] for rank, found in trips_s.items())


def _ask(
    own_ip: str, others: Mapping[int, Responder], try_s: float, answers: int = ROUNDS, size: int = 0, together: int = 1
) -> tuple[dict[int, list[float]], Counter[int]]:
    """Ask ranks until each has given so many answers, for `try_s` at most.

    Args:
        size: of a question in bytes, at least.
        together: the times that a question is sent at once.

    Returns:
        By rank, the round trips in seconds, and the questions.
    """
    counts = Counter[int]()
    trips_s: dict[int, list[float]] = {rank: [] for rank in others}
    ranks = {bytes.fromhex(place.nonce): rank for rank, place in others.items()}
    asked_at: list[float] = []
    until, at_once = time.monotonic() + try_s, _RANKS_AT_ONCE if together > 1 else len(others)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.bind((own_ip, 0))
        while time.monotonic() < until and (lacking := [rank for rank in others if len(trips_s[rank]) < answers]):
            asked = lacking[:at_once]
            question = (_ASKS + len(asked_at).to_bytes(_NUMBER_BYTES, "big")).ljust(size, b"\0")
            cut = [(SOL_UDP, UDP_SEGMENT, len(question).to_bytes(2, sys.byteorder))] if together > 1 else []
            asked_at.append(time.monotonic())
            counts.update(asked)
            for rank in asked:
                try:
                    asker.sendmsg([question] * together, cut, 0, (others[rank].ip, others[rank].udp_port))
                except OSError:
                    # The kernel does not refuse such batches now and then.
                    if together > 1:
                        return trips_s, counts
                    # A rank without a route is a rank that does not answer: the message names all of them together.
            for rank, trip_s in _answers(asker, asked_at, ranks, len(asked) * together):
                trips_s[rank].append(trip_s)
        # A machine that was stopped has asked more often than it has heard: what is late is not lost.
        while together > 1 and time.monotonic() < until:
            late = together * counts.total() - sum(map(len, trips_s.values()))
            if not late:
                break
            for rank, trip_s in _answers(asker, asked_at, ranks, late):
                trips_s[rank].append(trip_s)
    return trips_s, counts


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
        number_at = slice(_NONCE_BYTES, _NONCE_BYTES + _NUMBER_BYTES)
        rank, number = ranks.get(answer[:_NONCE_BYTES]), int.from_bytes(answer[number_at], "big")
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
