# SPDX-License-Identifier: Apache-2.0
"""A switch: one pipe of TNA, with the traffic manager between its halves and recirculation ports after them.

    decide(port, frame) --> ingress --> store(port) --> one queue or those of a group --> egress --> frame out
                              ^                                                                |
                              +--- loop: frames that left through a recirculation port <-------+

Ingress runs when a frame's header is there. The frame enters its queue when its last byte is stored. `decide` and
`store` are these two steps, and `arrive` does both at once. A port is serial: it stores one frame before it decides the
next. Every queue is first in, first out. A recirculation port's queue loses frames only where a test says `full`.
`settle` lets a frame go all its ways at once. Tests that want packets to meet call `arrive`, or `decide` and `store`,
and then, one by one, what `steps` offers: each runs one half of a pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hopsum_tna.block import BlockState
from hopsum_tna.dump import Node
from hopsum_tna.errors import TnaError, UnsupportedNodeError
from hopsum_tna.externs import Undefined
from hopsum_tna.half import Half
from hopsum_tna.layout import Types

LOOP = -1
"""The step that takes the first frame of the loop into ingress. Any other step is a port whose queue egress serves."""
_UNSUPPORTED_TM = ("mcast_grp_b", "copy_to_cpu", "deflect_on_drop")


@dataclass(frozen=True)
class TofinoChip:
    """The differences between chips."""

    name: str
    port_metadata_bytes: int
    recirculation_ports: frozenset[int]


TOFINO = TofinoChip("tofino", 8, frozenset({68}))
TOFINO2 = TofinoChip("tofino2", 24, frozenset({6}))


class SentFrame(NamedTuple):
    """A frame that left through a front port."""

    port: int
    frame: bytes


class _Queued(NamedTuple):
    frame: bytes
    rid: int
    first: bool


class _Storing(NamedTuple):
    """A frame on its way from ingress to one queue."""

    port: int
    queued: _Queued
    bypass: bool


@dataclass
class Passes:
    """The number of runs of each half."""

    ingress: int = 0
    egress: int = 0


@dataclass
class FramesInside:
    """All frames inside the switch, and the frames that have left it."""

    queues: dict[int, deque[_Queued]] = field(default_factory=dict)
    storing: dict[int, tuple[_Storing, ...]] = field(default_factory=dict)
    """By ingress port: the frame that ingress has decided and whose last byte is not stored yet."""
    loop: deque[SentFrame] = field(default_factory=deque)
    sent: list[SentFrame] = field(default_factory=list)


class Switch:
    """One program on one pipe."""

    def __init__(self, program: Node, chip: TofinoChip = TOFINO, *, seed: int = 0) -> None:
        self.chip = chip
        self.state = BlockState()
        types, undefined = Types(program), Undefined(seed)
        objects = {item["name"]: item for item in program["objects"]}
        names = _pipe(objects)
        self.ingress, self.egress = (
            Half([objects[name] for name in names[at : at + 3]], types, self.state, undefined) for at in (0, 3)
        )
        self.groups: dict[int, tuple[tuple[int, int], ...]] = {}
        """Replicas (port, rid) by group."""
        self.traffic = FramesInside()
        self.passes = Passes()

    # ---- frames -------------------------------------------------------------------------------------------

    def settle(self, port: int, frame: bytes) -> list[SentFrame]:
        """Take a frame into an idle switch and return all frames that leave because of it, in order."""
        self.arrive(port, frame)
        while steps := self.steps():
            self.step(steps[0])
        return self.take()

    def take(self) -> list[SentFrame]:
        """Return the frames that have left since the last call."""
        sent, self.traffic.sent = self.traffic.sent, []
        return sent

    def arrive(self, port: int, frame: bytes) -> None:
        """Take a frame through ingress, into queues, as one step."""
        self.decide(port, frame)
        self.store(port)

    def decide(self, port: int, frame: bytes) -> None:
        """Take a frame through ingress. Raises TnaError while the port stores another one."""
        if port in self.traffic.storing:
            raise TnaError(f"port {port} is serial, and its last frame is not stored yet")
        self.passes.ingress += 1
        known = {"ingress_port": port, "resubmit_flag": 0}
        passed = self.ingress.run(frame, bytes(self.chip.port_metadata_bytes), known)
        if passed is None or passed.fields["deparser.drop_ctl"] & 1:
            return
        fields = passed.fields
        for name in _UNSUPPORTED_TM:
            if fields[f"tm.{name}"]:
                raise UnsupportedNodeError(f"{name} = {fields[f'tm.{name}']}")
        bypass = bool(fields["tm.bypass_egress"])
        replicas = [
            _Storing(out, _Queued(passed.frame, rid, number == 0), bypass)
            for number, (out, rid) in enumerate(self._replicas(fields))
        ]
        if fields["tm.ucast_egress_port"] is not None:
            replicas.append(_Storing(fields["tm.ucast_egress_port"], _Queued(passed.frame, 0, False), bypass))
        if replicas:
            self.traffic.storing[port] = tuple(replicas)

    def store(self, port: int, *, full: bool = False) -> None:
        """Put the frame that `port` stores, if any, into its queues. `full` recirculation ports drop it."""
        for replica in self.traffic.storing.pop(port, ()):
            if not (full and replica.port in self.chip.recirculation_ports):
                self._enqueue(*replica)

    def steps(self) -> list[int]:
        """Return the possible next steps: ports whose queues are not empty, and LOOP when a frame recirculates."""
        ports = sorted(port for port, queue in self.traffic.queues.items() if queue)
        return ports + ([LOOP] if self.traffic.loop else [])

    def step(self, step: int) -> None:
        """Let one of `steps` happen."""
        if step == LOOP:
            self.arrive(*self.traffic.loop.popleft())
            return
        queued = self.traffic.queues[step].popleft()
        known = {"egress_port": step, "egress_rid": queued.rid, "egress_rid_first": int(queued.first)}
        self.passes.egress += 1
        passed = self.egress.run(queued.frame, b"", known)
        if passed is not None and not passed.fields["deparser.drop_ctl"] & 1:
            self._leave(step, passed.frame)

    def _replicas(self, fields: Mapping[str, Any]) -> Sequence[tuple[int, int]]:
        group = fields["tm.mcast_grp_a"]
        replicas = self.groups.get(group, ()) if group else ()
        if fields["tm.level2_exclusion_id"] or fields["tm.level1_exclusion_id"]:
            raise UnsupportedNodeError("exclusion ids of the replication engine")
        return replicas

    def _enqueue(self, port: int, queued: _Queued, bypass: bool) -> None:
        if bypass:
            self._leave(port, queued.frame)
        else:
            self.traffic.queues.setdefault(port, deque()).append(queued)

    def _leave(self, port: int, frame: bytes) -> None:
        if port in self.chip.recirculation_ports:
            self.traffic.loop.append(SentFrame(port, frame))
        else:
            self.traffic.sent.append(SentFrame(port, frame))


def _pipe(objects: Mapping[str, Node]) -> list[str]:
    """Return the six parts of the only pipe. Raises UnsupportedError when there are several."""
    main = objects.get("main")
    if main is None or main["node"] != "Declaration_Instance":
        raise TnaError("the dump has no main package")
    pipes = [argument["expression"]["path"] for argument in main["arguments"]]
    if len(pipes) != 1:
        raise UnsupportedNodeError(f"{len(pipes)} pipes with programs of their own")
    parts = [argument["expression"] for argument in objects[pipes[0]]["arguments"]]
    return [part["constructedType"] for part in parts]
