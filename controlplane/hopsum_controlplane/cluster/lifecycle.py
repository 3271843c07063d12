# SPDX-License-Identifier: Apache-2.0
"""The life of a job, as functions from one record to the next: no clock, no switch, no database.

States, and what may stand on the switch::

  FORMING     nothing. Slots and job index are the job's; members join
  INSTALLING  some or all entries of `epoch`; nobody has been told of it
  RUNNING     all entries of `epoch`
  CHANGING    some or all entries of `epoch`, which is over; they are being removed
  ENDING      the same, and the job goes with them

Transitions::

  state       event                                             to          function
  FORMING     every worker waits, the switch answers            INSTALLING  begin       under a new epoch
  INSTALLING  everything is written and confirmed               RUNNING     installed
  INSTALLING  write refused, member lost or replaced, restart   CHANGING    change
  RUNNING     worker lost or replaced, entries lost, all left   CHANGING    change
  CHANGING    nothing of the epoch stands, confirmed            FORMING     removed
  FORMING     deleted                                           gone        end
  others      deleted                                           ENDING      end
  ENDING      nothing of the epoch stands, confirmed            gone        removed

Phases of a member::

  WAITING  has joined, for the next epoch        IN       belongs to the epoch
  OVER     its epoch is over: is to join again   LEFT     belonged to the epoch, has no part any more
  LOST     was silent for a lease: given up

  begin: WAITING -> IN.    change of INSTALLING: IN -> WAITING, of RUNNING: IN -> OVER; LEFT is forgotten.
  join:  absent, OVER, LOST, LEFT -> WAITING; another incarnation of a WAITING, IN or OVER rank takes its place.
  leave: IN -> LEFT, in RUNNING only; others are forgotten.    lose: WAITING, IN, OVER -> LOST.

Rules:

- E1: whatever ends an epoch, the job goes on under another one only, after CHANGING. Entries are never written
  again under an epoch that has been on a switch.
- R3: a worker that leaves keeps its entries: the epoch lasts until all its workers have left or are lost.
- An incarnation that left or was replaced never comes back. One that is lost may, with nothing of what it held.
- Observers are not waited for, and their coming and going ends no epoch.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hopsum.wire import MAX_WORKERS
from hopsum_controlplane.cluster.errors import InvalidRequest, NoRoom, NotAdmitted
from hopsum_controlplane.cluster.requests import JobRequest
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.jobs import Job, JobSpec, WorkerEndpoint
from hopsum_controlplane.slots import SlotRange

KEPT_INCARNATIONS = 1024
"""So many that left or were replaced are remembered for each job, the last ones."""


class State(enum.Enum):
    """Where a job is."""

    FORMING = "forming"
    INSTALLING = "installing"
    RUNNING = "running"
    CHANGING = "changing"
    ENDING = "ending"


class Phase(enum.Enum):
    """Where a member is."""

    WAITING = "waiting"
    IN = "in"
    OVER = "over"
    LEFT = "left"
    LOST = "lost"


LEASED = (Phase.WAITING, Phase.IN, Phase.OVER)
"""In these phases a member has a lease, which silence ends."""


@dataclass(frozen=True)
class Member:
    """One rank, as it joined. `secret_digest` is of its secret, `version` that of its hopsum."""

    endpoint: WorkerEndpoint
    side_port: int | None
    incarnation: bytes = field(repr=False)
    secret_digest: bytes = field(repr=False)
    version: str = ""
    phase: Phase = Phase.WAITING

    @property
    def rank(self) -> int:
        """Return its rank."""
        return self.endpoint.rank

    @property
    def is_worker(self) -> bool:
        """Return whether it takes part, instead of only looking."""
        return self.rank < MAX_WORKERS


@dataclass(frozen=True)
class JobRecord:
    """A job in the books.

    `job` is what stands, or may, on the switch: its epoch; None in FORMING. `reason` says why the state was left that
    an epoch ended with, or is empty. `members` are in the order of ranks.
    """

    request: JobRequest
    token_digest: bytes = field(repr=False)
    switch: str
    job_index: int
    region: SlotRange
    state: State = State.FORMING
    job: Job | None = None
    reason: str = ""
    members: tuple[Member, ...] = ()
    retired: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.request.name

    @property
    def epoch(self) -> int:
        """Return the epoch of which something may stand on the switch; 0 for none."""
        return 0 if self.job is None else self.job.epoch

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Return the workers that the next epoch lacks; none while an epoch is being written."""
        if self.state is State.INSTALLING:
            return ()
        waiting = {member.rank for member in self.members if member.phase is Phase.WAITING}
        return tuple(rank for rank in self.request.worker_ranks if rank not in waiting)

    @property
    def ready(self) -> bool:
        """Return whether an epoch can begin."""
        return self.state is State.FORMING and not self.missing_ranks

    def member(self, rank: int) -> Member | None:
        """Return the member of a rank, None when nobody has it."""
        return next((member for member in self.members if member.rank == rank), None)

    def spec(self) -> JobSpec:
        """Return what the next epoch is made of: those who wait."""
        return self.request.spec({m.rank: m.endpoint for m in self.members if m.phase is Phase.WAITING})


def choose_rank(record: JobRecord, wanted: int | None, incarnation: bytes) -> int:
    """Return the rank of who joins: its own if it has one, the one that it wants, or the lowest that is free.

    Raises NotAdmitted for an incarnation that left, was replaced or has another rank, InvalidRequest for a rank
    that the job has not, and NoRoom when no worker's rank is free.
    """
    own = next((member for member in record.members if member.incarnation == incarnation), None)
    if incarnation in record.retired or (own is not None and own.phase is Phase.LEFT):
        raise NotAdmitted(
            f"this worker left job {record.name!r}, or another one has taken its rank over",
            hint="start it again: who joins anew draws a new incarnation",
        )
    if own is not None:
        if wanted not in (None, own.rank):
            raise NotAdmitted(f"this worker has rank {own.rank}, it asks for rank {wanted}", hint="leave first")
        return own.rank
    if wanted is not None:
        if wanted not in record.request.worker_ranks and wanted not in record.request.observer_ranks:
            raise InvalidRequest(f"job {record.name!r} has no rank {wanted}", hint=_ranks(record.request))
        return wanted
    taken = {member.rank for member in record.members if member.phase in LEASED}
    free = next((rank for rank in record.request.worker_ranks if rank not in taken), None)
    if free is None:
        raise NoRoom(
            f"all {record.request.workers} ranks of job {record.name!r} are taken",
            hint="say which rank this worker replaces, or make the job for more workers",
        )
    return free


def join(record: JobRecord, member: Member) -> JobRecord:
    """Let a member wait for the next epoch; its rank comes from `choose_rank`.

    Who is in the epoch or waits already stays as it is. Raises NotAdmitted when it now comes from another address
    or the job is being deleted, InvalidRequest when another member has its address.
    """
    if record.state is State.ENDING:
        raise NotAdmitted(f"job {record.name!r} is being deleted", hint="make it again when it has gone")
    before = record.member(member.rank)
    if before is not None and before.incarnation == member.incarnation and before.phase in (Phase.IN, Phase.WAITING):
        if before.endpoint != member.endpoint:
            raise NotAdmitted(
                f"rank {member.rank} of job {record.name!r} has joined from {_show(before.endpoint)}, "
                f"and now comes from {_show(member.endpoint)}",
                hint="start it again: who joins anew draws a new incarnation",
            )
        return record
    _check_address(record, member)
    after = _with_member(record, replace(member, phase=Phase.WAITING))
    if before is None or before.incarnation == member.incarnation:
        return after
    after = _retire(after, before)
    if before.phase is Phase.IN and before.is_worker:
        return change(after, f"rank {member.rank} was started again, at {_show(member.endpoint)}")
    return after


def leave(record: JobRecord, rank: int) -> JobRecord:
    """Let a member go. Its entries stay until all workers of the epoch have gone."""
    member = record.member(rank)
    if member is None or member.phase is Phase.LEFT:
        return record
    if member.phase is not Phase.IN:
        return _retire(_without(record, rank), member)
    if record.state is State.INSTALLING and member.is_worker:
        return change(_retire(_without(record, rank), member), f"rank {rank} left before the job ran")
    return _end_if_all_gone(_with_member(record, replace(member, phase=Phase.LEFT)))


def lose(record: JobRecord, rank: int, why: str) -> JobRecord:
    """Give a member up that was silent for its lease."""
    member = record.member(rank)
    if member is None or member.phase not in LEASED:
        return record
    after = _with_member(record, replace(member, phase=Phase.LOST))
    if member.phase is Phase.IN and member.is_worker and record.state in (State.INSTALLING, State.RUNNING):
        return change(after, why)
    return after


def begin(record: JobRecord, job: Job) -> JobRecord:
    """Take an epoch for everybody who waits: it is to be written now. `job` has the record's place and `spec()`."""
    place = (record.job_index, record.region)
    if not record.ready or job.spec != record.spec() or (job.job_index, job.region) != place:
        raise _fault(record, f"begin epoch {job.epoch}")
    members = (replace(m, phase=Phase.IN) if m.phase is Phase.WAITING else m for m in record.members)
    return replace(record, state=State.INSTALLING, job=job, members=tuple(members))


def installed(record: JobRecord, job: Job) -> JobRecord:
    """Let the epoch run: the switch has confirmed all its entries. `job` is what the switch's controller returned."""
    if record.state is not State.INSTALLING or job != record.job:
        raise _fault(record, f"run epoch {job.epoch}")
    return replace(record, state=State.RUNNING, job=job)


def change(record: JobRecord, reason: str) -> JobRecord:
    """End the epoch, for this reason, if there is one that is not over: its entries are to be removed."""
    if record.state not in (State.INSTALLING, State.RUNNING):
        return record
    told = record.state is State.RUNNING
    gone = [m.incarnation for m in record.members if m.phase is Phase.LEFT]
    members = (
        replace(m, phase=Phase.OVER if told else Phase.WAITING) if m.phase is Phase.IN else m
        for m in record.members
        if m.phase is not Phase.LEFT
    )
    after = replace(record, state=State.CHANGING, reason=reason, members=tuple(members))
    return replace(after, retired=_last((*after.retired, *gone)))


def end(record: JobRecord) -> JobRecord | None:
    """Delete the job: None when it is gone at once, because nothing of it is on a switch."""
    if record.state is State.FORMING:
        return None
    return replace(record, state=State.ENDING, reason="the job was deleted")


def removed(record: JobRecord) -> JobRecord | None:
    """Go on after the switch has confirmed that nothing of the epoch stands; None when the job is gone."""
    if record.state is State.ENDING:
        return None
    if record.state is not State.CHANGING:
        raise _fault(record, "form again")
    return replace(record, state=State.FORMING, job=None)


def _fault(record: JobRecord, what: str) -> ControlPlaneError:
    what = f"job {record.name!r}, {record.state.value}, epoch {record.epoch}, cannot {what}"
    return ControlPlaneError(what, hint="report this as a fault of the controller")


def _end_if_all_gone(record: JobRecord) -> JobRecord:
    if any(member.phase is Phase.IN and member.is_worker for member in record.members):
        return record
    return change(record, "all its workers have left")


def _check_address(record: JobRecord, member: Member) -> None:
    for other in record.members:
        same = (other.endpoint.ip, other.endpoint.udp_port) == (member.endpoint.ip, member.endpoint.udp_port)
        if same and other.rank != member.rank and other.phase in LEASED:
            raise InvalidRequest(
                f"job {record.name!r}: rank {other.rank} is at {_show(other.endpoint)} already",
                hint="give each worker a UDP port of its own",
            )


def _with_member(record: JobRecord, member: Member) -> JobRecord:
    others = (other for other in record.members if other.rank != member.rank)
    return replace(record, members=tuple(sorted((*others, member), key=lambda each: each.rank)))


def _without(record: JobRecord, rank: int) -> JobRecord:
    return replace(record, members=tuple(member for member in record.members if member.rank != rank))


def _retire(record: JobRecord, member: Member) -> JobRecord:
    return replace(record, retired=_last((*record.retired, member.incarnation)))


def _last(incarnations: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(incarnations)[-KEPT_INCARNATIONS:]


def _show(endpoint: WorkerEndpoint) -> str:
    return f"{endpoint.ip}:{endpoint.udp_port}"


def _ranks(request: JobRequest) -> str:
    observers = request.observer_ranks
    more = f", observers {observers[0]} .. {observers[-1]}" if observers else ""
    return f"its workers are 0 .. {request.workers - 1}{more}"
