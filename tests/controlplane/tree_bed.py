# SPDX-License-Identifier: Apache-2.0
"""Two racks below a spine: three native engines told what to do by Controllers, over seeded links in memory.

    workers of rack 0 --- leaf 0 ---.
    workers of rack 1 --- leaf 1 ---+--- spine

Every link loses, duplicates and delays, each direction by itself; `frames` counts what was sent between switches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hopsum.protocol.worker import Membership, Worker
from hopsum_controlplane import (
    GenerationAllocator,
    LeafGroup,
    SwitchController,
    SwitchEndpoint,
    WorkerEndpoint,
)
from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.entries import Delete, Entity, Insert, MulticastGroup, TableEntry, Update
from hopsum_controlplane.p4info import P4Info
from hopsum_controlplane.tables import forward
from hopsum_ptf.fake_device import FakeDevice
from hopsum_switch.native.compiler import CodeCache
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.program import load_program
from hopsum_switch.state.copies import PortCopy
from hopsum_switch.state.entry_lookup import Exact
from hopsum_wire import HOPSUM_BYTES, Header
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES, FramePath, build_frame

from ..host.protocol.network import TIMING, Generation, Network, Task

CLOCK_S = 1_000_000.0
UPLINK = 1
PROGRAM = load_program(compiled_program()[0].read_text())


@cache
def _engines() -> tuple[NativeEngine, ...]:
    """Return the engines of three switches, compiled once for all of them and for all fabrics."""
    with TemporaryDirectory() as folder:
        code = CodeCache(Path(folder) / "code")
        return tuple(NativeEngine(PROGRAM, cache=code) for _ in range(3))


class EngineDevice(FakeDevice):
    """A native engine as a device: what the fake one takes, the engine gets, too."""

    def __init__(self, node: int) -> None:
        super().__init__(P4Info.from_text(compiled_program()[1].read_text()))
        self.engine = _engines()[node]
        self.engine.reset_state()

    def write(self, updates: Sequence[Update]) -> None:
        """Apply a batch, or fail as told: then the engine has none of it."""
        super().write(updates)
        for update in updates:
            self._tell(update.entity, insert=isinstance(update, Insert), delete=isinstance(update, Delete))

    def _tell(self, entity: Entity, *, insert: bool, delete: bool) -> None:
        if isinstance(entity, MulticastGroup):
            if delete:
                self.engine.multicast.delete(entity.id)
            else:
                self.engine.multicast.insert(entity.id, [PortCopy(r.port, r.instance) for r in entity.replicas])
            return
        assert isinstance(entity, TableEntry)
        table = self.engine.tables[_full(PROGRAM.tables, entity.table)]
        match = tuple(Exact(value) for value in entity.match.values())
        if delete:
            table.delete(table.find(match))
            return
        assert insert, "no test modifies"
        table.insert(match, _full(PROGRAM.actions, entity.action), tuple(entity.params.values()), 0)


def _full(names: Sequence[str], last: str) -> str:
    (name,) = [name for name in map(str, names) if name == last or name.endswith(f".{last}")]
    return name


def endpoint(node: int) -> SwitchEndpoint:
    """Return the address of a switch: 0 is the spine."""
    return SwitchEndpoint(f"02:00:00:00:00:{0xA0 + node:02x}", f"10.9.0.{node + 1}")


def worker_at(rank: int, port: int) -> WorkerEndpoint:
    """Return a worker."""
    return WorkerEndpoint(rank, port, f"02:00:00:00:01:{rank:02x}", f"10.0.0.{rank + 1}", 4000 + rank)


class Fabric:
    """The switches, their controllers, and the links; `sizes` workers in each rack."""

    def __init__(self, network: Network, sizes: Sequence[int]) -> None:
        self.network = network
        self.devices = [EngineDevice(node) for node in range(1 + len(sizes))]
        generations = GenerationAllocator()
        self.controllers = [
            SwitchController(device, endpoint(node), generations=generations, clock=lambda: CLOCK_S)
            for node, device in enumerate(self.devices)
        ]
        self.racks = tuple(
            LeafGroup(tuple(worker_at(sum(sizes[:rack]) + i, 10 + i) for i in range(size)), UPLINK, 1 + rack)
            for rack, size in enumerate(sizes)
        )
        self.frames: Counter[tuple[int, int]] = Counter()
        """By (from switch, to switch)."""
        self.generation: Generation | None = None

    def forward_to_spine(self) -> None:
        """Let the leaves forward plain frames between their workers and the spine, for a flat layout."""
        for rack, device in zip(self.racks, self.devices[1:], strict=True):
            stations = {worker.mac: worker.port for worker in rack.workers} | {endpoint(0).mac: UPLINK}
            device.write([Insert(entry) for entry in forward.l2(stations)])

    def run(self, generation: int, slots: int, tasks: list[Task], *, flat: bool = False) -> None:
        """Let real workers reduce these tasks; every worker must have numpy's bytes."""
        count = sum(len(rack.workers) for rack in self.racks)
        workers = [Worker(Membership(generation, rank, count, slots), TIMING) for rank in range(count)]
        self.network.hosts = dict(enumerate(workers))
        running = _Running(self.network, None, tasks, workers, ahead=2)  # type: ignore[arg-type]
        running.fabric, running.flat = self, flat
        running.run()
        running.check()

    def from_worker(self, rank: int, data: bytes, *, flat: bool) -> None:
        """Let a worker's datagram arrive at its leaf, for the leaf's service or, if flat, for the spine's."""
        rack, worker = next((at, one) for at, rack in enumerate(self.racks) for one in rack.workers if one.rank == rank)
        to = endpoint(0 if flat else 1 + rack)
        path = FramePath(
            mac_to_int(worker.mac), mac_to_int(to.mac), ipv4_to_int(worker.ip), ipv4_to_int(to.ip), worker.udp_port
        )
        self._into(1 + rack, worker.port, build_frame(path, Header.unpack(data), data[HOPSUM_BYTES:]))

    def _into(self, node: int, port: int, frame: bytes) -> None:
        for output in self.devices[node].engine.process(port, frame):
            if node == 0:
                self._between(0, output.port, UPLINK, output.frame)
            elif output.port == UPLINK:
                self._between(node, 0, node, output.frame)
            else:
                self.network.send(partial(self._at_worker, output.frame))

    def _between(self, node: int, to: int, port: int, frame: bytes) -> None:
        self.frames[node, to] += 1
        self.network.send(partial(self._into, to, port, frame))

    def _at_worker(self, frame: bytes) -> None:
        reply = frame[FRAME_OVERHEAD_BYTES - HOPSUM_BYTES :]
        self.network.hosts[Header.unpack(reply).worker].receive_datagram(reply, self.network.now)


class _Running(Generation):
    fabric: Fabric
    flat: bool

    def _at_switch(self, rank: int, data: bytes) -> None:
        self.fabric.from_worker(rank, data, flat=self.flat)
