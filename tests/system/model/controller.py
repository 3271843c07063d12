# SPDX-License-Identifier: Apache-2.0
"""The controller and the faults: what happens besides packets.

    duties   steps of a generation change (E1 - E4), and a crashed worker's part in it; they happen when they can
    faults   what the Config allows to go wrong, each out of a budget

Generation change: run -> seal -> join -> run
    seal    the old generation is removed from the switch; workers seal and report what they hold, or are given up on
    join    decided = union of the reports; a new generation over the rest; workers fetch what they lack, discard what
            is not decided, and join; the switch is told the new generation, in any order
    A worker lost before it joined, or the source of a decided result: back to seal, for yet another generation.

With min_workers the decision leaves out any of the workers that did not report, as long as enough are in (M3): in the
model a worker may be waited for any time. A worker that was left out comes back in RUN, and seals for a generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

from .config import Config
from .state import OUT, Budget, Cell, Content, Control, Life, Phase, RuleError, Worker, replaced
from .worker import WorkerRules

Workers = tuple[Worker, ...]


class Change(NamedTuple):
    """One event: its name, and what is different after it."""

    label: str
    control: Control
    workers: Workers
    cells: Callable[[tuple[Cell, ...]], tuple[Cell, ...]] | None = None


class Controller:
    """Events other than packets, under a Config."""

    def __init__(self, config: Config, rules: WorkerRules) -> None:
        self.config, self.rules = config, rules

    def first_control(self) -> Control:
        """Return the controller of the first generation, admitted."""
        config = self.config
        earlier = tuple(-1 - position for position in range(4 * config.slots))
        budget = Budget(
            config.crashes, config.restarts, config.give_ups, config.spare_generations, config.lowerings,
            clears=int(not config.on("only_packets_write")), reencodes=int(not config.on("frozen_payload")),
            returns=config.returns,
        )  # fmt: skip
        streams = (earlier, tuple(range(config.chunks)))
        return Control(1, 1, streams, Phase.RUN, (), (), config.quorum_of(0), False, budget, members=config.everybody)

    # ---- duties -------------------------------------------------------------------------------------

    def duties(self, control: Control, workers: Workers) -> Iterator[Change]:
        """Yield every step that a generation change can take now. Raises RuleError: agreement or repair."""
        if control.phase is Phase.SEAL:
            yield from self._reports(control, workers)
            silent = [rank for rank, report in enumerate(control.reports) if report is None]
            if all(workers[rank].life is Life.DOWN for rank in silent):
                for members in self._next_members(control):
                    yield self._decide(control, workers, members)
            return
        if self._has_cause(control, workers):
            yield self._remove(control, workers)
        if control.phase is Phase.JOIN:
            yield from self._joins(control, workers)

    def _has_cause(self, control: Control, workers: Workers) -> bool:
        if control.released:
            return False
        if control.phase is Phase.RUN:
            down = any(workers[rank].life is Life.DOWN for rank in ranks_of(control.members))
            return not control.admitted or bool(control.lost) or down
        members = [(rank, workers[rank]) for rank in ranks_of(control.members)]
        crashed = any(worker.life is Life.DOWN and worker.generation == control.generation for _, worker in members)
        absent = [rank for rank, worker in members if worker.generation != control.generation]
        return crashed or not all(self._can_join(control, workers, rank) for rank in absent)

    def _remove(self, control: Control, workers: Workers) -> Change:
        # Who is not of this generation has nothing to report of it (E4).
        reports = tuple(None if control.members >> rank & 1 else OUT for rank in range(self.config.n))
        after = control._replace(phase=Phase.SEAL, admitted=0, lost=0, reports=reports, decided=())
        return Change(f"remove {control.generation}", after, workers)

    def _reports(self, control: Control, workers: Workers) -> Iterator[Change]:
        for rank, worker in enumerate(workers):
            if worker.life is Life.DOWN or control.reports[rank] is not None:
                continue
            told = worker.held
            if self.config.ranges and self.config.on("report_ready"):
                told = tuple(
                    content if self.rules.encodable(told, chunk) else None for chunk, content in enumerate(told)
                )
            sealed = worker._replace(life=Life.SEALED) if self.config.on("seal") else worker
            after = control._replace(reports=replaced(control.reports, rank, told))
            yield Change(f"w{rank} reports", after, replaced(workers, rank, sealed))

    def _next_members(self, control: Control) -> Iterator[int]:
        """Yield the bitmaps of the workers with which a generation may begin, those of the fewest workers first."""
        config = self.config
        there = sum(1 << rank for rank, report in enumerate(control.reports) if report not in (None, OUT))
        nobody_comes = config.min_workers and not config.returns
        absent = [rank for rank in range(config.n) if not there >> rank & 1 and not nobody_comes]
        rest = [rank for rank in absent if self._may_come(control, rank)]
        least = config.min_workers if config.on("enough") else 1
        for count in range(len(rest) + 1) if config.min_workers else (len(rest),):
            for some in combinations(rest, count):
                members = there | sum(1 << rank for rank in some)
                if not config.min_workers or members.bit_count() >= least:
                    yield members

    def _may_come(self, control: Control, rank: int) -> bool:
        """Say whether a worker without a report was of the last generation, or has come back since."""
        return bool(control.members >> rank & 1) or control.reports[rank] is None

    def _decide(self, control: Control, workers: Workers, next_members: int) -> Change:
        members = [rank for rank in range(self.config.n) if control.reports[rank] not in (None, OUT)]
        decided: list[Content | None] = [None] * self.config.chunks
        for rank in members:
            pairs = list(zip(control.reports[rank] or (), decided, strict=True))
            if "agreement" in self.config.checks and any(None not in pair and pair[0] != pair[1] for pair in pairs):
                raise RuleError("agreement", f"w{rank} reports {control.reports[rank]}, others {decided}")
            decided = [told or known for told, known in pairs]  # type: ignore[misc]
        for chunk, content in enumerate(decided):
            if content is not None and "repair" in self.config.checks:
                lacking = any(workers[rank].held[chunk] is None for rank in members)
                if lacking and not any(workers[rank].kept >> chunk & 1 for rank in members):
                    raise RuleError("repair", f"chunk {chunk} is decided, a member lacks it, nobody keeps it")
        rest = tuple(chunk for chunk, content in enumerate(decided) if content is None)
        after = control._replace(
            phase=Phase.JOIN, generation=control.generation + 1, streams=(*control.streams, rest),
            decided=tuple(decided),
            reports=tuple(OUT if report == OUT else None for report in control.reports), members=next_members,
        )  # fmt: skip
        left_out = [f"w{rank}" for rank in range(self.config.n) if not next_members >> rank & 1]
        without = f" without {' '.join(left_out)}" if left_out else ""
        if self.config.min_workers and self.config.on("members_complete"):
            after = after._replace(quorum=next_members.bit_count())
        return Change(f"decide {after.generation}{without}", after, workers)

    def _joins(self, control: Control, workers: Workers) -> Iterator[Change]:
        members = [(rank, workers[rank]) for rank in ranks_of(control.members)]
        for rank, worker in members:
            if worker.generation != control.generation and self._can_join(control, workers, rank):
                joined = self._joined(control, rank, worker)
                self._check_joined(control, workers, rank, joined)
                yield Change(f"w{rank} joins {control.generation}", control, replaced(workers, rank, joined))
        if control.admitted != control.generation:
            yield Change(f"admit {control.generation}", control._replace(admitted=control.generation), workers)
        elif all(worker.generation == control.generation for _, worker in members):
            yield Change("run", control._replace(phase=Phase.RUN, decided=(), reports=()), workers)

    def _joined(self, control: Control, rank: int, worker: Worker) -> Worker:
        if self._joins_empty(control, rank, worker):  # takes over a member's state (E4)
            lives = worker.incarnation + (worker.life is not Life.DOWN)
            return Worker(lives, control.generation, Life.RUN, control.decided, 0)
        held = control.decided
        if control.reports[rank] == OUT:  # comes back with what it holds: without rejoin_resets only
            held = tuple(own or known for own, known in zip(worker.held, held, strict=True))
        fetched = sum(1 << c for c, content in enumerate(control.decided) if content and worker.held[c] is None)
        kept = (worker.kept | fetched) & sum(1 << c for c, content in enumerate(held) if content is not None)
        return Worker(worker.incarnation, control.generation, Life.RUN, held, kept, worker.reencoded)

    def _joins_empty(self, control: Control, rank: int, worker: Worker) -> bool:
        given_up = bool(control.reports) and control.reports[rank] == OUT
        return worker.life is Life.DOWN or (given_up and self.config.on("rejoin_resets"))

    def _can_join(self, control: Control, workers: Workers, rank: int) -> bool:
        """Say whether every decided result that the worker lacks can be had from a member."""
        worker = workers[rank]
        empty = self._joins_empty(control, rank, worker)
        if empty and not self.config.on("redecide"):
            return True
        members = [
            peer
            for other, peer in enumerate(workers)
            if other != rank and peer.life is not Life.DOWN and control.reports[other] != OUT
        ]
        return all(
            any(peer.held[chunk] == content and (empty or peer.kept >> chunk & 1) for peer in members)
            for chunk, content in enumerate(control.decided)
            if content is not None and (empty or worker.held[chunk] is None)
        )

    def _check_joined(self, control: Control, workers: Workers, rank: int, joined: Worker) -> None:
        if "agreement" not in self.config.checks:
            return
        for other, peer in enumerate(workers):
            for chunk, content in enumerate(peer.held if peer.generation == control.generation else ()):
                if content is not None and joined.held[chunk] not in (None, content):
                    raise RuleError("agreement", f"chunk {chunk}: w{rank} joins with another result than w{other}'s")

    # ---- faults -------------------------------------------------------------------------------------

    def faults(self, control: Control, workers: Workers) -> Iterator[Change]:
        """Yield everything that may go wrong now."""
        budget = control.budget
        if budget.crashes:
            yield from self._crashes(control, workers)
        if budget.restarts and control.phase is Phase.RUN:
            yield from self._restarts(control, workers)
        if budget.give_ups and control.phase is Phase.SEAL:
            for rank, worker in enumerate(workers):
                if worker.life is not Life.DOWN and control.reports[rank] is None:
                    spent = budget._replace(give_ups=budget.give_ups - 1)
                    after = control._replace(reports=replaced(control.reports, rank, OUT), budget=spent)
                    yield Change(f"give up on w{rank}", after, workers)
        if budget.returns and control.phase is Phase.RUN and control.members != self.config.everybody:
            yield from self._returns(control, workers)
        spare = budget.spare_generations and control.phase is not Phase.SEAL and not control.released
        if spare and not self._has_cause(control, workers):
            spent = budget._replace(spare_generations=budget.spare_generations - 1)
            yield self._remove(control._replace(budget=spent), workers)
        if budget.lowerings:
            spent = budget._replace(lowerings=budget.lowerings - 1)
            yield Change("quorum - 1", control._replace(quorum=control.quorum - 1, budget=spent), workers)
        if budget.clears:
            yield from self._clears(control._replace(budget=budget._replace(clears=budget.clears - 1)), workers)
        if budget.reencodes:
            yield from self._reencodes(control, workers)

    def _restarts(self, control: Control, workers: Workers) -> Iterator[Change]:
        spent = control.budget._replace(restarts=control.budget.restarts - 1)
        copies = 2 * self.config.slots
        for node in range(self.config.nodes):

            def empty(cells: tuple[Cell, ...], node: int = node) -> tuple[Cell, ...]:
                return (*cells[: node * copies], *(Cell(),) * copies, *cells[(node + 1) * copies :])

            lost = control.lost | 1 << node if self.config.on("volatile_generation") else control.lost
            label = f"restart of {'sAB'[node]}" if self.config.tree else "restart"
            yield Change(label, control._replace(lost=lost, budget=spent), workers, empty)

    def _crashes(self, control: Control, workers: Workers) -> Iterator[Change]:
        budget = control.budget
        for rank, worker in enumerate(workers):
            if worker.life is Life.DOWN:
                continue
            life = Life.DOWN if self.config.on("crash_bumps") else Life.RUN
            fresh = Worker(worker.incarnation + 1, worker.generation, life, (None,) * self.config.chunks, 0)
            reports = control.reports
            if reports and (control.members >> rank & 1):
                reports = replaced(reports, rank, None)
            after = control._replace(reports=reports, budget=budget._replace(crashes=budget.crashes - 1))
            yield Change(f"w{rank} crashes", after, replaced(workers, rank, fresh))

    def _returns(self, control: Control, workers: Workers) -> Iterator[Change]:
        """Let a worker without which the generation began come back, as another incarnation."""
        spent = control.budget._replace(returns=control.budget.returns - 1)
        for rank in ranks_of(self.config.everybody & ~control.members):
            worker = workers[rank]
            lives = worker.incarnation + (worker.life is not Life.DOWN)
            back = Worker(lives, worker.generation, Life.DOWN, (None,) * self.config.chunks, 0)
            if not self.config.on("late_waits"):
                peer = next(each for each in workers if each.generation == control.generation)
                back = back._replace(generation=control.generation, life=Life.RUN, held=peer.held)
                yield Change(f"w{rank} is back", control._replace(budget=spent), replaced(workers, rank, back))
                continue
            if not self.config.on("rejoin_resets"):
                back = worker
            sealed = self._remove(control._replace(budget=spent), replaced(workers, rank, back))
            reports = replaced(sealed.control.reports, rank, None)
            yield sealed._replace(label=f"w{rank} is back", control=sealed.control._replace(reports=reports))

    def _clears(self, control: Control, workers: Workers) -> Iterator[Change]:
        def cleared(cell: Cell) -> Cell:
            if self.config.clears == "values":
                return cell._replace(values=())
            if self.config.clears == "round":
                return cell._replace(copy=cell.copy._replace(generation=0, round=0))
            return cell._replace(copy=cell.copy._replace(seen=0, ctr=0, contributors=0))

        for index in range(2 * self.config.slots):
            yield Change(
                f"clear {self.config.clears}",
                control,
                workers,
                lambda cells, index=index: replaced(cells, index, cleared(cells[index])),  # type: ignore[misc]
            )

    def _reencodes(self, control: Control, workers: Workers) -> Iterator[Change]:
        for rank, worker in enumerate(workers):
            for position in self.rules.waiting(control.streams, worker):
                chunk = control.streams[worker.generation][position]
                if not worker.reencoded >> chunk & 1:
                    again = worker._replace(reencoded=worker.reencoded | 1 << chunk)
                    yield Change(f"w{rank} re-encodes", control, replaced(workers, rank, again))


def is_out(control: Control, rank: int, worker: Worker) -> bool:
    """Say whether the controller gave up on a worker: it may continue in its old generation, but does not count."""
    given_up = bool(control.reports) and control.reports[rank] == OUT
    return worker.generation != control.generation and (given_up or not control.members >> rank & 1)


def ranks_of(bitmap: int) -> list[int]:
    """Return the ranks of a bitmap of workers."""
    return [rank for rank in range(bitmap.bit_length()) if bitmap >> rank & 1]


def counts(control: Control, worker: Worker, chunk: int) -> Content | None:
    """Return the result that counts: between decision and joining, what was not decided is void."""
    void = control.phase is Phase.JOIN and worker.generation != control.generation and control.decided[chunk] is None
    return None if void else worker.held[chunk]
