# SPDX-License-Identifier: Apache-2.0
"""All parts together: from a state to every state that can follow it.

The network only grows: a packet that a worker may send is in it from that moment on, and any packet in it may reach its
receiver at any later time, any number of times, or never. So "sent later" and "sent again" are deliveries later in
time, and loss, duplication, delay and reordering are all covered. A delivery that changes nothing is no transition.

After every transition the state is brought to a normal form: each worker drops what it may drop (R2), and what it may
send enters the network.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from hopsum_oracle.decision import FINAL, Copy

from .config import Config
from .controller import Change, Controller, counts, is_out
from .state import ZEROS, Cell, Content, Contribution, Control, Kind, Life, Packet, Pool, RuleError, State, Worker
from .switch import deciding, step, step_from_above
from .worker import WorkerRules


class Transition(NamedTuple):
    """One step of the search. `label`: an event's name; (packet, receiving rank, or -1 - the number of a switch); or
    (chunk, from rank, to rank) of a fetch."""

    label: str | tuple[int, int] | tuple[int, int, int]
    state: State | None
    violation: RuleError | None = None


Stepped = tuple[int, int | None, RuleError | None]
"""Number of the copy after a packet, number of the packet that leaves, violation."""
Accepted = tuple[int, int] | RuleError
"""Number of the worker after a RESULT, and the chunk."""
InFlight = tuple[list[tuple[int, Packet]], list[int], list[int]]
"""UPDATEs and PARTIALs with their numbers; numbers of RESULTs; numbers of STALEs."""
Fetch = tuple[tuple[int, int, int], int | RuleError]
"""Chunk, from, to; number of the worker after it."""


class World:
    """The protocol under a Config, as a transition system."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rules = WorkerRules(config)
        self.controller = Controller(config, self.rules)
        self.packets: Pool[Packet] = Pool()
        self.workers: Pool[Worker] = Pool()
        self.cells: Pool[Cell] = Pool()
        self.controls: Pool[Control] = Pool()
        self._decide = tuple(deciding(config, node) for node in range(config.nodes))
        self._stepped: dict[tuple[int, int, int, int], Stepped] = {}
        self._accepted: dict[tuple[int, int, int, int], Accepted | None] = {}
        self._networks: dict[int, InFlight] = {}
        self._fetched: dict[tuple[int, tuple[int, ...]], list[Fetch]] = {}
        self._changes: dict[tuple[int, tuple[int, ...]], list[Change | RuleError]] = {}
        self._settled: dict[tuple[int, int, int], tuple[int, int]] = {}

    def view(self, state: State) -> tuple[Control, tuple[Worker, ...]]:
        """Return controller and workers of a state as values."""
        return self.controls[state.control], tuple(self.workers[number] for number in state.workers)

    # ---- the first state ----------------------------------------------------------------------------

    def first(self) -> State:
        """Return the state before anything was delivered."""
        config = self.config
        control = self.controller.first_control()
        worker = Worker(1, 1, Life.RUN, (None,) * config.chunks, 0)
        cells, network = [Cell()] * (2 * config.slots * config.nodes), 0
        if config.garbage:
            cells = [Cell(Copy(), (Contribution(0, -9, 0, 0),))] * len(cells)
        if config.leftovers:
            for packet in self._leftovers(control):
                network |= 1 << self.packets.number(packet)
                if packet.kind is Kind.RESULT:  # the last of each copy is what it holds
                    everybody = packet.content.contributors
                    copy = Copy(packet.generation, packet.round, everybody, FINAL, everybody)
                    cells[packet.slot * 2 + packet.version] = Cell(copy, packet.content.values, packet.truth)
        numbers = (self.workers.number(worker),) * config.n
        return self._normal(
            State(self.controls.number(control), network, numbers, tuple(map(self.cells.number, cells)))
        )

    def _leftovers(self, control: Control) -> Iterator[Packet]:
        """Yield every packet of the job that used the slots before, generation 0, everything complete."""
        config = self.config
        for position, address in enumerate(self.rules.addresses(control.streams, 0)):
            parts = tuple(Contribution(rank, -1 - position, 0, 0) for rank in range(config.n))
            for rank, part in enumerate(parts):
                content = Content(1 << rank, (part,))
                yield Packet(Kind.UPDATE, rank, 0, *address, False, content, (0, position))
            yield Packet(Kind.RESULT, -1, 0, *address, False, Content((1 << config.n) - 1, parts), (0, position))

    # ---- successors ---------------------------------------------------------------------------------

    def successors(self, state: State) -> Iterator[Transition]:
        """Yield every transition out of a state."""
        control, workers = self.view(state)
        updates, results, stales = self._in_flight(state.network)
        for number, packet in updates:
            yield from self._at_switch(state, control, workers, number, packet.node)
        for number in results:
            yield from self._results(state, control, workers, number)
        for number in stales:
            yield from self._zeros(state, control, workers, number)
        if self.config.peers:
            yield from self._fetches(state, control, workers)
        yield from self._events(state, control, workers)

    def _results(
        self, state: State, control: Control, workers: tuple[Worker, ...], number: int
    ) -> Iterator[Transition]:
        """Let a RESULT reach any child of the switch that it comes from."""
        leaves, ranks = self.below(self.packets[number].node)
        for node in leaves:
            yield from self._at_switch(state, control, workers, number, node)
        for rank in ranks:
            accepted = self.accepted(state, rank, number)
            if accepted is not None:
                yield self._at_worker(state, control, workers, (number, rank), accepted)

    def below(self, node: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the leaves and the ranks that a switch sends results to."""
        children = self.config.children(node)
        spine = self.config.tree and node == 0
        return (tuple(range(1, self.config.nodes)), ()) if spine else ((), children)

    def _in_flight(self, network: int) -> InFlight:
        """Return the packets of a network, by kind."""
        known = self._networks.get(network)
        if known is None:
            packets = [(number, self.packets[number]) for number in bits(network)]
            known = self._networks[network] = (
                [each for each in packets if each[1].kind in (Kind.UPDATE, Kind.PARTIAL)],
                [number for number, packet in packets if packet.kind is Kind.RESULT],
                [number for number, packet in packets if packet.kind is Kind.STALE],
            )
        return known

    def _at_switch(
        self, state: State, control: Control, workers: tuple[Worker, ...], number: int, node: int
    ) -> Iterator[Transition]:
        packet = self.packets[number]
        if not self.admits(control, node, packet):
            return
        index = self.place(node, packet)
        after, out, violation = self.stepped(control, node, state.cells[index], number)
        network = state.network
        if out is not None:
            if self.packets[out].kind is Kind.STALE:
                violation = self._wrong_stale(control, workers, self.cells[state.cells[index]], packet)
            elif self._lacks_members(control, self.packets[out]):
                violation = RuleError("members", f"members {control.members:b} get {self.packets[out].content}")
            if self.packets[out].kind is not Kind.STALE or not self.config.on("stale_fetch"):
                network |= 1 << out
        if violation is not None:
            yield Transition((number, -1 - node), None, violation)
        elif after != state.cells[index] or network != state.network:
            cells = (*state.cells[:index], after, *state.cells[index + 1 :])
            yield Transition((number, -1 - node), self._normal(State(state.control, network, state.workers, cells)))

    def _lacks_members(self, control: Control, result: Packet) -> bool:
        """Check the contributors of a RESULT of a job of MIN:MAX workers."""
        checked = self.config.min_workers and not self.config.flush and "members" in self.config.checks
        return bool(checked) and result.content.contributors != control.members

    def place(self, node: int, packet: Packet) -> int:
        """Return which copy a packet means at a switch."""
        return (node * self.config.slots + packet.slot) * 2 + packet.version

    def admits(self, control: Control, node: int, packet: Packet) -> bool:
        """Say whether a switch lets a packet at its slots (S1)."""
        runs = control.admitted != 0 and not control.lost >> node & 1
        return runs and (packet.generation == control.admitted or not self.config.on("generation_switch"))

    def stepped(self, control: Control, node: int, cell: int, packet: int) -> Stepped:
        """Return what a packet does to a copy of a switch."""
        quorum = self.config.quorum_of(node) if node else control.quorum
        key = (node, quorum, cell, packet)
        known = self._stepped.get(key)
        if known is None:
            try:
                one = self.cells[cell], self.packets[packet]
                if one[1].kind is Kind.RESULT:
                    after, out = step_from_above(self.config, node, *one)
                else:
                    after, out = step(self.config, self._decide[node], quorum, *one)
                known = self.cells.number(after), None if out is None else self.packets.number(out), None
            except RuleError as violation:
                known = cell, None, violation
            self._stepped[key] = known
        return known

    def _wrong_stale(
        self, control: Control, workers: tuple[Worker, ...], cell: Cell, packet: Packet
    ) -> RuleError | None:
        """Check what a STALE says: nostale and hint."""
        asker, (generation, position) = workers[packet.worker], packet.truth
        exact = packet.kind is Kind.UPDATE and self.config.full_quorum and asker.generation == generation
        if exact and "nostale" in self.config.checks:
            same_life = packet.content.values[0].incarnation == asker.incarnation
            if same_life and position in self.rules.waiting(control.streams, asker):
                return RuleError("nostale", f"w{packet.worker} waits for round {packet.round} and is told STALE")
        if "hint" not in self.config.checks or self.config.crashes or self.config.give_ups or cell.truth is None:
            return None
        generation, top = cell.truth
        addresses = self.rules.addresses(control.streams, generation)
        before = [control.streams[generation][q] for q in range(top) if addresses[q].slot == packet.slot]
        for rank, worker in enumerate(workers):
            named = cell.copy.contributors >> rank & 1 and worker.generation == generation
            if named and any(worker.held[chunk] is None for chunk in before):
                return RuleError("hint", f"STALE({packet.round}) names w{rank}, which lacks an earlier result")
        return None

    def _at_worker(
        self, state: State, control: Control, workers: tuple[Worker, ...], label: tuple[int, int], accepted: Accepted
    ) -> Transition:
        if isinstance(accepted, RuleError):
            return Transition(label, None, accepted)
        rank, (number, chunk) = label[1], accepted
        try:
            self.check_agreement(control, workers, rank, self.workers[number], chunk)
        except RuleError as violation:
            return Transition(label, None, violation)
        after = self.with_worker(state, rank, number)
        if not self.config.on("lease_barrier") and None not in self.workers[number].held:
            after = after._replace(control=self.controls.number(control._replace(released=True, admitted=0)))
        return Transition(label, self._normal(after))

    def accepted(self, state: State, rank: int, packet: int) -> Accepted | None:
        """Return the worker's number after a RESULT and the chunk, or a violation; None if it is ignored."""
        key = (state.control, rank, state.workers[rank], packet)
        if key not in self._accepted:
            streams = self.controls[state.control].streams
            try:
                taken = self.rules.accept(streams, rank, self.workers[state.workers[rank]], self.packets[packet])
                self._accepted[key] = None if taken is None else (self.workers.number(taken[0]), taken[1])
            except RuleError as violation:
                self._accepted[key] = violation
        return self._accepted[key]

    def check_agreement(
        self, control: Control, workers: tuple[Worker, ...], rank: int, after: Worker, chunk: int
    ) -> None:
        """Check a result just accepted against what all other members hold. Raises RuleError."""
        if "agreement" not in self.config.checks or is_out(control, rank, after):
            return
        for other, peer in enumerate(workers):
            if other == rank or peer.life is Life.DOWN or is_out(control, other, peer):
                continue
            if counts(control, peer, chunk) not in (None, after.held[chunk]):
                text = f"chunk {chunk}: w{rank} holds {after.held[chunk]}, w{other} holds {peer.held[chunk]}"
                raise RuleError("agreement", text)

    def _zeros(self, state: State, control: Control, workers: tuple[Worker, ...], number: int) -> Iterator[Transition]:
        """Let a worker without stale_fetch settle on a STALE."""
        stale = self.packets[number]
        rank, worker = stale.worker, workers[stale.worker]
        for chunk in self.rules.named_by_stale(control.streams, worker, stale):
            after = self.rules.fill_with_zeros(worker, chunk)
            try:
                self.check_agreement(control, workers, rank, after, chunk)
            except RuleError as violation:
                yield Transition((number, rank), None, violation)
                return
            yield Transition((number, rank), self._normal(self.with_worker(state, rank, self.workers.number(after))))

    def _fetches(self, state: State, control: Control, workers: tuple[Worker, ...]) -> Iterator[Transition]:
        key = (state.control, state.workers)
        if key not in self._fetched:
            self._fetched[key] = list(self._find_fetches(control, workers))
        for (chunk, source, rank), taken in self._fetched[key]:
            if isinstance(taken, RuleError):
                yield Transition((chunk, source, rank), None, taken)
            else:
                yield Transition((chunk, source, rank), self._normal(self.with_worker(state, rank, taken)))

    def _find_fetches(self, control: Control, workers: tuple[Worker, ...]) -> Iterator[Fetch]:
        """Let every worker fetch anything it lacks from any peer: STALE is only what makes it worth while."""
        for (rank, worker), (source, peer) in itertools.permutations(enumerate(workers), 2):
            for chunk in control.streams[worker.generation] if worker.life is Life.RUN else ():
                content = self.rules.serves(peer, worker, chunk) if worker.held[chunk] is None else None
                if content is None or self._repeats(workers, rank, source, chunk, content):
                    continue
                try:
                    after = self.rules.hold(rank, worker, chunk, content)
                    self.check_agreement(control, workers, rank, after, chunk)
                    yield (chunk, source, rank), self.workers.number(after)
                except RuleError as violation:
                    yield (chunk, source, rank), violation

    def _repeats(self, workers: tuple[Worker, ...], rank: int, source: int, chunk: int, content: Content) -> bool:
        """Say whether a peer before this one serves the same: one transition, not two."""
        before = [peer for other, peer in enumerate(workers[:source]) if other != rank]
        same = any(self.rules.serves(peer, workers[rank], chunk) == content for peer in before)
        return same or content == ZEROS

    def _events(self, state: State, control: Control, workers: tuple[Worker, ...]) -> Iterator[Transition]:
        key = (state.control, state.workers)
        if key not in self._changes:
            self._changes[key] = list(self._find_events(control, workers))
        for change in self._changes[key]:
            if isinstance(change, RuleError):
                yield Transition("decide or join", None, change)
            else:
                yield Transition(change.label, self._normal(self.apply(state, change)))

    def _find_events(self, control: Control, workers: tuple[Worker, ...]) -> Iterator[Change | RuleError]:
        yield from self.controller.faults(control, workers)
        try:
            yield from self.controller.duties(control, workers)
        except RuleError as violation:
            yield violation

    def apply(self, state: State, change: Change) -> State:
        """Return the state after an event of the controller, packets aside."""
        cells = state.cells
        if change.cells is not None:
            cells = tuple(map(self.cells.number, change.cells(tuple(self.cells[number] for number in cells))))
        workers = tuple(map(self.workers.number, change.workers))
        return state._replace(control=self.controls.number(change.control), workers=workers, cells=cells)

    def with_worker(self, state: State, rank: int, number: int) -> State:
        """Return the state with another worker at a rank."""
        return state._replace(workers=(*state.workers[:rank], number, *state.workers[rank + 1 :]))

    # ---- normal form --------------------------------------------------------------------------------

    def _normal(self, state: State) -> State:
        settled = [self._settle(state.control, rank, number) for rank, number in enumerate(state.workers)]
        network = state.network
        for _, sends in settled:
            network |= sends
        return State(state.control, network, tuple(number for number, _ in settled), state.cells)

    def _settle(self, control: int, rank: int, number: int) -> tuple[int, int]:
        """Return the worker's number after all drops, and the bitmap of what it may send."""
        key = (control, rank, number)
        if key not in self._settled:
            streams, worker = self.controls[control].streams, self.workers[number]
            newest = worker.generation == self.controls[control].generation
            members = self.controls[control].members if newest else self.config.everybody
            if self.config.peers:
                dropped = self.rules.droppable(streams, rank, worker, members)
                worker = worker._replace(kept=worker.kept & ~dropped)
            sends = 0
            for flush in (False, True):
                for packet in self.rules.updates(streams, rank, worker, flush=flush):
                    sends |= 1 << self.packets.number(packet)
            self._settled[key] = (self.workers.number(worker), sends)
        return self._settled[key]


def bits(bitmap: int) -> Iterator[int]:
    """Yield the positions of the ones."""
    while bitmap:
        low = bitmap & -bitmap
        yield low.bit_length() - 1
        bitmap ^= low
