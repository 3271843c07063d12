# SPDX-License-Identifier: Apache-2.0
"""Two checks of whole states: can everybody still finish (live), and is every result still somewhere (repair).

live    From a state with the network emptied, one fair schedule without further loss: the controller's duties first;
        a worker that may be left out is, and does not come back;
        then sweeps, in which every worker sends all that it may and every reply arrives; when a sweep changes nothing,
        one with FLUSH; when that changes nothing, the workers ask their peers (W6). Old packets cannot rescue it.
        A schedule is a chain of states, and chains meet: verdicts are kept for every state on the way.
"""

from __future__ import annotations

from hopsum_oracle.decision import FINAL

from .controller import counts, is_out, ranks_of
from .state import ZEROS, Budget, Kind, Life, Phase, RuleError, State
from .world import World


class Progress:
    """Verdicts over the states of one World."""

    def __init__(self, world: World) -> None:
        self.world, self.config = world, world.config
        self._verdicts: dict[State, bool] = {}

    def check(self, state: State) -> None:
        """Raise RuleError (repair or live) if something is lost for good in this state."""
        if "repair" in self.config.checks and self.config.peers:
            self._check_repair(state)
        if "live" in self.config.checks and not self._completes(state):
            raise RuleError("live", f"retransmission never completes: {self.world.view(state)[1]}")

    # ---- live ---------------------------------------------------------------------------------------

    def _completes(self, state: State) -> bool:
        control = self.world.controls[state.control]._replace(budget=Budget())
        state = state._replace(network=0, control=self.world.controls.number(control))
        chain: dict[State, None] = {}
        while state not in self._verdicts and state not in chain:
            chain[state] = None
            if self._finished(state):
                self._verdicts[state] = True
                break
            state = self._advance(state)
        verdict = self._verdicts.get(state, False)  # a chain that meets itself never completes
        self._verdicts.update(dict.fromkeys(chain, verdict))
        return verdict

    def _finished(self, state: State) -> bool:
        control, workers = self.world.view(state)
        members = [workers[rank] for rank in ranks_of(control.members)]
        return all(worker.life is Life.RUN and None not in worker.held for worker in members)

    def _advance(self, state: State) -> State:
        """Return the state after one step of the schedule; the same state if nothing helps."""
        control, workers = self.world.view(state)
        stopped = control.phase is not Phase.RUN or not control.admitted or control.lost
        if stopped or any(workers[rank].life is Life.DOWN for rank in ranks_of(control.members)):
            try:
                for change in self.world.controller.duties(control, workers):
                    return self.world.apply(state, change)
            except RuleError:
                return state
        after = self._sweep(state, flush=False)
        if after == state and self.config.flush:
            after = self._sweep(state, flush=True)
        return self._ask_all(state) if after == state and self.config.on("ask_on_silence") else after

    def _sweep(self, state: State, *, flush: bool) -> State:
        """Let every worker send all that it may now, everything delivered at once."""
        for rank in range(self.config.n):
            control, workers = self.world.view(state)
            for packet in self.world.rules.updates(control.streams, rank, workers[rank], flush=flush):
                state = self._send(state, self.world.packets.number(packet))
        return state

    def _send(self, state: State, number: int) -> State:
        """Deliver a packet and all that follows from it."""
        world = self.world
        waiting = [(world.packets[number].node, number)]
        while waiting:
            node, number = waiting.pop(0)
            packet, control = world.packets[number], world.controls[state.control]
            if not world.admits(control, node, packet):
                continue
            index = world.place(node, packet)
            after, out, _ = world.stepped(control, node, state.cells[index], number)
            state = state._replace(cells=(*state.cells[:index], after, *state.cells[index + 1 :]))
            if out is None:
                continue
            if world.packets[out].kind is Kind.STALE:
                state = self._stale_to(state, node, out)
                continue
            leaves, ranks = world.below(node)
            up = world.packets[out].kind is Kind.PARTIAL
            waiting += [(0, out)] if up else [(leaf, out) for leaf in leaves]
            for rank in () if up else ranks:
                state = self._take(state, rank, out)
        return state

    def _stale_to(self, state: State, node: int, number: int) -> State:
        """Deliver a STALE to its receiver, or to all below the leaf that it is for (T6)."""
        stale = self.world.packets[number]
        if not (self.config.tree and node == 0):
            return self._on_stale(state, number)
        for rank in self.config.children(self.config.node_of(stale.worker)) if self.config.on("relay_stale") else ():
            state = self._on_stale(state, self.world.packets.number(stale._replace(worker=rank)))
        return state

    def _take(self, state: State, rank: int, result: int) -> State:
        world = self.world
        accepted = world.accepted(state, rank, result)
        if accepted is None or isinstance(accepted, RuleError):
            return state
        if not self.config.on("lease_barrier") and None not in world.workers[accepted[0]].held:
            control = world.controls[state.control]._replace(released=True, admitted=0)
            state = state._replace(control=world.controls.number(control))
        return world.with_worker(state, rank, accepted[0])

    def _on_stale(self, state: State, number: int) -> State:
        world, stale = self.world, self.world.packets[number]
        control, workers = world.view(state)
        worker = workers[stale.worker]
        for chunk in world.rules.named_by_stale(control.streams, worker, stale):
            if self.config.on("stale_fetch"):
                return self._ask(state, stale.worker, chunk)
            worker = world.rules.fill_with_zeros(worker, chunk)
        return world.with_worker(state, stale.worker, world.workers.number(worker))

    def _ask_all(self, state: State) -> State:
        for rank in range(self.config.n):
            control, workers = self.world.view(state)
            for position in self.world.rules.waiting(control.streams, workers[rank]):
                state = self._ask(state, rank, control.streams[workers[rank].generation][position])
        return state

    def _ask(self, state: State, rank: int, chunk: int) -> State:
        """Let a worker ask its peers for one chunk, and take the first answer."""
        _, workers = self.world.view(state)
        if not self.config.peers:
            return state
        for other, peer in enumerate(workers):
            content = self.world.rules.serves(peer, workers[rank], chunk) if other != rank else None
            if content is not None and content != ZEROS:
                try:
                    after = self.world.rules.hold(rank, workers[rank], chunk, content)
                except RuleError:
                    continue
                return self.world.with_worker(state, rank, self.world.workers.number(after))
        return state

    # ---- repair -------------------------------------------------------------------------------------

    def _check_repair(self, state: State) -> None:
        control, workers = self.world.view(state)
        live = [r for r, w in enumerate(workers) if w.life is not Life.DOWN and not is_out(control, r, w)]
        for chunk in range(self.config.chunks):
            lacking = [rank for rank in live if counts(control, workers[rank], chunk) is None]
            having = [rank for rank in live if rank not in lacking]
            if not lacking or not having or any(workers[rank].kept >> chunk & 1 for rank in having):
                continue
            for rank in lacking:
                if not self._on_switch(state, rank, workers[rank].generation, chunk):
                    raise RuleError("repair", f"nobody can give chunk {chunk} to w{rank} any more, w{having} had it")

    def _on_switch(self, state: State, rank: int, generation: int, chunk: int) -> bool:
        control, node = self.world.controls[state.control], self.config.node_of(rank)
        stream = control.streams[generation]
        if chunk not in stream or control.admitted != generation or control.lost >> node & 1:
            return False
        copies = 2 * self.config.slots
        cells = (self.world.cells[number] for number in state.cells[node * copies :][:copies])
        return any(cell.copy.ctr == FINAL and cell.truth == (generation, stream.index(chunk)) for cell in cells)
