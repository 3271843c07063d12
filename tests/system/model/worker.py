# SPDX-License-Identifier: Apache-2.0
"""The worker: the place of a position on the wire, what it may send, what it accepts, what it may drop.

Numbers come from hopsum.protocol.stream itself. Nothing here changes a state: functions return the worker after.
"""

from __future__ import annotations

from typing import NamedTuple

from hopsum.protocol.stream import Stream

from .config import Config
from .state import ZEROS, Content, Contribution, Kind, Life, Packet, Pool, RuleError, Worker, replaced

Streams = tuple[tuple[int, ...], ...]
"""Per generation, the chunks summed in it, in order."""


class Address(NamedTuple):
    """The phase of a stream position."""

    slot: int
    version: int
    round: int


class WorkerRules:
    """The worker's rules under a Config."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._stream = Stream(config.slots)
        self._addresses: dict[tuple[Streams, int], tuple[Address, ...]] = {}
        self._encodings: Pool[tuple[Content | None, ...]] = Pool()

    # ---- numbers ------------------------------------------------------------------------------------

    def addresses(self, streams: Streams, generation: int) -> tuple[Address, ...]:
        """Return the addresses of the positions of a generation (N1, N2, N4)."""
        key = (streams, generation)
        if key not in self._addresses:
            self._addresses[key] = tuple(self._address(p, chunk) for p, chunk in enumerate(streams[generation]))
        return self._addresses[key]

    def _address(self, position: int, chunk: int) -> Address:
        config = self.config
        restarted = config.origin[chunk][1] if chunk >= 0 else position
        slot, round_ = self._stream.place(position)
        version = round_ & 1
        if not config.on("global_rounds"):
            round_ = self._stream.place(restarted).round
        if not config.on("continuous_map"):
            slot, own_round = self._stream.place(restarted)
            version = own_round & 1
        round_ -= not config.on("first_round")
        return Address(slot, version, round_ if config.on("no_wrap") else round_ % config.round_values)

    # ---- sending ------------------------------------------------------------------------------------

    def waiting(self, streams: Streams, worker: Worker) -> list[int]:
        """Return the positions that the worker may send, or send again: W1, N3, and what the encoding needs."""
        if worker.life is not Life.RUN:
            return []
        stream, addresses = streams[worker.generation], self.addresses(streams, worker.generation)
        return [
            position
            for position, chunk in enumerate(stream)
            if worker.held[chunk] is None
            and all(worker.held[stream[q]] is not None for q in self._before(stream, addresses, position))
            and self.encodable(worker.held, chunk)
        ]

    def _before(self, stream: tuple[int, ...], addresses: tuple[Address, ...], position: int) -> list[int]:
        config = self.config
        earlier = [q for q in range(position) if addresses[q].slot == addresses[position].slot]
        if not config.on("window_spans"):
            number = config.origin[stream[position]][0]
            earlier = [q for q in earlier if config.origin[stream[q]][0] == number]
        return earlier if config.on("in_order") else earlier[-1:]

    def encodable(self, held: tuple[Content | None, ...], chunk: int) -> bool:
        """Say whether all results are held that the encoding of a chunk depends on."""
        return all(held[needed] is not None for needed in self.config.needs(chunk))

    def dequantize_own(self, rank: int, worker: Worker, chunk: int) -> Contribution:
        """Return what the worker would send for a chunk now."""
        variant = worker.reencoded >> chunk & 1
        if self.config.ranges and self.config.needs(chunk):
            variant = self._encodings.number(tuple(worker.held[needed] for needed in self.config.needs(chunk)))
        return Contribution(rank, chunk, worker.incarnation, variant)

    def updates(self, streams: Streams, rank: int, worker: Worker, *, flush: bool) -> list[Packet]:
        """Return every UPDATE that the worker may send, in the order of the stream."""
        if self.config.silent >> rank & 1 or (flush and not self.config.flush >> rank & 1):
            return []
        addresses = self.addresses(streams, worker.generation)
        packets = []
        for position in self.waiting(streams, worker):
            value = self.dequantize_own(rank, worker, streams[worker.generation][position])
            content, truth = Content(1 << rank, (value,)), (worker.generation, position)
            packet = Packet(Kind.UPDATE, rank, worker.generation, *addresses[position], flush, content, truth)
            packets.append(packet._replace(node=self.config.node_of(rank)))
        return packets

    # ---- accepting ----------------------------------------------------------------------------------

    def accept(self, streams: Streams, rank: int, worker: Worker, result: Packet) -> tuple[Worker, int] | None:
        """Take a RESULT: the worker after it and the chunk, or None if it is ignored (W3, E2).

        Raises:
            RuleError: late, settle or range.
        """
        sealed = worker.life is Life.SEALED and self.config.on("seal")
        foreign = result.generation != worker.generation and self.config.on("generation_worker")
        if worker.life is Life.DOWN or sealed or foreign:
            return None
        named = (result.slot, result.version, result.round)
        for position, address in enumerate(self.addresses(streams, worker.generation)):
            chunk = streams[worker.generation][position]
            if worker.held[chunk] is None and address == named:
                return self.hold(rank, worker, chunk, result.content), chunk
        return None

    def hold(self, rank: int, worker: Worker, chunk: int, content: Content) -> Worker:
        """Take a result from the switch or a peer, and settle by its contributors (W5).

        Raises:
            RuleError: late, settle or range.
        """
        if any(value.chunk != chunk for value in content.values):
            self._violated("late", f"w{rank} takes for chunk {chunk} what is {content.values}")
        own = self.dequantize_own(rank, worker, chunk)
        inside = [value for value in content.values if value.worker == rank]
        if inside != ([own] if content.contributors >> rank & 1 else []):
            self._violated("settle", f"w{rank} stands for {own}; of its own is in: {inside}")
        held = replaced(worker.held, chunk, content)
        after = worker._replace(held=held, kept=worker.kept | 1 << chunk)
        self._check_ranges(rank, after)
        return after

    def _check_ranges(self, rank: int, worker: Worker) -> None:
        if not self.config.ranges:
            return
        for chunk, content in enumerate(worker.held):
            if content is None or not self.encodable(worker.held, chunk):
                continue
            variant = self.dequantize_own(rank, worker, chunk).variant
            if any(value.variant != variant for value in content.values):
                self._violated("range", f"w{rank} holds chunk {chunk}, encoded with other results than it holds")

    def named_by_stale(self, streams: Streams, worker: Worker, stale: Packet) -> list[int]:
        """Return the chunks that a STALE makes the worker act for (W4): with stale_match, one or none."""
        if stale.generation != worker.generation and self.config.on("generation_worker"):
            return []
        addresses = self.addresses(streams, worker.generation)
        chunks = []
        for position in self.waiting(streams, worker):
            address = addresses[position]
            exact = address.round == stale.round or not self.config.on("stale_match")
            if address[:2] == (stale.slot, stale.version) and exact:
                chunks.append(streams[worker.generation][position])
        return chunks

    def fill_with_zeros(self, worker: Worker, chunk: int) -> Worker:
        """Settle on a STALE (without stale_fetch)."""
        return worker._replace(held=replaced(worker.held, chunk, ZEROS))

    # ---- serving ------------------------------------------------------------------------------------

    def serves(self, peer: Worker, asker: Worker, chunk: int) -> Content | None:
        """Return what a peer answers to a FETCH (R1), or None."""
        absent = peer.life is Life.DOWN or (peer.generation != asker.generation and self.config.on("fetch_generation"))
        return None if absent or not peer.kept >> chunk & 1 else peer.held[chunk]

    def droppable(self, streams: Streams, rank: int, worker: Worker, members: int) -> int:
        """Return the bitmap of the results that the worker may stop to keep now (R2, R3).

        `members` is the bitmap of the workers of its generation.
        """
        if worker.life is Life.DOWN or not worker.kept:
            return 0
        if not self.config.on("lease_barrier") and None not in worker.held:
            return worker.kept
        positions = [p for p, chunk in enumerate(streams[worker.generation]) if worker.kept >> chunk & 1]
        return sum(
            1 << streams[worker.generation][p] for p in positions if self._may_drop(streams, rank, worker, members, p)
        )

    def _may_drop(self, streams: Streams, rank: int, worker: Worker, members: int, position: int) -> bool:
        stream, origin = streams[worker.generation], self.config.origin
        number = origin[stream[position]][0]
        if self.config.on("retain"):
            return not members & ~self._proved(streams, rank, worker, position)
        if self.config.retain_by == "norm":
            return any(origin[chunk] == (number + 1, 0) and worker.held[chunk] is not None for chunk in stream)
        return all(worker.held[chunk] is not None for chunk in stream if origin[chunk][0] == number)

    def _proved(self, streams: Streams, rank: int, worker: Worker, position: int) -> int:
        """Return who is known to hold a position: the contributors of later results of its slot."""
        stream, addresses = streams[worker.generation], self.addresses(streams, worker.generation)
        proved = 1 << rank
        for later in range(position + 1, len(stream)):
            content = worker.held[stream[later]]
            if content is not None and addresses[later].slot == addresses[position].slot:
                proved |= content.contributors
        return proved

    def _violated(self, kind: str, text: str) -> None:
        if kind in self.config.checks:
            raise RuleError(kind, text)
