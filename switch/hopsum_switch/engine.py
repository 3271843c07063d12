# SPDX-License-Identifier: Apache-2.0
"""The engine: a P4 program with its state, a function from frames to frames.

An engine is single-threaded: its owner serialises packets and control-plane accesses. It has no clock (`now_us` is an
argument), no sockets and no randomness except its seed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, NamedTuple

from .interp.observer import Observer
from .interp.v1model import Interpreter
from .program.ir import ProgramIR
from .state.program_state import ProgramState
from .state.randomness import RandomStream


class Output(NamedTuple):
    """A frame to send, and its port."""

    port: int
    frame: bytes


class Engine(ProgramState):
    """An engine that runs one program with the reference interpreter."""

    backend: ClassVar[str] = "interpreter"

    def __init__(
        self, program: ProgramIR, *, ports: Collection[int] = (), seed: int = 0, observer: Observer | None = None
    ) -> None:
        """Start with empty state.

        `ports`: the existing ports. Frames for other ports are discarded. Empty: every port exists.
        `seed`: the seed of the program's `random()` calls, see `state.randomness`.
        `observer`: receives every packet's events. Packets take several times longer with an observer.
        """
        super().__init__(program)
        self._ports = frozenset(ports)
        self._interpreter = Interpreter(self, RandomStream(seed), observer)

    def process(self, port: int, frame: bytes, now_us: int = 0) -> list[Output]:
        """Run a frame from ingress port `port` through parser, ingress, replication, egress and deparser.

        Returns the frames to send, in the order of their copies: an empty list if all are dropped. `now_us` is the time
        since the switch started, for the timestamps of the program.
        """
        outputs = [Output(*copy) for copy in self._interpreter.process(port, frame, now_us)]
        # Filtered after the program, because egress runs and counts also for a missing port.
        return [o for o in outputs if o.port in self._ports] if self._ports else outputs
