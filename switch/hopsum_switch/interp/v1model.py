# SPDX-License-Identifier: Apache-2.0
"""The v1model architecture: the steps between the blocks of a program.

Per received frame: metadata is set, the parser runs, ingress runs. Then, in this order:

1. clone(I2E): the frame as received is parsed again. A copy of that goes to egress for each replica of the
   session (none if there is no such session).
2. digest: the members of the digest of the last call, as ingress left them, go to the controller.
3. resubmit: the frame as received starts again. Nothing else happens to the packet.
4. The packet goes to egress:

| mcast_grp | egress_spec | result |
|---|---|---|
| not 0 | any | one copy per replica of the group (none if the group is unknown) |
| 0 | drop port (511) | dropped |
| 0 | other | one packet to that port |

After egress, in this order:

1. clone(E2E): a copy of the packet as egress left it goes to egress again for each replica of the session.
2. A packet with 511 in egress_spec is dropped.
3. Checksums are updated and the deparser writes the frame.
4. recirculate: the frame starts again, without the cut by truncate(). Otherwise it leaves, cut.

A packet that is cloned, resubmitted or recirculated starts with all metadata 0, also the ingress port and the
timestamps, but for the preserved fields, instance_type and packet_length. instance_type is 0 for a packet from a
port and for one that goes to a single port, 1 and 2 for copies made by clone in ingress and egress, 4 for a
recirculated, 5 for a replicated and 6 for a resubmitted packet.

One received frame may cause MAX_TURNS resubmits, recirculations and egress clones in all. A packet that asks for
more is dropped and counted as "turns". Copies of one packet are processed in the order in which they were made.

One received frame may take MAX_STEPS steps in loops of actions and cycles of the parser, all its copies and turns
together (`program.frame_budget`). The copy that needs one more step is dropped with all unsent copies of the frame,
and the drop is counted once as "steps". Writes to registers and counters stay.

Queues are empty: time does not pass between ingress and egress. A packet that chooses a priority other than 0 is
dropped, since there is one queue.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

from ..program.frame_budget import OUT_OF_STEPS
from ..program.ir import DeparserIR, DigestIR, ProgramIR
from ..program.ir_expressions import HeaderIR
from ..state.copies import PortCopy
from ..state.program_state import ProgramState
from ..state.randomness import RandomStream
from .calculations import Calculations, Checksum
from .expressions import compile_tuple
from .observed import expression_writer, observed_counters, observed_registers
from .observer import Observer
from .packet import NO_LIMIT, PacketState, Slots, ValueLayout
from .parser import Parser
from .primitives import DROP_PORT, Environment, OutOfStepsError
from .table_nodes import BoundControl

# The deparser: valid headers in order, then the bytes that the parser did not read.


class Deparser:
    """The deparser of a program, ready to run on packets."""

    def __init__(self, ir: DeparserIR, layout: ValueLayout, checksums: list[Checksum]) -> None:
        self._checksums = checksums
        self._headers = [
            (layout.valid(h), h.bits // 8, _fields(h), None if h.variable is None else h.variable.length.slot)
            for h in ir.order
        ]

    def run(self, packet: PacketState) -> bytes:
        """Update the checksums in the packet, and return the packet's frame, not cut by truncate()."""
        for checksum in self._checksums:
            checksum.update(packet)
        values, parts = packet.values, []
        for valid, size, fields, length in self._headers:
            if values[valid]:
                word, more = 0, 0 if length is None else values[length]
                for slot, bits, mask in fields:
                    word = word << (more if bits is None else bits) | values[slot] & mask
                parts.append(word.to_bytes(size + more // 8, "big"))
        parts.append(packet.data)
        return b"".join(parts)


def _fields(header: HeaderIR) -> list[tuple[int, int | None, int]]:
    """Return (slot, width, mask) of the fields in the frame. A variable width is None."""
    variable = None if header.variable is None else header.variable.field
    return [(f.slot, None if f == variable else f.bits, (1 << f.bits) - 1) for f in header.wire]


# A program that resubmits or recirculates for ever would otherwise keep the switch in one frame.
MAX_TURNS = 256
TOO_MANY_TURNS = "turns"


class Instance(IntEnum):
    """Values of the metadata field instance_type, as bmv2 numbers them."""

    NORMAL = 0
    INGRESS_CLONE = 1
    EGRESS_CLONE = 2
    RECIRCULATED = 4
    REPLICATION = 5
    RESUBMITTED = 6


_QUEUEING = (
    "queueing_metadata.enq_timestamp",
    "queueing_metadata.enq_qdepth",
    "queueing_metadata.deq_timedelta",
    "queueing_metadata.deq_qdepth",
)


@dataclass(slots=True)
class _Work:
    """The outstanding work of one received frame."""

    arriving: deque[PacketState] = field(default_factory=deque)
    leaving: deque[tuple[PacketState, int]] = field(default_factory=deque)
    outputs: list[tuple[int, bytes]] = field(default_factory=list)
    turns: int = 0


class Interpreter:
    """A program bound to its state."""

    def __init__(self, state: ProgramState, rng: RandomStream, observer: Observer | None = None) -> None:
        program, tables = state.program, state.tables
        self._layout = ValueLayout(program)
        calculations = Calculations(self._layout)
        environment = Environment(self._layout, state, calculations, rng, observer)
        if observer is not None:
            environment.counters = observed_counters(program, tables, state.counters, observer)
            environment.registers = observed_registers(program, state.registers, observer)
        bound = [(c, Checksum(c, self._layout, calculations)) for c in program.checksums]
        self._state = state
        self._program = program
        self._observer = observer
        self._metadata = _Metadata(program)
        self._multicast = state.multicast
        self._clones = state.clones
        self._digests = state.digests
        self._members = {
            each.name: compile_tuple(each.members, each.bits, expression_writer(environment, each.source), each.name)
            for each in program.digests.values()
        }
        self._steps = environment.steps
        self._parser = Parser(program, environment)
        self._verified = [checksum for ir, checksum in bound if ir.verify]
        self._verified_names = [ir.name for ir, _ in bound if ir.verify]
        self._ingress = BoundControl(program.ingress, tables, environment)
        self._egress = BoundControl(program.egress, tables, environment)
        self._deparser = Deparser(program.deparser, self._layout, [c for ir, c in bound if ir.update])

    def process(self, port: int, frame: bytes, now_us: int) -> list[tuple[int, bytes]]:
        """Run a received frame. Return (port, frame) for every copy that leaves the switch, in order, for any port."""
        observer = self._observer
        if observer is None:
            return self._process(port, frame, now_us)
        observer.packet_begins(port, frame, now_us)
        outputs = self._process(port, frame, now_us)
        observer.packet_ends()
        return outputs

    def _process(self, port: int, frame: bytes, now_us: int) -> list[tuple[int, bytes]]:
        packet = PacketState(self._layout.initial_values(), frame, port, now_us)
        self._metadata.set(packet.values, "standard_metadata.ingress_port", port)
        self._metadata.set(packet.values, "standard_metadata.packet_length", len(frame))
        self._metadata.set(packet.values, "intrinsic_metadata.ingress_global_timestamp", now_us)
        work = _Work()
        self._steps.refill()
        try:
            self._work_off(packet, work)
        except OutOfStepsError:
            self._state.dropped[OUT_OF_STEPS] += 1
            self._tell_drop(OUT_OF_STEPS)
        return work.outputs

    def _work_off(self, packet: PacketState, work: _Work) -> None:
        self._enter(packet, work)
        # What leaves goes first, so copies are processed in the order in which they were made.
        while work.leaving or work.arriving:
            if work.leaving:
                self._leave(*work.leaving.popleft(), work)
            else:
                self._enter(work.arriving.popleft(), work)

    def _enter(self, packet: PacketState, work: _Work) -> None:
        """Run parser and ingress on a packet, and pass the results on."""
        meta, values, frame = self._metadata, packet.values, packet.data
        error = self._parser.run(packet)
        correct = [checksum.verify(packet) for checksum in self._verified]
        meta.set(values, "standard_metadata.parser_error", error)
        meta.set(values, "standard_metadata.checksum_error", 0 if all(correct) else 1)
        if self._observer is not None:
            self._tell_parsed(self._observer, packet, error, correct)
        self._ingress.run(packet)
        # exit ends a control, not the packet: egress begins anew.
        packet.exited = False
        # The order is that of bmv2: clone, digest, then resubmit or a way to egress.
        if packet.clone is not None:
            session, preserved = packet.clone
            packet.clone = None
            self._send_clones(self._parsed_again(packet, frame, preserved), session, work)
        if packet.digest is not None:
            self._send_digest(packet.digest, values, packet.now_us)
        # Read before the branches: a resubmit restarts the metadata.
        group = meta.get(values, "intrinsic_metadata.mcast_grp")
        if packet.resubmit is not None:
            self._come_round(packet, frame, packet.resubmit, Instance.RESUBMITTED, work)
        # A group goes before egress_spec: a packet that ingress dropped is replicated all the same.
        elif group:
            meta.set(values, "standard_metadata.instance_type", Instance.REPLICATION)
            replicas = self._multicast.replicas(group)
            if self._observer is not None:
                self._observer.multicast(group, replicas)
            self._replicate(packet, replicas, work)
        elif meta.get(values, "standard_metadata.egress_spec") != DROP_PORT:
            meta.set(values, "standard_metadata.instance_type", Instance.NORMAL)
            work.leaving.append((packet, meta.get(values, "standard_metadata.egress_spec")))
        elif self._observer is not None:
            self._observer.dropped("ingress")

    def _leave(self, packet: PacketState, port: int, work: _Work) -> None:
        """Run egress and deparser on a packet."""
        meta, values = self._metadata, packet.values
        if self._observer is not None:
            self._observer.copy_begins(port, meta.get(values, "intrinsic_metadata.egress_rid"))
        if meta.get(values, "intrinsic_metadata.priority") != 0:
            self._tell_drop("priority")
            return
        meta.set_dequeued(values, port, packet.length, packet.now_us)
        self._egress.run(packet)
        # A clone for a session that does not exist takes no turn.
        if packet.clone is not None and self._clones.find(packet.clone[0]) is not None and self._may_turn(work):
            session, preserved = packet.clone
            # The clone has values of its own: those of the packet itself are deparsed below.
            copy = packet.replicate(self._layout)
            self._restart(copy, values, preserved, Instance.EGRESS_CLONE)
            self._send_clones(copy, session, work)
        if meta.get(values, "standard_metadata.egress_spec") == DROP_PORT:
            self._tell_drop("egress")
            return
        # The whole frame: a recirculated packet is not cut by truncate().
        frame = self._deparser.run(packet)
        if packet.recirculate is not None:
            self._come_round(packet, frame, packet.recirculate, Instance.RECIRCULATED, work)
            return
        work.outputs.append((port, frame[: packet.limit]))
        if self._observer is not None:
            self._tell_not_emitted(self._observer, packet)
            self._observer.sent(*work.outputs[-1])

    def _parsed_again(self, packet: PacketState, frame: bytes, preserved: Slots) -> PacketState:
        """Return a copy of a packet as the parser leaves it."""
        # The clone of ingress is the frame as received: it is parsed again, without what ingress changed.
        copy = PacketState(self._layout.initial_values(), frame, packet.port, packet.now_us)
        self._metadata.set(copy.values, "standard_metadata.ingress_port", packet.port)
        self._parser.run(copy)
        self._restart(copy, packet.values, preserved, Instance.INGRESS_CLONE)
        return copy

    def _come_round(self, packet: PacketState, frame: bytes, preserved: Slots, kind: Instance, work: _Work) -> None:
        """Let a frame start again."""
        if self._may_turn(work):
            if self._observer is not None:
                self._observer.starts_again(kind.name.lower())
            again = PacketState(self._layout.initial_values(), frame, packet.port, packet.now_us)
            self._restart(again, packet.values, preserved, kind)
            self._metadata.set(again.values, "standard_metadata.packet_length", len(frame))
            work.arriving.append(again)

    def _restart(self, packet: PacketState, source: list[int], preserved: Slots, kind: Instance) -> None:
        """Reset the metadata of a packet except the preserved fields."""
        self._layout.reset_metadata(packet.values, source, preserved)
        self._metadata.set(packet.values, "standard_metadata.instance_type", kind)

    def _may_turn(self, work: _Work) -> bool:
        # Turns are counted for the received frame with all its copies, so copies cannot multiply them.
        if work.turns == MAX_TURNS:
            self._state.dropped[TOO_MANY_TURNS] += 1
            self._tell_drop(TOO_MANY_TURNS)
            return False
        work.turns += 1
        return True

    def _send_digest(self, digest: DigestIR, values: list[int], now_us: int) -> None:
        sample = self._members[digest.name](values)
        if self._observer is not None:
            self._observer.digest_sent(digest, sample)
        self._digests.learn(digest.name, sample, now_us)

    def _send_clones(self, packet: PacketState, number: int, work: _Work) -> None:
        session = self._clones.find(number)
        if self._observer is not None:
            self._observer.cloned(number, () if session is None else session.replicas)
        if session is not None:
            self._replicate(packet, session.replicas, work, session.length or NO_LIMIT)

    def _replicate(
        self, packet: PacketState, replicas: tuple[PortCopy, ...], work: _Work, limit: int = NO_LIMIT
    ) -> None:
        for replica in replicas:
            # Egress of one replica must not change the values that the next one starts with.
            copy = packet.replicate(self._layout)
            copy.limit = limit
            self._metadata.set(copy.values, "intrinsic_metadata.egress_rid", replica.instance)
            work.leaving.append((copy, replica.port))

    def _tell_drop(self, reason: str) -> None:
        if self._observer is not None:
            self._observer.dropped(reason)

    def _tell_not_emitted(self, observer: Observer, packet: PacketState) -> None:
        emitted = {header.name for header in self._program.deparser.order}
        headers = [h for h in self._program.headers.values() if not h.metadata and h.name not in emitted]
        if missing := [h.name for h in headers if packet.values[self._layout.valid(h)]]:
            observer.not_emitted(missing)

    def _tell_parsed(self, observer: Observer, packet: PacketState, error: int, correct: list[bool]) -> None:
        headers = [h for h in self._program.headers.values() if not h.metadata]
        valid = [h.name for h in headers if packet.values[self._layout.valid(h)]]
        names = {number: name for name, number in self._program.errors.items()}
        wrong = [name for name, right in zip(self._verified_names, correct, strict=True) if not right]
        observer.parsed(names.get(error, "NoError" if error == 0 else f"error {error}"), valid, wrong)


class _Metadata:
    """The architecture's metadata fields by the architecture's names. Fields that a program lacks are skipped."""

    def __init__(self, program: ProgramIR) -> None:
        # Slot and mask are found here once: every packet asks for a dozen of them.
        self._places = {name: (field.slot, (1 << field.bits) - 1) for name, field in program.standard.items()}
        # As in bmv2: a program that lacks one of the queueing fields gets none of them.
        self._has_queue = all(name in self._places for name in _QUEUEING)

    def set(self, values: list[int], name: str, value: int) -> None:
        if name in self._places:
            slot, mask = self._places[name]
            values[slot] = value & mask

    def get(self, values: list[int], name: str) -> int:
        return values[self._places[name][0]] if name in self._places else 0

    def set_dequeued(self, values: list[int], port: int, length: int, now_us: int) -> None:
        if self._has_queue:
            for name, value in zip(_QUEUEING, (now_us, 0, 0, 0), strict=True):
                self.set(values, name, value)
        self.set(values, "intrinsic_metadata.egress_global_timestamp", now_us)
        self.set(values, "standard_metadata.egress_port", port)
        # Anything but the drop port: a program that drops in egress sets that itself.
        self.set(values, "standard_metadata.egress_spec", DROP_PORT + 1)
        self.set(values, "standard_metadata.packet_length", length)
