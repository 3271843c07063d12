# SPDX-License-Identifier: Apache-2.0
"""The connections that peers open to one worker: their acceptance, their proof, and the messages on them.

a connection ends                                       counted in
no proof within `PROVE_S`, or a wrong one               `closed`, by reason
the oldest of `UNPROVED_MAX` without proof              `closed`: one more has come
HELLO of another generation                             `other_generations`
anything but whole messages with their MAC              `closed`, by reason
its rank has connected anew                             -
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from hopsum.protocol.peer_messages import HEADER_BYTES, MESSAGE_BYTES_MAX, PeerMessage, PeerMessageError
from hopsum.transport.side_connection import LENGTH_BYTES, PROVE_S, Address, SideStatistics, configure
from hopsum.transport.side_proof import HELLO_BYTES, MAC_BYTES, GenerationKey, Seal, check_hello, make_reply

_log: Final = logging.getLogger(__name__)
# As many as a job has workers. Strangers at a worker's address cannot take more descriptors than that.
UNPROVED_MAX: Final = 64
# A peer that has moved may be some connections ahead of the membership here. One that nobody can hear dials on.
STRANGERS_TOLD: Final = 10
"""Refused connections of a generation, from addresses that no peer has, after which one WARNING is logged."""


class IncomingConnections:
    """The open connections from peers to one worker. For the channel's thread only. `enter` comes first.

    Args:
        rank: of this worker.
        delivers: by shard, the function that gets the messages about it. The caller changes it.
        statistics: counts messages and the ends of connections.
    """

    def __init__(
        self, rank: int, delivers: Mapping[int, Callable[[PeerMessage], None]], statistics: SideStatistics
    ) -> None:
        self._rank, self._delivers, self._statistics = rank, delivers, statistics
        self._unproved: dict[asyncio.StreamWriter, None] = {}
        """The connections without a proof, in the order in which they came."""
        self._proved: dict[int, asyncio.StreamWriter] = {}
        """The connections with a proof, by rank."""
        self._key: GenerationKey
        self._peers: Mapping[int, Address]
        self._strangers: int
        """Connections of this generation from addresses that no peer has."""

    def enter(self, key: GenerationKey, peers: Mapping[int, Address]) -> None:
        """Begin a generation with these peers: close all connections of the previous one."""
        for writer in (*self._unproved, *self._proved.values()):
            writer.transport.abort()
        self._key, self._peers, self._strangers = key, peers, 0

    def admit(self, writer: asyncio.StreamWriter) -> bool:
        """Add a connection without a proof, or close it if no peer has its address. Return whether it was added."""
        # Before any byte is read: strangers cost one accept.
        ip = _ip_of(writer)
        if all(ip != host for host, _ in self._peers.values()):
            self._note_stranger(ip)
            writer.transport.abort()
            return False
        if len(self._unproved) >= UNPROVED_MAX:
            # The oldest has had the most time to prove itself.
            self.close(next(iter(self._unproved)))
            self._statistics.closed["crowd"] += 1
        self._unproved[writer] = None
        return True

    def close(self, writer: asyncio.StreamWriter) -> None:
        """Close and forget a connection. Harmless for one that is forgotten."""
        self._unproved.pop(writer, None)
        self._proved = {rank: each for rank, each in self._proved.items() if each is not writer}
        writer.transport.abort()

    async def read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Deliver the messages of an admitted connection, and count its end. The caller closes it."""
        try:
            await self._deliver_all(reader, writer)
        except PeerMessageError as refused:
            # At a change of generation some workers are earlier than others: no sign of an attack.
            if refused.reason == "generation":
                self._statistics.other_generations += 1
            else:
                self._statistics.closed[refused.reason] += 1
        except asyncio.IncompleteReadError as end:
            # The channel itself closes connections anywhere.
            if end.partial and not writer.is_closing():
                self._statistics.closed["truncated"] += 1
        except OSError:
            pass

    async def _deliver_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Deliver the messages of a connection. Raises PeerMessageError, asyncio.IncompleteReadError, OSError."""
        key = self._key
        try:
            async with asyncio.timeout(PROVE_S):
                configure(writer)
                hello = await reader.readexactly(HELLO_BYTES)
                rank = check_hello(hello, self._rank, key)
                if rank not in self._peers or self._peers[rank][0] != _ip_of(writer):
                    raise PeerMessageError("sender", f"rank {rank} does not live there")
                reply, seal = make_reply(hello, key)
                writer.write(reply)
                message = await _read_message(reader, seal)
        except TimeoutError:
            raise PeerMessageError("silent", f"no proof within {PROVE_S} s") from None
        if writer.is_closing():
            return
        self._prove(writer, rank)
        while True:
            if message.sender != rank:
                raise PeerMessageError("sender", f"rank {message.sender} on the connection of rank {rank}")
            # What a connection of the generation before still has in its buffer proves nothing in this one.
            if not message.generation == key.generation == self._key.generation:
                self._statistics.other_generations += 1
            else:
                self._statistics.messages_received += 1
                # A shard that has not begun here is deaf. So is one that has ended, and one that the job has not.
                if (deliver := self._delivers.get(message.shard)) is not None:
                    deliver(message)
            message = await _read_message(reader, seal)

    def _prove(self, writer: asyncio.StreamWriter, rank: int) -> None:
        """Note that a connection is one of a rank. Close the rank's older connection."""
        # The peer has connected anew, so its older connection is dead even if TCP does not know yet.
        if (older := self._proved.get(rank)) is not None:
            older.transport.abort()
        del self._unproved[writer]
        self._proved[rank] = writer

    def _note_stranger(self, ip: str) -> None:
        self._strangers += 1
        if self._strangers == STRANGERS_TOLD:
            places = ", ".join(f"{host} (rank {rank})" for rank, (host, _) in sorted(self._peers.items()))
            _log.warning(
                "rank %d has refused %d connections to its side channel, the last from %s: its peers live at %s. If %s "
                "is a host of one of them, it sends from another address than the one it joined with: look for address "
                "translation between the hosts, or set ip (HOPSUM_IP) there",
                self._rank,
                self._strangers,
                ip,
                places or "no address",
                ip,
            )
        self._statistics.closed["stranger"] += 1


async def _read_message(reader: asyncio.StreamReader, seal: Seal) -> PeerMessage:
    """Return the next message. Raises IncompleteReadError with bytes where a message was cut off."""
    length = await reader.readexactly(LENGTH_BYTES)
    size = int.from_bytes(length, "big")
    if not HEADER_BYTES <= size <= MESSAGE_BYTES_MAX:
        raise PeerMessageError("length", f"a message of {size} bytes")
    try:
        data = memoryview(await reader.readexactly(size + MAC_BYTES))
    except (asyncio.IncompleteReadError, OSError):
        raise asyncio.IncompleteReadError(length, size) from None
    seal.check(data[:size], data[size:])
    return PeerMessage.unpack(data[:size])


def _ip_of(writer: asyncio.StreamWriter) -> str:
    """Return the address of a connection's other end."""
    ip: str = writer.get_extra_info("peername")[0]
    return ip
