# SPDX-License-Identifier: Apache-2.0
"""The switch in Python: the oracle of the tests of data planes and workers.

    decision.decide, decide_at_leaf  the protocol's table: tag, seen, ctr, contributors
    leaf.decide_on_result            the same for a RESULT of a leaf's parent, and decide_on_stale for its STALE
    Aggregator.receive               one datagram: admission, table, lanes, replies as header and payload
    frame_aggregator.FrameAggregator the same for whole frames, with plain forwarding and exact reply frames

Rules (the table's own are in decision.py, the checks in admission.py)
    S1  A packet belongs to the job whose generation it names, or to no job.
    Copy index = (slot_base + slot) * 2 + (round & 1).
    Registers outlive jobs: a new job finds the values of the last one.
    Replies carry op, slot, round, generation and count of the packet that caused them, and the receiver's rank.
    A packet to a parent carries the flags of the packet that caused it, and the leaf's number.
    Lanes go up and down in a tree: codes become lanes at the first switch, and their op does not change.
    Finished sums of LOOKUP_ADD_LOOKUP4, 3 and 2 are looked up again: RESULT carries codes, slots and PARTIAL sums.
        The root looks up, each time anew. A leaf keeps the codes of its parent's RESULT as lanes, and packs them.
    STATE carries op, round, contributors and state of the copy that the PROBE's round names by its parity, if that
        copy has the PROBE's generation. A PROBE changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum_oracle.admission import AdmittedPacket, Packet, Source, admit, read_header
from hopsum_oracle.decision import CLOSED, FINAL, Copy, Decision, Reply, Update, decide, decide_at_leaf, is_new
from hopsum_oracle.leaf import decide_on_result, decide_on_stale
from hopsum_oracle.registers import Registers, look_up
from hopsum_oracle.switch_config import AggregatorConfig, JobConfig, LeafConfig, ParentConfig, WorkerConfig
from hopsum_wire import HOPSUM_BYTES, Drop, Event, Flag, Header, Kind, State
from hopsum_wire.payload import lanes as lanes_of
from hopsum_wire.payload import pack_codes, requantize, shape_of

__all__ = [
    "Aggregator",
    "AggregatorConfig",
    "JobConfig",
    "LeafConfig",
    "OutputPacket",
    "PacketOutcome",
    "ParentConfig",
    "Registers",
    "WorkerConfig",
]


class OutputPacket(NamedTuple):
    """One packet to one worker, observer, leaf or parent."""

    worker: WorkerConfig
    header: Header
    payload: bytes


@dataclass(frozen=True, slots=True)
class PacketOutcome:
    """All that one packet caused."""

    drop: Drop = Drop.NONE
    """The index into `drops` that was incremented. NONE means that the packet was not dropped."""
    job_index: int = 0
    events: tuple[Event, ...] = ()
    """The indices into the job's counters that were incremented, in order."""
    reply: Reply = Reply.NONE
    outputs: tuple[OutputPacket, ...] = ()
    """The packets that leave. A multicast has one output per child, in the order of the group."""


class Aggregator:
    """A switch, fed with datagrams.

    switch: its address and forwarding. None: the defaults.
    jobs: admitted at once, as by `add_job`.
    registers: None: new ones, all 0.
    """

    def __init__(
        self,
        switch: AggregatorConfig | None = None,
        jobs: Iterable[JobConfig] = (),
        *,
        registers: Registers | None = None,
    ) -> None:
        self.switch = switch or AggregatorConfig()
        self.registers = registers or Registers()
        """The registers, shared and not copied. They may be the registers of a dead job, or garbage."""
        self.jobs: dict[int, JobConfig] = {}
        self.drops: Counter[Drop] = Counter()
        self.job_events: Counter[tuple[int, Event]] = Counter()
        """The counts of each (job_index, event)."""
        for job in jobs:
            self.add_job(job)

    def add_job(self, job: JobConfig) -> None:
        """Admit a generation.

        Raises:
            ValueError: generation, job index or a slot belong to an admitted job. Remove that job first (S1).
        """
        for other in self.jobs.values():
            if other.generation == job.generation or other.job_index == job.job_index:
                raise ValueError(f"generation {job.generation}, job index {job.job_index}: one is taken by {other}")
            apart = other.slot_base + other.slots <= job.slot_base or job.slot_base + job.slots <= other.slot_base
            if not apart:
                raise ValueError(f"slots of generation {job.generation} overlap those of generation {other.generation}")
        self.jobs[job.generation] = job

    def remove_job(self, generation: int) -> None:
        """Forget a generation. Its registers stay as they are. Raises KeyError if it is not admitted."""
        del self.jobs[generation]

    def receive(self, port: int, src_ip: int, src_udp_port: int, payload: bytes | memoryview) -> PacketOutcome:
        """Process one UDP datagram to the service, change registers and counters, and return its outcome.

        port: the switch port at which it arrived. src_ip, src_udp_port: its source address.
        """
        header = read_header(payload)
        if header is None:
            return self._dropped(Drop.TRUNCATED)
        source = Source(port, src_ip, src_udp_port)
        return self._process(source, header, payload, len(payload) == HOPSUM_BYTES + header.length)

    def _process(self, source: Source, header: Header, data: bytes | memoryview, lengths_fit: bool) -> PacketOutcome:
        payload = np.frombuffer(data, np.uint8)[HOPSUM_BYTES : HOPSUM_BYTES + header.length]
        verdict = admit(Packet(source, header, payload, lengths_fit), self.jobs)
        if isinstance(verdict, Drop):
            return self._dropped(verdict)
        return self._probe(verdict) if header.kind == Kind.PROBE else self._slot(verdict)

    def _dropped(self, reason: Drop) -> PacketOutcome:
        self.drops[reason] += 1
        return PacketOutcome(drop=reason)

    def _probe(self, admitted: AdmittedPacket) -> PacketOutcome:
        asked, job, index = admitted.packet.header, admitted.job, _index(admitted)
        copy = self.registers.copies[index]
        base = replace(asked, kind=Kind.STATE, held=0, contributors=0, count=State.EMPTY)
        if copy.generation == asked.generation:
            # Every other ctr is a number of contributions.
            state = {FINAL: State.FINAL, CLOSED: State.CLOSED}.get(copy.ctr, State.COLLECTING)
            op = self.registers.ops[index]
            base = replace(base, op=op, held=copy.round, contributors=copy.contributors, count=state)
        self.job_events[job.job_index, Event.PROBED] += 1
        outputs = (OutputPacket(admitted.worker, base, b""),)
        return PacketOutcome(Drop.NONE, job.job_index, (Event.PROBED,), Reply.NONE, outputs)

    def _slot(self, admitted: AdmittedPacket) -> PacketOutcome:
        header, job, index = admitted.packet.header, admitted.job, _index(admitted)
        copy, update = self.registers.copies[index], _update(header)
        if header.kind != Kind.STALE:
            # S3: a new round brings its operation. A packet of another operation in the same round is refused
            # (OP_MISMATCH).
            if is_new(copy, update):
                self.registers.ops[index] = header.op
            elif header.round == copy.round and header.op != self.registers.ops[index]:
                return self._dropped(Drop.OP_MISMATCH)
        decision = _decide(header.kind, job, copy, update)
        # Tag before values, as in the P4 program: both happen in one packet, so no other packet sees the state in
        # between.
        self.registers.copies[index] = decision.copy
        self.registers.apply(index, header.op, decision.lanes, _lanes(admitted))
        self.job_events.update((job.job_index, event) for event in decision.events)
        # The round is complete, and nobody hears of it: the controller makes no such job.
        if _lacks_thresholds(job, header.op, decision.reply):
            self.drops[Drop.NO_TABLE] += 1
            return PacketOutcome(Drop.NO_TABLE, job.job_index, decision.events)
        outputs = self._replies(admitted, decision, index)
        return PacketOutcome(Drop.NONE, job.job_index, decision.events, decision.reply, outputs)

    def _replies(self, admitted: AdmittedPacket, decision: Decision, index: int) -> tuple[OutputPacket, ...]:
        packet, reply = admitted.packet.header, decision.reply
        if reply is Reply.NONE:
            return ()
        if reply is Reply.STALE_TO_ALL:
            return tuple(
                OutputPacket(child, replace(packet, worker=child.rank), b"") for child in admitted.job.children
            )
        base = replace(packet, flags=0, held=0, contributors=decision.copy.contributors)
        if reply is Reply.STALE_TO_SENDER:
            header = replace(base, kind=Kind.STALE, held=decision.copy.round, length=0)
            return (OutputPacket(admitted.worker, header, b""),)
        values = self.registers.values[index]
        if reply is Reply.PARTIAL_TO_PARENT:
            assert admitted.job.parent is not None, "only a leaf's copies close"
            receivers: tuple[WorkerConfig, ...] = (admitted.job.parent,)
            base = replace(base, kind=Kind.PARTIAL, flags=packet.flags, length=values.size)
        else:
            receivers = admitted.job.children if reply is Reply.RESULT_TO_ALL else (admitted.worker,)
            values = _result(admitted.job, packet.op, values)
            base = replace(base, kind=Kind.RESULT, length=values.size)
        payload = values.tobytes()
        return tuple(OutputPacket(receiver, replace(base, worker=receiver.rank), payload) for receiver in receivers)


def _update(header: Header) -> Update:
    """Return the facts about a packet that the tables need."""
    bit = 1 << header.worker if header.kind in (Kind.UPDATE, Kind.PARTIAL) else 0
    # An UPDATE stands for its own worker. PARTIAL and RESULT name the workers in their sum (T1, T4).
    inside = 0 if header.kind == Kind.UPDATE else header.contributors
    return Update(header.generation, header.round, bit, bool(header.flags & Flag.FLUSH), inside)


def _decide(kind: int, job: JobConfig, copy: Copy, update: Update) -> Decision:
    if kind == Kind.STALE:
        return decide_on_stale(copy)
    if kind == Kind.RESULT:
        return decide_on_result(copy, update)
    table = decide if job.parent is None else decide_at_leaf
    return table(copy, update, quorum=job.quorum, min_quorum=job.min_quorum)


def _lanes(admitted: AdmittedPacket) -> NDArray[np.uint8]:
    """Return the lanes that a packet carries, as they came, looked up or unpacked, as bytes."""
    header, arrived = admitted.packet.header, admitted.packet.payload
    if header.kind == Kind.RESULT:
        return lanes_of(header.op, arrived).view(np.uint8)
    table = admitted.job.table_of(header.op) if header.kind == Kind.UPDATE else None
    return arrived if table is None else look_up(header.op, table, arrived, admitted.job.code_group)


def _result(job: JobConfig, op: int, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the payload of a RESULT: the values of a copy, or codes."""
    shape = shape_of(op)
    if not shape.down_codes:
        return values
    thresholds = job.thresholds_of(op)
    # At a leaf the values are the codes that came from the parent.
    if job.parent is None:
        assert thresholds is not None, "`_slot` drops such a packet"
        values = requantize(values, thresholds)
    return pack_codes(values, shape.lane_bits, bits=shape.code_bits)


def _lacks_thresholds(job: JobConfig, op: int, reply: Reply) -> bool:
    is_result = reply in (Reply.RESULT_TO_ALL, Reply.RESULT_TO_SENDER)
    return is_result and shape_of(op).down_codes and job.parent is None and job.thresholds_of(op) is None


def _index(admitted: AdmittedPacket) -> int:
    """Return which copy a packet means."""
    header = admitted.packet.header
    # Two copies for each slot: rounds of one parity meet in one copy, so the round before stays answerable.
    return (admitted.job.slot_base + header.slot) * 2 + (header.round & 1)
