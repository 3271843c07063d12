# SPDX-License-Identifier: Apache-2.0
"""The v1model architecture: what happens between the blocks of a program.

Per received frame: metadata is set, the parser runs, ingress runs. Then, in this order:

| mcast_grp | egress_spec | result |
|---|---|---|
| not 0 | any | one copy per replica of the group (none if the group is unknown) |
| 0 | drop port (511) | dropped |
| 0 | other | one packet to that port |

Each copy runs egress and is dropped if egress leaves 511 in egress_spec; else checksums are updated and the
deparser emits it. Queues are empty: time does not pass between ingress and egress. A packet that chooses a
priority other than 0 is dropped, since there is one queue.
"""

from __future__ import annotations

from ..program.ir import Program
from ..program.ir_expressions import FieldIR
from ..state.counters import CounterStore
from ..state.multicast import MulticastStore
from ..state.randomness import RandomStream
from ..state.registers import RegisterStore
from ..state.tables import TableStore
from .calculations import Calculations
from .checksums import Checksum
from .deparser import Deparser
from .operations import DROP_PORT, Environment
from .packet import Layout, PacketState
from .parser import Parser
from .tables import Control

INSTANCE_NORMAL = 0
INSTANCE_REPLICATION = 5

_QUEUEING = (
    "queueing_metadata.enq_timestamp",
    "queueing_metadata.enq_qdepth",
    "queueing_metadata.deq_timedelta",
    "queueing_metadata.deq_qdepth",
)


class Interpreter:
    """A program bound to its state."""

    def __init__(
        self,
        program: Program,
        tables: TableStore,
        multicast: MulticastStore,
        counters: CounterStore,
        registers: RegisterStore,
        rng: RandomStream,
    ) -> None:
        self._layout = Layout(program)
        calculations = Calculations(self._layout)
        environment = Environment(self._layout, counters, registers, calculations, rng)
        bound = [(c, Checksum(c, self._layout, calculations)) for c in program.checksums]
        self._metadata = _Metadata(program)
        self._multicast = multicast
        self._parser = Parser(program, environment)
        self._verified = [checksum for ir, checksum in bound if ir.verify]
        self._ingress = Control(program.ingress, tables, environment)
        self._egress = Control(program.egress, tables, environment)
        self._deparser = Deparser(program.deparser, self._layout, [c for ir, c in bound if ir.update])

    def process(self, port: int, frame: bytes, now_us: int) -> list[tuple[int, bytes]]:
        """Return (port, frame) for every copy of a received frame that leaves the switch, in order."""
        meta = self._metadata
        packet = PacketState(self._layout.fresh(), frame)
        values = packet.values
        meta.set_received(values, port, len(frame), now_us)
        error = self._parser.run(packet)
        correct = [checksum.verify(packet) for checksum in self._verified]
        meta.set_parsed(values, error, 0 if all(correct) else 1)
        self._ingress.run(packet)
        packet.exited = False
        group = meta.multicast_group(values)
        if group:
            return self._replicate(packet, group, now_us)
        target = meta.egress_spec(values)
        if target == DROP_PORT:
            return []
        meta.set_instance_type(values, INSTANCE_NORMAL)
        return self._emit(packet, target, now_us)

    def _replicate(self, packet: PacketState, group: int, now_us: int) -> list[tuple[int, bytes]]:
        self._metadata.set_instance_type(packet.values, INSTANCE_REPLICATION)
        outputs = []
        for replica in self._multicast.replicas(group):
            copy = packet.replicate(self._layout)
            self._metadata.set_replica(copy.values, replica.instance)
            outputs += self._emit(copy, replica.port, now_us)
        return outputs

    def _emit(self, packet: PacketState, port: int, now_us: int) -> list[tuple[int, bytes]]:
        meta, values = self._metadata, packet.values
        if meta.priority(values) != 0:
            return []
        meta.set_dequeued(values, port, packet.length, now_us)
        self._egress.run(packet)
        if meta.egress_spec(values) == DROP_PORT:
            return []
        return [(port, self._deparser.run(packet))]


class _Metadata:
    """The architecture's side of the metadata fields; fields that a program lacks are skipped."""

    def __init__(self, program: Program) -> None:
        names = program.standard
        self._ingress_port = names["standard_metadata.ingress_port"]
        self._egress_port = names["standard_metadata.egress_port"]
        self._egress_spec = names["standard_metadata.egress_spec"]
        self._packet_length = names["standard_metadata.packet_length"]
        self._instance_type = names["standard_metadata.instance_type"]
        self._parser_error = names.get("standard_metadata.parser_error")
        self._checksum_error = names.get("standard_metadata.checksum_error")
        self._ingress_time = names.get("intrinsic_metadata.ingress_global_timestamp")
        self._egress_time = names.get("intrinsic_metadata.egress_global_timestamp")
        self._group = names.get("intrinsic_metadata.mcast_grp")
        self._instance = names.get("intrinsic_metadata.egress_rid")
        self._priority = names.get("intrinsic_metadata.priority")
        queueing = [names.get(name) for name in _QUEUEING]
        self._queueing = queueing if None not in queueing else [None] * len(queueing)

    def set_received(self, values: list[int], port: int, length: int, now_us: int) -> None:
        _set(values, self._ingress_port, port)
        _set(values, self._packet_length, length)
        _set(values, self._ingress_time, now_us)

    def set_parsed(self, values: list[int], parser_error: int, checksum_error: int) -> None:
        _set(values, self._parser_error, parser_error)
        _set(values, self._checksum_error, checksum_error)

    def set_instance_type(self, values: list[int], kind: int) -> None:
        _set(values, self._instance_type, kind)

    def set_replica(self, values: list[int], instance: int) -> None:
        _set(values, self._instance, instance)

    def set_dequeued(self, values: list[int], port: int, length: int, now_us: int) -> None:
        for field, value in zip(self._queueing, (now_us, 0, 0, 0), strict=True):
            _set(values, field, value)
        _set(values, self._egress_time, now_us)
        _set(values, self._egress_port, port)
        _set(values, self._egress_spec, DROP_PORT + 1)  # anything but the drop port
        _set(values, self._packet_length, length)

    def egress_spec(self, values: list[int]) -> int:
        return values[self._egress_spec.slot]

    def multicast_group(self, values: list[int]) -> int:
        return 0 if self._group is None else values[self._group.slot]

    def priority(self, values: list[int]) -> int:
        return 0 if self._priority is None else values[self._priority.slot]


def _set(values: list[int], field: FieldIR | None, value: int) -> None:
    if field is not None:
        values[field.slot] = value & ((1 << field.bits) - 1)
