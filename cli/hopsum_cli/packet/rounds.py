# SPDX-License-Identifier: Apache-2.0
"""Packets of a switch as generations, slots and rounds: who contributed, what came twice, what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hopsum_cli.packet.capture import CapturedPacket
from hopsum_wire import Header, Kind
from hopsum_wire._layout import Flag


@dataclass
class Round:
    """One round of a slot, from its packets. Counters are by worker: the sender, or the receiver of an answer."""

    slot: int
    round: int
    first_s: float
    last_s: float = 0.0
    op: int = 0
    updates: Counter[int] = field(default_factory=Counter)
    partials: Counter[int] = field(default_factory=Counter)
    """The partial sums by the number of the leaf."""
    results: Counter[int] = field(default_factory=Counter)
    contributors: set[int] = field(default_factory=set)
    """Workers in the sum of a RESULT."""
    stale: Counter[int] = field(default_factory=Counter)
    held: set[int] = field(default_factory=set)
    """Newer rounds that STALE answers name."""
    probes: Counter[int] = field(default_factory=Counter)
    states: Counter[int] = field(default_factory=Counter)
    flushes: int = 0

    @property
    def complete(self) -> bool:
        """True if the capture has a RESULT."""
        return bool(self.results)

    @property
    def sent_again(self) -> int:
        """UPDATEs and PARTIALs beyond the first one of each sender."""
        return sum(count - 1 for senders in (self.updates, self.partials) for count in senders.values())

    @property
    def answered_again(self) -> int:
        """RESULTs beyond the first one to each receiver."""
        return sum(count - 1 for count in self.results.values())

    def silent(self, workers: set[int]) -> set[int]:
        """Return the workers without an UPDATE in the capture, unless they are in the sum."""
        return workers - set(self.updates) - self.contributors

    def left_out(self) -> set[int]:
        """Return the workers that sent an UPDATE and are not in the sum of a complete round."""
        return set(self.updates) - self.contributors if self.complete else set()

    def without_result(self) -> set[int]:
        """Return the workers that sent an UPDATE to a complete round and got no RESULT."""
        return set(self.updates) - set(self.results) if self.complete else set()

    def is_plain(self, workers: set[int]) -> bool:
        """Return True if every worker sent once, is in the sum, and got the result once."""
        return (
            set(self.updates) == set(self.results) == self.contributors == workers
            and not (self.sent_again or self.answered_again or self.stale or self.probes or self.states)
            and not (self.flushes or self.partials)
        )


@dataclass
class Generation:
    """One generation of a job."""

    number: int
    workers: set[int] = field(default_factory=set)
    """Ranks that sent an UPDATE or stand in the contributors of a RESULT."""
    packets: Counter[str] = field(default_factory=Counter)
    """The packets by the name of the kind."""
    rounds: dict[tuple[int, int], Round] = field(default_factory=dict)
    """The rounds by slot and round, in order of first appearance."""

    def add(self, packet: CapturedPacket) -> None:
        """Take one packet of this generation."""
        header = packet.header
        key = (header.slot, header.round)
        found = self.rounds.setdefault(key, Round(*key, first_s=packet.time_s))
        found.last_s = packet.time_s
        self.packets[Kind(header.kind).name] += 1
        _TAKE[Kind(header.kind)](found, header)
        if header.kind == Kind.UPDATE:
            self.workers.add(header.worker)
        elif header.kind == Kind.RESULT:
            self.workers |= found.contributors


def generations_of(packets: Iterable[CapturedPacket]) -> list[Generation]:
    """Return the generations of packets that are in order of time, in order of first appearance."""
    found: dict[int, Generation] = {}
    for packet in packets:
        number = packet.header.generation
        found.setdefault(number, Generation(number)).add(packet)
    return list(found.values())


def bits_of(bitmap: int) -> set[int]:
    """Return the ranks of a contributors bitmap."""
    return {rank for rank in range(bitmap.bit_length()) if bitmap >> rank & 1}


def _update(found: Round, header: Header) -> None:
    found.op = header.op
    found.updates[header.worker] += 1
    found.flushes += bool(header.flags & Flag.FLUSH)


def _partial(found: Round, header: Header) -> None:
    found.op = header.op
    found.partials[header.worker] += 1
    found.flushes += bool(header.flags & Flag.FLUSH)


def _result(found: Round, header: Header) -> None:
    found.op = header.op
    found.results[header.worker] += 1
    found.contributors |= bits_of(header.contributors)


def _stale(found: Round, header: Header) -> None:
    found.stale[header.worker] += 1
    found.held.add(header.held)


def _probe(found: Round, header: Header) -> None:
    found.probes[header.worker] += 1


def _state(found: Round, header: Header) -> None:
    found.states[header.worker] += 1


_TAKE: dict[Kind, Callable[[Round, Header], None]] = {
    Kind.UPDATE: _update,
    Kind.RESULT: _result,
    Kind.STALE: _stale,
    Kind.PROBE: _probe,
    Kind.STATE: _state,
    Kind.PARTIAL: _partial,
}
