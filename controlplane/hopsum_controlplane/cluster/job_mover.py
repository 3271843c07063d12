# SPDX-License-Identifier: Apache-2.0
"""Jobs that go from one switch to another, because an operator says so.

A move ends the generation, as a switch that restarts does: the workers seal it, report what they hold, and continue in
the next one, at the other switch. No rule of the slot protocol knows of it.
"""

from __future__ import annotations

import logging

from hopsum_controlplane.cluster import lifecycle, placement
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.records import LEASED, BranchAssignment, JobRecord, JobState, ShardSeat
from hopsum_controlplane.cluster.switch_reconcilers import SwitchReconcilers
from hopsum_controlplane.errors import InvalidRequestError
from hopsum_wire.control import control_pb2 as pb

_log = logging.getLogger(__name__)


class JobMover:
    """Moves jobs of one controller from one switch to another, a sharded job one shard at a time. Thread-safe."""

    def __init__(self, cache: JobStateCache, reconcilers: SwitchReconcilers) -> None:
        self._cache, self._reconcilers = cache, reconcilers

    def move(self, name: str, away: str | None = None, to: str | None = None) -> pb.MoveJobResponse:
        """End the generation of a job, and give the job another switch in the place of `away` for the next one.

        Logs a warning. When this returns, the database has the new place. The switches follow at once if they are not
        busy, else later.

        Args:
            away: the switch that the job leaves. Left out: the job's one switch.
            to: the switch that it goes to. Left out: the one with most free slots that the workers reach.

        Raises UnknownJobError and StoreError, and InvalidRequestError and ResourceExhaustedError with a remedy. Nothing
        has changed then.
        """
        with self._cache.changed:
            record = self._cache.get(name)
            away = self._movable(record, away)
            if to is not None and to not in self._reconcilers:
                raise InvalidRequestError(f"no switch {to!r:.80}", hint=f"there are {', '.join(self._reconcilers)}")
            switches = self._reconcilers.capacities(record.spec)
            found = placement.replacement(record, to, switches, self._reconcilers.config.links)
            target = found.config.name
            self._require_alike(record, away, target)
            seats = self._seats(record, away, target)
            index, region = found.allocator.allocate(record.spec.slots)
            reason = f"it moves from switch {away} to switch {target}"
            at = BranchAssignment(target, index, region)
            self._cache.apply(name, lambda now: lifecycle.move(now, away, at, seats, reason))
        _log.warning("job %s moves from switch %s to %s", name, away, target, extra={"job": name, "switch": target})
        # `reconcile_job` does not wait: the switch that the job leaves may be dead.
        self._reconcilers.reconcile_job(name)
        return pb.MoveJobResponse(from_switch=away, to_switch=target, slot_base=region.base, slots=region.size)

    def _movable(self, record: JobRecord, away: str | None) -> str:
        """Return the switch that a job is to leave. Raises InvalidRequestError."""
        who = f"job {record.name!r}"
        if record.state is JobState.ENDING:
            raise InvalidRequestError(f"{who} is being deleted", hint="make it again when it has gone")
        if record.branches and not record.is_sharded:
            hint = "delete it, and make it again over another spine"
            raise InvalidRequestError(f"{who} is over a tree of switches, whose racks have one place", hint=hint)
        on = ", ".join(record.switches)
        if away is None and len(record.switches) > 1:
            raise InvalidRequestError(f"{who} has {len(record.switches)} shards", hint=f"say which leaves: {on}")
        if away is not None and away not in record.switches:
            raise InvalidRequestError(f"{who} is not on switch {away!r:.80}", hint=f"it is on {on}")
        return away or record.switch

    def _require_alike(self, record: JobRecord, away: str, to: str) -> None:
        """Raise InvalidRequestError where workers would have to pack codes otherwise, or to have another window."""
        # Workers keep their packing of codes and their window over a move: they would not agree with another kind of
        # switch.
        here, there = self._reconcilers[away].inventory.limits, self._reconcilers[to].inventory.limits
        if (here.max_window, here.code_group) != (there.max_window, there.code_group):
            windows = [f"a window of at most {limits.max_window or 'any'} packets" for limits in (here, there)]
            raise InvalidRequestError(
                f"job {record.name!r}: switch {away!r} takes groups of {here.code_group} codes and {windows[0]}, and "
                f"switch {to!r} groups of {there.code_group} and {windows[1]}",
                hint="move it to a switch of the same kind, or make it again there",
            )

    def _seats(self, record: JobRecord, away: str, to: str) -> dict[int, ShardSeat]:
        """Return the places of the members at another switch. Raises InvalidRequestError for one that it lacks."""
        config, shard = self._reconcilers.config, record.switches.index(away)
        here, there = config.switch(away), config.switch(to)
        return {
            member.rank: placement.seat_at_switch(member.seats[shard], here, there)
            for member in record.members
            if member.phase in LEASED
        }
