# SPDX-License-Identifier: Apache-2.0
"""A switch: one program in all pipes of a chip, with the traffic manager between ingress and egress.

    decide(port, frame) --> ingress --> store(port) --> one queue or those of a group --> egress --> frame out
                              ^                                                                |
                              +--- wire: frames that left through a recirculation port <-------+

Ingress runs when a frame's header is there. The frame enters its queue when its last byte is stored. `decide` and
`store` are these two steps, and `arrive` does both at once. A port is serial: it stores one frame before it decides the
next. A port has several queues. The queue with the lowest number is served first (strict priority, which the control
plane of a real switch has to set). Every queue is first in, first out. A recirculation port's queue loses frames only
where a test says `full`. `process` lets a frame go all its ways at once. Tests that want packets to meet call `arrive`,
or `decide` and `store`, and then, one by one, what `steps` offers: each runs one half of a pass.

Tables have the same entries in all pipes. Each pipe has its own registers. A counter is the sum over all pipes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from hopsum_tna.dump import Node, TnaError, UnsupportedNodeError
from hopsum_tna.externs import CounterExtern, Undefined
from hopsum_tna.half import Half
from hopsum_tna.record_layout import Types
from hopsum_tna.tna_block import BlockState
from hopsum_tna.tna_tables import BoundAction, Key, Match, TnaTable

# Number of a port: pipe in the upper bits, port of the pipe in the lower seven, on both chips.
_PIPE_BITS = 7
T = TypeVar("T")
_UNSUPPORTED_TM = ("mcast_grp_b", "copy_to_cpu", "deflect_on_drop")


@dataclass(frozen=True)
class TofinoChip:
    """The differences between chips."""

    name: str
    port_metadata_bytes: int
    recirculation_ports: frozenset[int]


TOFINO = TofinoChip("tofino", 8, frozenset({68, 192, 196, 324, 448, 452}))
TOFINO2 = TofinoChip("tofino2", 24, frozenset({6, 128, 256, 384}))


class SentFrame(NamedTuple):
    """A frame that left through a front port."""

    port: int
    frame: bytes


class _Queued(NamedTuple):
    frame: bytes
    rid: int
    first: bool
    bypass: bool
    """Egress does not see the frame."""


class _Storing(NamedTuple):
    """A frame on its way from ingress to one queue."""

    port: int
    queue: int
    queued: _Queued


@dataclass
class Passes:
    """The number of frames that ran through each half of a switch so far."""

    ingress: int = 0
    egress: int = 0


@dataclass
class FramesInside:
    """All frames inside the switch, and the frames that have left it."""

    queues: dict[int, dict[int, deque[_Queued]]] = field(default_factory=dict)
    """Queues by port and number. No queue is empty."""
    storing: dict[int, tuple[_Storing, ...]] = field(default_factory=dict)
    """The frame, by ingress port, that ingress has decided and whose last byte is not stored yet."""
    wires: dict[int, deque[bytes]] = field(default_factory=dict)
    """Frames, by recirculation port, that have left through the port and are not back yet. No wire is empty."""
    sent: list[SentFrame] = field(default_factory=list)


class Switch:
    """One program in all pipes of one chip.

    program: as `dump.load` returns it. seed: of the undefined values.

    Raises TnaError or UnsupportedNodeError for a program that is not executed here.
    """

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

    def process(self, port: int, frame: bytes) -> list[SentFrame]:
        """Send a frame into a port of an idle switch, run all steps, and return all frames that have left, in order."""
        self.arrive(port, frame)
        while steps := self.steps():
            self.step(steps[0])
        return self.drain_sent()

    def drain_sent(self) -> list[SentFrame]:
        """Remove the frames that have left since the last call from the switch, and return them in order."""
        sent, self.traffic.sent = self.traffic.sent, []
        return sent

    def arrive(self, port: int, frame: bytes) -> None:
        """Run a frame through ingress and put it into its queues, as one step. Raises as `decide`."""
        self.decide(port, frame)
        self.store(port)

    def decide(self, port: int, frame: bytes) -> None:
        """Run a frame through ingress. Unless ingress drops it, the port keeps it until `store`.

        Raises TnaError while the port stores another one.
        """
        if port in self.traffic.storing:
            raise TnaError(f"port {port} is serial, and its last frame is not stored yet")
        self.passes.ingress += 1
        known = {"ingress_port": port, "resubmit_flag": 0}
        passed = self.ingress.run(frame, bytes(self.chip.port_metadata_bytes), known, port >> _PIPE_BITS)
        if passed is None or passed.fields["deparser.drop_ctl"] & 1:
            return
        fields = passed.fields
        for name in _UNSUPPORTED_TM:
            if fields[f"tm.{name}"]:
                raise UnsupportedNodeError(f"{name} = {fields[f'tm.{name}']}")
        bypass, queue = bool(fields["tm.bypass_egress"]), fields["tm.qid"]
        replicas = [
            _Storing(out, queue, _Queued(passed.frame, rid, number == 0, bypass))
            for number, (out, rid) in enumerate(self._replicas(fields))
        ]
        if fields["tm.ucast_egress_port"] is not None:
            # The traffic manager copies for the group first. A unicast port besides a group gets its own frame.
            replicas.append(_Storing(fields["tm.ucast_egress_port"], queue, _Queued(passed.frame, 0, False, bypass)))
        if replicas:
            self.traffic.storing[port] = tuple(replicas)

    def store(self, port: int, *, full: Collection[int] = ()) -> int:
        """Put the frame that `port` stores, if any, into its queues. Return the number of copies that were dropped.

        `full` are the numbers of the queues that are full at recirculation ports.
        """
        dropped = 0
        for replica in self.traffic.storing.pop(port, ()):
            if replica.queue in full and replica.port in self.chip.recirculation_ports:
                dropped += 1
            else:
                queues = self.traffic.queues.setdefault(replica.port, {})
                queues.setdefault(replica.queue, deque()).append(replica.queued)
        return dropped

    def steps(self) -> list[int]:
        """Return the possible next steps, empty where no frame is inside.

        A port stands for its queues: egress serves the first one. `~port` stands for the wire of a recirculation port:
        its first frame enters ingress.
        """
        return sorted(self.traffic.queues) + [~port for port in sorted(self.traffic.wires)]

    def step(self, step: int) -> None:
        """Run one half of a pass: `step` is one of those that `steps` returns. Raises KeyError for another one."""
        if step < 0:
            self.arrive(~step, _take_first(self.traffic.wires, ~step))
        else:
            self.serve(step, min(self.traffic.queues[step]))

    def serve(self, port: int, queue: int) -> None:
        """Run the first frame of a queue through egress, unless it bypasses egress. It leaves unless egress drops it.

        Raises KeyError when the queue is empty.
        """
        queues = self.traffic.queues[port]
        queued = _take_first(queues, queue)
        if not queues:
            del self.traffic.queues[port]
        if queued.bypass:
            self._leave(port, queued.frame)
            return
        known = {"egress_port": port, "egress_rid": queued.rid, "egress_rid_first": int(queued.first)}
        self.passes.egress += 1
        passed = self.egress.run(queued.frame, b"", known, port >> _PIPE_BITS)
        if passed is not None and not passed.fields["deparser.drop_ctl"] & 1:
            self._leave(port, passed.frame)

    def _replicas(self, fields: Mapping[str, Any]) -> Sequence[tuple[int, int]]:
        group = fields["tm.mcast_grp_a"]
        replicas = self.groups.get(group, ()) if group else ()
        if fields["tm.level2_exclusion_id"] or fields["tm.level1_exclusion_id"]:
            raise UnsupportedNodeError("exclusion ids of the replication engine")
        return replicas

    def _leave(self, port: int, frame: bytes) -> None:
        # A frame there does not leave: it comes back into ingress of the same pipe.
        if port in self.chip.recirculation_ports:
            self.traffic.wires.setdefault(port, deque()).append(frame)
        else:
            self.traffic.sent.append(SentFrame(port, frame))


def _take_first(queues: dict[int, deque[T]], key: int) -> T:
    """Take the first frame out of one of several queues, and the queue away when it is empty."""
    queue = queues[key]
    first = queue.popleft()
    if not queue:
        del queues[key]
    return first


def _pipe(objects: Mapping[str, Node]) -> list[str]:
    """Return the six parts of the only pipe. Raises UnsupportedNodeError when there are several."""
    main = objects.get("main")
    if main is None or main["node"] != "Declaration_Instance":
        raise TnaError("the dump has no main package")
    pipes = [argument["expression"]["path"] for argument in main["arguments"]]
    if len(pipes) != 1:
        raise UnsupportedNodeError(f"{len(pipes)} pipes with programs of their own")
    parts = [argument["expression"] for argument in objects[pipes[0]]["arguments"]]
    return [part["constructedType"] for part in parts]


# The control plane's side of a switch: entries, groups and counters, by name.
#
# A name is the one in the P4Info without the pipe ("Ingress.slot.admit"), or as much of its end as names one thing.

MatchValue = int | tuple[int, int]
"""The value of an exact match, value and mask of a ternary one, or value and prefix length in bits of an lpm one."""


class TnaControl:
    """The control plane of a switch: writes and reads of its state."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._state = switch.state

    def write(
        self,
        table: str,
        match: Mapping[str, MatchValue],
        action: str,
        params: Mapping[str, int] | None = None,
        *,
        priority: int = 0,
    ) -> None:
        """Insert an entry, or replace the one with the same key. Keys that are left out of `match` match anything.

        Exact keys cannot be left out. Of several entries that match the largest `priority` wins. Priority 0 becomes the
        length of the entry's lpm prefix. Raises TnaError when a name, a number of parameters or a value does not fit,
        or the table is full.
        """
        found = self.table(table)
        bound = self._bound(found, action, params or {})
        matches = _matches(found, match)
        length = sum(mask.bit_count() for (_, mask), key in zip(matches, found.keys, strict=True) if key.match == "lpm")
        found.set_entry(matches, priority or length, bound)

    def delete(self, table: str, match: Mapping[str, MatchValue]) -> None:
        """Remove an entry. Raises TnaError when it is not there."""
        found = self.table(table)
        found.set_entry(_matches(found, match), 0, None)

    def set_default(self, table: str, action: str, params: Mapping[str, int] | None = None) -> None:
        """Change the default action of a table. Raises TnaError as `write`."""
        found = self.table(table)
        found.set_default(self._bound(found, action, params or {}))

    def set_group(self, group: int, replicas: Iterable[tuple[int, int]]) -> None:
        """Make a multicast group of (port, rid) pairs. No pairs remove the group."""
        told = tuple(replicas)
        self._switch.groups.pop(group, None)
        if told:
            self._switch.groups[group] = told

    def counter(self, name: str) -> dict[int, int]:
        """Return the packets of a counter, summed over all pipes, by cell, without cells of 0. Raises TnaError."""
        return dict(self._counter(name).packets)

    def counter_size(self, name: str) -> int:
        """Return the number of cells of a counter. Raises TnaError when no or several counters have the name."""
        return self._counter(name).size

    def table(self, name: str) -> TnaTable:
        """Return a table by its name. Raises TnaError when none or several have it."""
        return self._state.tables[_one(name, self._state.tables)]

    def has(self, table: str) -> bool:
        """Return True if the program has a table of this name, or several."""
        return any(_ends(name, table) for name in self._state.tables)

    def _counter(self, name: str) -> CounterExtern:
        return self._state.counters[_one(name, self._state.counters)]

    def _bound(self, table: TnaTable, action: str, params: Mapping[str, int]) -> BoundAction:
        name = table.actions[_one(action, table.actions)]
        wanted = self._state.actions[name].params
        if sorted(params) != sorted(label for label, _, _ in wanted):
            raise TnaError(f"{action} of {table.name} takes {[label for label, _, _ in wanted]}, not {sorted(params)}")
        values = []
        for label, _, kind in wanted:
            low = -(1 << kind.width - 1) if kind.signed else 0
            if not low <= params[label] <= kind.mask:
                raise TnaError(f"{action} of {table.name}: {label} = {params[label]} does not fit {kind.width} bits")
            values.append(kind.wrap(params[label]))
        return BoundAction(name, tuple(values))


def _matches(table: TnaTable, match: Mapping[str, MatchValue]) -> list[Match]:
    names = [key.name for key in table.keys]
    told = {_one(name, names): value for name, value in match.items()}
    return [_match(table, key, told.get(key.name)) for key in table.keys]


def _match(table: TnaTable, key: Key, value: MatchValue | None) -> Match:
    if value is None:
        if key.match == "exact":
            raise TnaError(f"table {table.name}: no value for its exact key {key.name}")
        return 0, 0
    if isinstance(value, int):
        if not 0 <= value <= key.mask:
            raise TnaError(f"table {table.name}: {key.name} = {value} does not fit {key.mask.bit_length()} bits")
        return value, key.mask
    if key.match == "exact":
        raise TnaError(f"table {table.name}: {key.name} is exact, and takes no mask")
    width = key.mask.bit_length()
    mask = value[1] if key.match == "ternary" else key.mask >> (width - value[1]) << (width - value[1])
    return value[0] & mask, mask


def _one(name: str, names: Collection[str]) -> str:
    if name in names:
        return name
    found = [full for full in names if _ends(full, name)]
    if len(found) != 1:
        raise TnaError(f"{name} names {found or 'nothing'}: it should name one of {sorted(names)}")
    return found[0]


def _ends(full: str, name: str) -> bool:
    return full == name or full.endswith("." + name)
