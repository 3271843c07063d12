# SPDX-License-Identifier: Apache-2.0
"""The engine: a program together with its state, which takes frames and returns frames.

An engine is single-threaded. Its owner serialises packets and control-plane accesses. It has no
clock (`now_us` is an argument), no sockets and no randomness beyond its seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import ClassVar, NamedTuple

from .interp.observer import Observer
from .interp.v1model import Interpreter
from .program.ir import ProgramIR
from .state.cells import CounterStore, MeterStore, RegisterStore
from .state.copies import CloneStore, MulticastStore
from .state.digest_store import DigestStore
from .state.randomness import RandomStream
from .state.table_store import TableStore


class Output(NamedTuple):
    """A frame to send."""

    port: int
    frame: bytes


class Engine:
    """Runs one program with the reference interpreter."""

    program: ProgramIR
    tables: TableStore
    multicast: MulticastStore
    clones: CloneStore
    counters: CounterStore
    registers: RegisterStore
    meters: MeterStore
    digests: DigestStore
    faults: Counter[str]  # what programs should not do, by kind (`program.ir`); the owner may put another here
    dropped: Counter[str]  # packets dropped by the engine itself, by reason; the owner may put another counter here

    backend: ClassVar[str] = "interpreter"

    def __init__(
        self, program: ProgramIR, *, ports: Collection[int] = (), seed: int = 0, observer: Observer | None = None
    ) -> None:
        """Start with empty state.

        Args:
            program: the result of `hopsum_switch.program.load_program`.
            ports: the ports that exist. Frames for other ports are discarded. Empty: every port exists.
            seed: the seed of the program's `random()` calls, see `state.randomness`.
            observer: the observer of every packet's events. Packets take several times longer with an observer.
        """
        self.program = program
        self.tables = TableStore(program)
        self.multicast = MulticastStore()
        self.clones = CloneStore()
        self.counters = CounterStore(program, self.tables)
        self.registers = RegisterStore(program)
        self.meters = MeterStore(program, self.tables)
        self.digests = DigestStore(program)
        self.dropped = Counter()
        self.faults = Counter()
        self._ports = frozenset(ports)
        self._seed = seed
        self._rng = RandomStream(seed)
        self._interpreter = Interpreter(
            program,
            self.tables,
            self.multicast,
            self.clones,
            self.counters,
            self.registers,
            self.meters,
            self.digests,
            self._rng,
            self._count_drop,
            self._count_fault,
            observer,
        )

    def process(self, port: int, frame: bytes, now_us: int = 0) -> list[Output]:
        """Run one received frame through parser, ingress, replication, egress and deparser.

        Args:
            port: ingress port.
            frame: the whole frame, from the first byte of its first header.
            now_us: time since the switch started, in microseconds, for the timestamps of the program.

        Returns: the frames to send, in the order in which the copies were made.
        """
        outputs = [Output(*copy) for copy in self._interpreter.process(port, frame, now_us)]
        # Ports that do not exist are filtered here, not in the program: their egress has run and counted.
        return [o for o in outputs if o.port in self._ports] if self._ports else outputs

    def reset_state(self) -> None:
        """Forget everything but the program: as if it had just been loaded."""
        self.tables.reset()
        self.multicast.reset()
        self.clones.reset()
        self.counters.reset()
        self.registers.reset()
        self.meters.reset()
        self.digests.reset()
        self._rng.seed(self._seed)

    def _count_drop(self, reason: str) -> None:
        self.dropped[reason] += 1

    def _count_fault(self, kind: str) -> None:
        self.faults[kind] += 1
