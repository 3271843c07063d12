# SPDX-License-Identifier: Apache-2.0
"""The switch in Python: the oracle that data planes and workers are tested against.

    decision.decide          the protocol's table: tag, seen, ctr, contributors
    Aggregator.receive       one datagram: admission, table, lanes, replies as header and payload
    FrameAggregator          the same for whole frames, with plain forwarding and exact reply frames

Rules (the table's own are in decision.py, the checks in admission.py)
    S1  A packet belongs to the job whose epoch it names, or to nobody.
    Copy index = (slot_base + slot) * 2 + (round & 1).
    Registers outlive jobs: a new job finds what the last one left.
    Replies carry op, slot, round, epoch and count of the packet that caused them, and the receiver's rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hopsum.protocol.admission import Admitted, Packet, Source, admit, read_header
from hopsum.protocol.decision import Decision, Reply, Update, decide, is_new
from hopsum.protocol.registers import Registers, look_up
from hopsum.protocol.switch_config import JobConfig, SwitchConfig, WorkerConfig
from hopsum.wire import HOPSUM_BYTES, HOPSUM_UDP_PORT, Drop, Event, Flag, Header, Kind, Op
from hopsum.wire._layout import (
    ETHERNET_BYTES,
    ETHERNET_FIELDS,
    ETHERTYPE_IPV4,
    IPV4_BYTES,
    IPV4_FIELDS,
    PROTO_UDP,
    UDP_BYTES,
    UDP_FIELDS,
)
from hopsum.wire.fields import unpack_fields
from hopsum.wire.frames import FramePath, build_frame, ipv4_checksum

__all__ = [
    "Aggregator",
    "FrameAggregator",
    "JobConfig",
    "Outcome",
    "Output",
    "Registers",
    "SwitchConfig",
    "WorkerConfig",
]


class Output(NamedTuple):
    """One packet to one worker."""

    worker: WorkerConfig
    header: Header
    payload: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that one packet caused."""

    drop: Drop = Drop.NONE
    """Index into `drops` that was bumped; NONE: not dropped, and nothing bumped."""
    job_index: int = 0
    events: tuple[Event, ...] = ()
    """Indices into the job's counters that were bumped, in order."""
    reply: Reply = Reply.NONE
    outputs: tuple[Output, ...] = ()
    """A multicast is one output per worker, in the order of the group."""


class Aggregator:
    """A root switch, fed with datagrams."""

    def __init__(
        self,
        switch: SwitchConfig | None = None,
        jobs: Iterable[JobConfig] = (),
        *,
        registers: Registers | None = None,
    ) -> None:
        self.switch = switch or SwitchConfig()
        self.registers = registers or Registers()
        """Shared, not copied: pass those of a dead job, or garbage, to start from them."""
        self.jobs: dict[int, JobConfig] = {}
        self.drops: Counter[Drop] = Counter()
        self.job_events: Counter[tuple[int, Event]] = Counter()
        """Keyed by (job_index, event)."""
        for job in jobs:
            self.add_job(job)

    def add_job(self, job: JobConfig) -> None:
        """Admit an epoch.

        Raises:
            ValueError: epoch, job index or a slot belong to an admitted job; remove that one first (S1).
        """
        for other in self.jobs.values():
            if other.epoch == job.epoch or other.job_index == job.job_index:
                raise ValueError(f"epoch {job.epoch}, job index {job.job_index}: one is taken by {other}")
            apart = other.slot_base + other.slots <= job.slot_base or job.slot_base + job.slots <= other.slot_base
            if not apart:
                raise ValueError(f"slots of epoch {job.epoch} overlap those of epoch {other.epoch}")
        self.jobs[job.epoch] = job

    def remove_job(self, epoch: int) -> None:
        """Forget an epoch; its registers stay as they are. Raises KeyError if it is not admitted."""
        del self.jobs[epoch]

    def receive(self, port: int, src_ip: int, src_udp_port: int, payload: bytes | memoryview) -> Outcome:
        """Take one UDP datagram that is addressed to the service."""
        header = read_header(payload)
        if header is None:
            return self._dropped(Drop.TRUNCATED)
        source = Source(port, src_ip, src_udp_port)
        return self._process(source, header, payload, len(payload) == HOPSUM_BYTES + header.length)

    def _process(self, source: Source, header: Header, data: bytes | memoryview, lengths_fit: bool) -> Outcome:
        payload = np.frombuffer(data, np.uint8)[HOPSUM_BYTES : HOPSUM_BYTES + header.length]
        verdict = admit(Packet(source, header, payload, lengths_fit), self.switch, self.jobs)
        return self._dropped(verdict) if isinstance(verdict, Drop) else self._slot(verdict)

    def _dropped(self, reason: Drop) -> Outcome:
        self.drops[reason] += 1
        return Outcome(drop=reason)

    def _slot(self, admitted: Admitted) -> Outcome:
        header, job = admitted.packet.header, admitted.job
        index = (job.slot_base + header.slot) * 2 + (header.round & 1)
        copy = self.registers.copies[index]
        update = Update(header.epoch, header.round, 1 << header.worker, bool(header.flags & Flag.FLUSH))
        if is_new(copy, update):
            self.registers.ops[index] = header.op
        elif header.round == copy.round and header.op != self.registers.ops[index]:
            return self._dropped(Drop.OP_MISMATCH)
        decision = decide(copy, update, quorum=job.quorum, min_quorum=job.min_quorum)
        self.registers.copies[index] = decision.copy
        arrived = admitted.packet.payload
        if header.op == Op.LOOKUP_ADD8 and job.table is not None:
            arrived = look_up(job.table, arrived)
        self.registers.apply(index, header.op, decision.lanes, arrived)
        self.job_events.update((job.job_index, event) for event in decision.events)
        outputs = self._replies(admitted, decision, index)
        return Outcome(Drop.NONE, job.job_index, decision.events, decision.reply, outputs)

    def _replies(self, admitted: Admitted, decision: Decision, index: int) -> tuple[Output, ...]:
        if decision.reply is Reply.NONE:
            return ()
        base = replace(admitted.packet.header, flags=0, held=0, contributors=decision.copy.contributors)
        if decision.reply is Reply.STALE_TO_SENDER:
            header = replace(base, kind=Kind.STALE, held=decision.copy.round, length=0)
            return (Output(admitted.worker, header, b""),)
        values = self.registers.values[index].tobytes()
        to_all = decision.reply is Reply.RESULT_TO_ALL
        receivers = admitted.job.workers if to_all else (admitted.worker,)
        return tuple(
            Output(worker, replace(base, kind=Kind.RESULT, worker=worker.rank, length=len(values)), values)
            for worker in receivers
        )


class FrameAggregator(Aggregator):
    """A root switch, fed with Ethernet frames."""

    def receive_frame(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Take one frame and return the frames that leave, as (port, frame), in the order of emission."""
        return self.explain_frame(port, frame)[1]

    def explain_frame(self, port: int, frame: bytes) -> tuple[Outcome, list[tuple[int, bytes]]]:
        """Take one frame as `receive_frame` does, and return its outcome as well."""
        lower = _Lower.parse(frame)
        if lower is None or lower.ipv4["dst"] != self.switch.ip:
            return self._forward(port, frame)
        outcome = self._service(port, lower, frame)
        return outcome, [(output.worker.port, self._reply_frame(output)) for output in outcome.outputs]

    def _service(self, port: int, lower: _Lower, frame: bytes) -> Outcome:
        data = memoryview(frame)[ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES :]
        header = read_header(data)
        if header is None:
            return self._dropped(Drop.TRUNCATED)
        if ipv4_checksum(frame[ETHERNET_BYTES : ETHERNET_BYTES + IPV4_BYTES]):
            return self._dropped(Drop.BAD_CHECKSUM)
        # Bytes behind the datagram (an Ethernet trailer) are nobody's: only the three length fields must fit.
        lengths_fit = (
            lower.ipv4["total_length"] == IPV4_BYTES + lower.udp["length"]
            and lower.udp["length"] == UDP_BYTES + HOPSUM_BYTES + header.length
        )
        source = Source(port, lower.ipv4["src"], lower.udp["src_port"])
        return self._process(source, header, data, lengths_fit)

    def _forward(self, port: int, frame: bytes) -> tuple[Outcome, list[tuple[int, bytes]]]:
        """Plain layer-2 forwarding; a frame without a whole Ethernet header has no destination."""
        destination = int.from_bytes(frame[:6], "big") if len(frame) >= ETHERNET_BYTES else 0
        if destination in self.switch.forwarding:
            return Outcome(), [(self.switch.forwarding[destination], frame)]
        if destination in self.switch.floods:
            return Outcome(), [(out, frame) for out in self.switch.floods[destination] if out != port]
        return self._dropped(Drop.NO_ROUTE), []

    def _reply_frame(self, output: Output) -> bytes:
        path = FramePath(
            src_mac=self.switch.mac,
            dst_mac=output.worker.mac,
            src_ip=self.switch.ip,
            dst_ip=output.worker.ip,
            src_port=HOPSUM_UDP_PORT,
            dst_port=output.worker.udp_port,
        )
        return build_frame(path, output.header, output.payload)


class _Lower(NamedTuple):
    """IPv4 and UDP header of an unfragmented UDP packet to the service's port."""

    ipv4: dict[str, int]
    udp: dict[str, int]

    @classmethod
    def parse(cls, frame: bytes) -> _Lower | None:
        """Return the headers, or None if the frame is anything else."""
        if len(frame) < ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES:
            return None
        if unpack_fields(ETHERNET_FIELDS, frame)["ethertype"] != ETHERTYPE_IPV4:
            return None
        ipv4 = unpack_fields(IPV4_FIELDS, frame[ETHERNET_BYTES:])
        whole = not ipv4["flags"] & 1 and ipv4["fragment_offset"] == 0
        plain = (ipv4["version"], ipv4["ihl"], ipv4["protocol"]) == (4, IPV4_BYTES // 4, PROTO_UDP)
        udp = unpack_fields(UDP_FIELDS, frame[ETHERNET_BYTES + IPV4_BYTES :])
        return cls(ipv4, udp) if whole and plain and udp["dst_port"] == HOPSUM_UDP_PORT else None
