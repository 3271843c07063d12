# SPDX-License-Identifier: Apache-2.0
"""The state machine of a job, as pure functions from one record to the next. No clock, switch or database here.

States, and the entries on the switch::

  FORMING     none. Slots and job index are reserved; members join
  INSTALLING  some or all entries of `generation`; no member knows of it
  RUNNING     all entries of `generation`
  CHANGING    some or all entries of `generation`, which has ended; they are being removed
  ENDING      as in CHANGING; the job is deleted with them

Transitions::

  state       event                                             to          function
  FORMING     all workers have joined, the switch answers       INSTALLING  start_generation   under a new generation
  INSTALLING  all entries are written and confirmed             RUNNING     on_installed
  INSTALLING  write refused, member lost or replaced, restart   CHANGING    end_generation
  RUNNING     worker lost, and less than a quorum is left       CHANGING    lose
  RUNNING     worker lost, enough are left                      RUNNING     lose          its entries stay
  RUNNING     worker replaced, or one that is not in it joins   CHANGING    join          also a sealed worker
  RUNNING     worker that left started again, others stay       CHANGING    end_generation     after a lease
  RUNNING     entries lost, all left or lost, rounds used up    CHANGING    end_generation
  CHANGING    removal of all entries confirmed                  FORMING     on_removed
  FORMING     deleted                                           removed     delete_job    or ENDING, see `move`
  RUNNING     moved to another switch                           CHANGING    move          also INSTALLING; others stay
  others      deleted                                           ENDING      delete_job
  ENDING      removal of all entries confirmed                  removed     on_removed

Phases of a member::

  WAITING  has joined, for the next generation        IN       belongs to the generation
  OVER     its generation has ended: must join again  LEFT     belonged to the generation, and has left
  LOST     evicted: silent for a lease, left before its work was done, or too far behind

  start_generation: WAITING -> IN.   mark_notified: an IN member knows of its generation.
  end_generation: IN -> OVER, or WAITING with its earlier report if it was not notified of this generation. LEFT is
  forgotten.
  join:   absent -> WAITING, OVER -> WAITING with a report. Another incarnation takes over any rank, as WAITING.
  leave:  IN -> LEFT, in RUNNING only, or LOST if unfinished. LOST stays while its generation runs. Others are
  forgotten.
  lose:   WAITING, IN, OVER -> LOST.   evict_laggards: WAITING -> LOST, if it lacks results that no worker has.
  lose_waiting: WAITING -> LOST, all workers, if settings differ before the first generation.

The switch from which a job has moved is cleared independently, as soon as it answers (`on_cleared`): all workers have
sealed the ended generation, so its entries do not disturb a later one. Then its slots are free.

A job over a tree of switches, or over several shards, has one record with these states. `on_installed` and `on_removed`
record each switch, and the state changes after the last one. `JobRecord.next_switches` has the next switches.

Rules:

- T7: all switches of a tree have the same generation. It is written to the spine before a leaf admits any worker, and
  the next one begins after its entries are removed from all switches.
- E1: after the end of a generation the job continues only under another one, after CHANGING. Entries are never written
  again under a generation that has been on a switch.
- E2, E3: `start_generation` decides the continuation of the stream (see `decision`), from the waiting workers' reports.
- E4: a worker that was notified of a generation joins again with a report of its latest one, else as a newcomer, which
  is another incarnation. Workers that were lost after a notification, that left or were replaced join as newcomers too.
- R3: a worker that leaves keeps its entries: the generation lasts until all its workers have left or are lost.
- M1, M2, M3: with MIN:MAX workers a generation has the waiting workers, at least MIN, once the wait for others has
  ended. `go_without` ends the wait for a rank. A worker that is not in the generation ends it by joining.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from hopsum_controlplane.cluster.decision import Report, check_decision_size, decide, laggard_ranks
from hopsum_controlplane.cluster.records import (
    FINISHED,
    LEASED,
    BranchAssignment,
    JobRecord,
    JobState,
    Member,
    MemberPhase,
    ShardSeat,
)
from hopsum_controlplane.cluster.tokens import matches, member_secret
from hopsum_controlplane.errors import (
    ControlPlaneError,
    InvalidRequestError,
    ResourceExhaustedError,
    UnauthenticatedError,
)
from hopsum_controlplane.job_spec import Job, WorkerEndpoint

KEPT_INCARNATIONS = 1024
"""The number of incarnations, of workers that left or were replaced, that a job remembers."""


def choose_rank(record: JobRecord, wanted: int | None, incarnation: bytes) -> int:
    """Return the rank of a joining member: its present rank, else the wanted rank, else the lowest free rank.

    Another member may have the wanted rank, and is then replaced by `join`. Raises UnauthenticatedError for an
    incarnation that left, was replaced or has another rank, InvalidRequestError for a rank that the job does not have,
    and ResourceExhaustedError if no worker's rank is free.
    """
    own = next((member for member in record.members if member.incarnation == incarnation), None)
    if incarnation in record.retired or (own is not None and own.phase is MemberPhase.LEFT):
        raise UnauthenticatedError(
            f"this worker left job {record.name!r}, or another one has taken its rank over",
            hint="start it again: a new process has a new incarnation",
        )
    # A member that asks again keeps its rank, because the answer to its JOIN may have been lost.
    if own is not None:
        if wanted not in (None, own.rank):
            raise UnauthenticatedError(
                f"this worker has rank {own.rank}, it asks for rank {wanted}", hint="leave first"
            )
        return own.rank
    if wanted is not None:
        if wanted not in range(record.spec.ranks):
            raise InvalidRequestError(
                f"job {record.name!r} has no rank {wanted}", hint=f"its workers are 0 .. {record.spec.ranks - 1}"
            )
        return wanted
    taken = {member.rank for member in record.members if member.phase in LEASED}
    free = next((rank for rank in range(record.spec.ranks) if rank not in taken), None)
    if free is None:
        raise ResourceExhaustedError(
            f"all {record.spec.ranks} ranks of job {record.name!r} are taken",
            hint="say which rank this worker replaces, or make the job for more workers",
        )
    return free


def rotate_token(record: JobRecord, token_digest: bytes) -> JobRecord:
    """Return the record with another token. Its present token stays valid too, one before that is no longer valid."""
    return replace(record, token_digest=token_digest, earlier_token_digest=record.token_digest)


def revoke_earlier_token(record: JobRecord) -> JobRecord:
    """Return the record with its present token as the only valid one.

    Raises InvalidRequestError: there is no earlier token.
    """
    if not record.earlier_token_digest:
        raise InvalidRequestError(
            f"job {record.name!r} has no token but the present one", hint="`hopsum job rotate-token` makes another"
        )
    return replace(record, earlier_token_digest=b"")


def has_joined_with(record: JobRecord, token: str, incarnation: bytes) -> bool:
    """Return whether a member of the database joined with this token, which may have been rotated since."""
    return any(
        member.incarnation == incarnation
        and matches(member_secret(token, record.name, member.rank, incarnation), member.secret_digest)
        for member in record.members
    )


def join(record: JobRecord, member: Member) -> JobRecord:
    """Return the record in which a member waits for the next generation. This may end the present generation.

    `choose_rank` gives the member's rank. `member.report` is the member's own, None from a newcomer. Another
    incarnation of the rank is retired. The generation ends if it had that incarnation, if it began without the rank,
    or if this member is in it and joins again with a report of it. A repeated call leaves the record unchanged.

    Raises:
        UnauthenticatedError: the job is being deleted, the member has another address than before, or it was evicted;
            or its report is missing, or not the one of the last generation that it knows.
        InvalidRequestError: another member has its address, its report has another number of shards, or the decision
            about all reports does not fit into one message.
    """
    if record.state is JobState.ENDING:
        raise UnauthenticatedError(f"job {record.name!r} is being deleted", hint="make it again when it has gone")
    after = _join(record, member)
    if member.rank not in record.absent:
        return after
    # M2: members are constant in a generation, so who comes late is let into the next one.
    after = replace(after, absent=tuple(rank for rank in after.absent if rank != member.rank))
    return end_generation(after, f"rank {member.rank} has come, at {_show(member.endpoint)}")


def _join(record: JobRecord, member: Member) -> JobRecord:
    before = record.member(member.rank)
    if before is not None and before.incarnation == member.incarnation:
        return _join_again(record, before, member)
    if member.report is not None:
        raise _no_newcomer(
            record, member, f"reports generation {member.report.generation}, and is in the database with none"
        )
    _check_address(record, member)
    after = _with_member(record, replace(member, phase=MemberPhase.WAITING, joined_generation=0, notified_generation=0))
    if before is None:
        return after
    # The incarnation that had the rank is retired: it must not come back and take the rank again.
    after = _retire(after, before)
    if _belongs(record, before):
        # Rule E1: a new incarnation has no part in the old generation's sums, so the generation ends.
        return end_generation(after, f"rank {member.rank} was started again, at {_show(member.endpoint)}")
    return after


def _join_again(record: JobRecord, before: Member, member: Member) -> JobRecord:
    """Let the same incarnation join: again for the same generation, or for the next one with what it holds."""
    report = member.report
    if before.phase in (MemberPhase.IN, MemberPhase.WAITING) and before.endpoints != member.endpoints:
        raise UnauthenticatedError(
            f"rank {member.rank} of job {record.name!r} has joined from {_show(before.endpoint)}, "
            f"and now comes from {_show(member.endpoint)}",
            hint="start it again: a new process has a new incarnation",
        )
    # Rule E4: after an eviction the others may have summed without it, so its own stream is not theirs any more.
    if before.phase is MemberPhase.LOST and (before.notified_generation or report is not None):
        raise _no_newcomer(record, member, f"was evicted: {before.why or 'it was silent for its lease'}")
    if before.phase in (MemberPhase.IN, MemberPhase.WAITING) and report in (None, before.report):
        return record
    # Without a report nobody knows which results it holds: the stream could not be continued (rule E2).
    if report is None and before.notified_generation:
        raise _no_newcomer(
            record, member, f"was in generation {before.notified_generation}, of which it reports nothing"
        )
    if report is not None:
        if before.phase is MemberPhase.IN and report.generation < before.notified_generation:
            # A repeated JOIN whose answer was lost: the member is in this generation already.
            return record
        _check_report(record, before, report)
    _check_address(record, member)
    if _belongs(record, before):
        record = end_generation(record, f"rank {member.rank} is out of generation {record.generation}, and joins again")
    return _with_member(
        record,
        replace(
            member,
            phase=MemberPhase.WAITING,
            joined_generation=before.joined_generation,
            notified_generation=before.notified_generation,
        ),
    )


def _check_report(record: JobRecord, before: Member, report: Report) -> None:
    if report.generation != before.notified_generation:
        told = before.notified_generation or "none"
        what = f"reports generation {report.generation}, the last one that it was told of is {told}"
        raise _no_newcomer(record, before, what)
    if before.report is not None:
        raise _no_newcomer(record, before, f"has reported generation {report.generation} otherwise before")
    if len(report.further_shards) != len(before.further):
        what = f"report of {1 + len(report.further_shards)} shards of job {record.name!r}"
        raise InvalidRequestError(what, hint=f"it has {1 + len(before.further)}: use the same hopsum on both sides")
    # The decision about all reports goes into one message, so its runs are counted before the report is taken.
    check_decision_size({**_reports(record), before.rank: report}, record.region.size)


def mark_notified(record: JobRecord, rank: int) -> JobRecord:
    """Return the record in which a member knows the running generation that it is in. Its report is dropped.

    The record has to be written before the member is answered (E4). Raises ControlPlaneError if no generation runs, or
    the member is not in it.
    """
    member = record.member(rank)
    if member is None or member.phase is not MemberPhase.IN or record.state is not JobState.RUNNING:
        raise _fault(record, f"tell rank {rank} of its generation")
    return _with_member(record, replace(member, notified_generation=record.generation, report=None))


def leave(record: JobRecord, rank: int, unfinished: str | None = None) -> JobRecord:
    """Return the record after a member has left. Its entries stay until all workers of the generation have gone.

    The last worker that leaves ends the generation, and so does any worker in INSTALLING. A member outside the
    generation is forgotten. `unfinished` is the reason if its work was not done: then a worker of the generation is
    lost, see `lose`. The record is returned unchanged if the member is absent or left, or was lost in this generation.
    """
    member = record.member(rank)
    if member is None or member.phase is MemberPhase.LEFT:
        return record
    if member.phase is MemberPhase.LOST and _belongs(record, member):
        # The member stays LOST: another worker that takes its rank still ends the generation.
        return record
    if unfinished is not None and _belongs(record, member):
        return lose(record, rank, f"rank {rank} left unfinished: {unfinished}", f"it left unfinished: {unfinished}")
    if member.phase is not MemberPhase.IN:
        return _retire(_without(record, rank), member)
    if record.state is JobState.INSTALLING:
        return end_generation(_retire(_without(record, rank), member), f"rank {rank} left before the job ran")
    return _end_if_all_gone(_with_member(record, replace(member, phase=MemberPhase.LEFT)))


def restarted_ranks(record: JobRecord) -> tuple[int, ...]:
    """Return the ranks that wait while a generation runs: their workers left it and were started again. Else empty."""
    waiting = (member.rank for member in record.members if member.phase is MemberPhase.WAITING)
    return tuple(waiting) if record.state is JobState.RUNNING else ()


def go_without(record: JobRecord, ranks: Collection[int]) -> JobRecord:
    """Return the record whose next generation does not wait for these ranks, as far as they are in `spared_ranks`."""
    spared = (rank for rank in record.spared_ranks if rank in ranks)
    return replace(record, absent=tuple(sorted({*record.absent, *spared})))


def lose(record: JobRecord, rank: int, why: str, told: str = "") -> JobRecord:
    """Return the record in which a member is lost. Its generation ends unless it runs with a quorum of workers left.

    A generation whose last workers are gone ends too. `why` is the reason of the end. `told` is the reason of the
    eviction for the member itself, empty for silence. A record without the member, or with a member that left or is
    lost, is returned unchanged. A member that only waits for a generation ends none.
    """
    member = record.member(rank)
    if member is None or member.phase not in LEASED:
        return record
    after = _with_member(record, replace(member, phase=MemberPhase.LOST, report=None, why=told))
    if member.phase is not MemberPhase.IN or not _belongs(record, member):
        return after
    # The sums continue without the member: its entries stay, and the quorum completes each sum.
    if record.state is JobState.RUNNING and after.live_workers >= record.quorum:
        return _end_if_all_gone(after)
    workers = record.spec.ranks if record.job is None else record.job.spec.total
    left = f"; {after.live_workers} of {workers} workers are left, a quorum is {record.quorum}"
    return end_generation(after, why + (left if record.quorum < workers else ""))


def lose_waiting(record: JobRecord, why: str) -> JobRecord:
    """Return the record with all waiting workers lost for reason `why`: their settings differ, and any may be right."""
    for member in record.members:
        if member.phase is MemberPhase.WAITING:
            record = _with_member(record, replace(member, phase=MemberPhase.LOST, report=None, why=why))
    return record


def evict_laggards(record: JobRecord) -> JobRecord:
    """Return the record with waiting workers lost that lack results which no worker has any more.

    A record that is not ready for a generation is returned unchanged.
    """
    if not record.ready:
        return record
    # Summing again what a worker has delivered already would give a second result (rule E3).
    for rank in laggard_ranks(_reports(record), record.newcomers):
        member = record.member(rank)
        if member is not None:
            why = "it lacks results that the others have delivered and dropped: it was too far behind"
            record = _with_member(record, replace(member, phase=MemberPhase.LOST, report=None, why=why))
    return record


def start_generation(record: JobRecord, job: Job, below: Mapping[str, Job] | None = None) -> JobRecord:
    """Return the record in INSTALLING, with all waiting workers in the generation of `job`. Its entries come next.

    `job` has the record's place and `next_spec()`. In a tree it is the spine's part, and `below` has those of the
    leaves at which workers wait. Of several shards it is the first one's, and `below` has those of the others. Raises
    ControlPlaneError if the record is not ready, or these are not the parts of its waiting workers.
    """
    below = below or {}
    placed = {record.switch: job, **below}
    # A fault of the caller would put entries into another job's slots: checked, though it cannot happen.
    right = all((each.job_index, each.region) == record.place(name) for name, each in placed.items())
    right = right and {each.generation for each in placed.values()} == {job.generation} and _has_all(record, job, below)
    if not record.ready or not right:
        raise _fault(record, f"begin generation {job.generation}")
    branches = tuple(replace(branch, job=below.get(branch.switch)) for branch in record.branches)
    # All switches of a job see the same window: what the narrowest one takes.
    window = min(each.window for each in placed.values())
    reports = _reports(record)
    # A worker without a report is new to the stream: it begins after everything that others have submitted.
    workers = [m.rank for m in record.members if m.phase is MemberPhase.WAITING]
    newcomers = [rank for rank in workers if rank not in reports]
    resume = decide(reports, newcomers, slots=window, generation=job.generation, before=record.newcomers)
    members = (
        replace(m, phase=MemberPhase.IN, joined_generation=job.generation) if m.phase is MemberPhase.WAITING else m
        for m in record.members
    )
    after = replace(record, state=JobState.INSTALLING, job=job, members=tuple(members), resume=resume)
    return replace(after, branches=branches, confirmed=())


def _has_all(record: JobRecord, job: Job, below: Mapping[str, Job]) -> bool:
    """Return whether these parts are made of the waiting workers, each at its switch."""
    waiting = {m.endpoint: m.leaf for m in record.members if m.phase is MemberPhase.WAITING}
    if not record.branches or record.is_sharded:
        specs = {branch.switch: record.next_spec(shard) for shard, branch in enumerate(record.branches, 1)}
        return job.spec == record.next_spec() and {name: part.spec for name, part in below.items()} == specs
    placed = {worker: leaf for leaf, part in below.items() for worker in part.spec.workers}
    numbers = {leaf.number: leaf.members for leaf in job.spec.leaves}
    ranks = {p.spec.parent.number: tuple(w.rank for w in p.spec.workers) for p in below.values() if p.spec.parent}
    return placed == waiting and numbers == ranks and not job.spec.workers


def on_installed(record: JobRecord, job: Job, at: str = "") -> JobRecord:
    """Return the record in which a switch has confirmed all its entries. The last switch makes the state RUNNING.

    `job` is the Job that the controller of switch `at` returned. Without `at` it is the record's own switch. Raises
    ControlPlaneError if the record does not wait for that.
    """
    at = at or record.switch
    if record.state is not JobState.INSTALLING or job != record.parts.get(at) or at in record.confirmed:
        raise _fault(record, f"run generation {job.generation}")
    # The switch adds the event counters' values at the start to the job; equality does not compare them.
    if at == record.switch:
        record = replace(record, job=job)
    branches = tuple(replace(branch, job=job) if branch.switch == at else branch for branch in record.branches)
    record = replace(record, branches=branches, confirmed=(*record.confirmed, at))
    # Other switches of the job still lack their entries: nobody is told of the generation before all have them (T7).
    if record.next_switches:
        return record
    resume, newcomers = record.resume, record.newcomers
    if resume is None:
        newcomers = None
    # Remembered until the next start with newcomers: a worker that misses this generation must void the same
    # positions.
    elif resume.start_generation == job.generation:
        newcomers = resume
    return replace(record, state=JobState.RUNNING, newcomers=newcomers, confirmed=())


def end_generation(record: JobRecord, reason: str) -> JobRecord:
    """Return the record with its generation ended for `reason`. Without a generation it stays unchanged.

    The state becomes CHANGING: the entries on the switches have to be removed. Members that left are forgotten. The
    others of the generation become OVER, or WAITING if they do not know of it.
    """
    if record.state not in (JobState.INSTALLING, JobState.RUNNING):
        return record
    # Workers that left have their end: they are forgotten, and their incarnations retired.
    gone = [m.incarnation for m in record.members if m.phase is MemberPhase.LEFT]
    members = (
        # A member that was not told of this generation has nothing to report of it, and continues to wait.
        replace(m, phase=MemberPhase.OVER if m.notified_generation == record.generation else MemberPhase.WAITING)
        if m.phase is MemberPhase.IN
        else m
        for m in record.members
        if m.phase is not MemberPhase.LEFT
    )
    after = replace(record, state=JobState.CHANGING, reason=reason, members=tuple(members), confirmed=())
    return replace(after, retired=_last((*after.retired, *gone)))


def delete_job(record: JobRecord, reason: str = "the job was deleted") -> JobRecord | None:
    """Return the record in ENDING, for `reason`, or None if no switch can have entries: the job is gone at once."""
    # In FORMING no switch has an entry of the job.
    if record.state is JobState.FORMING and not record.departed:
        return None
    confirmed = record.confirmed if record.state in (JobState.CHANGING, JobState.ENDING) else ()
    return replace(record, state=JobState.ENDING, reason=reason, confirmed=confirmed)


def on_removed(record: JobRecord, at: str = "") -> JobRecord | None:
    """Return the record in which a switch has confirmed the removal of the ended generation's entries.

    After the last switch the state is FORMING, or for a deleted job the result is None if no switch has entries of it.
    Without `at` it is the record's own switch. Raises ControlPlaneError if the record does not wait for that.
    """
    at = at or record.switch
    if record.state not in (JobState.CHANGING, JobState.ENDING) or at not in record.next_switches:
        raise _fault(record, "form again")
    return _advance(replace(record, confirmed=(*record.confirmed, at)))


def move(
    record: JobRecord, away: str, to: BranchAssignment, seats: Mapping[int, ShardSeat], reason: str
) -> JobRecord | None:
    """Return the record with place `to` instead of switch `away` from its next generation on. Its generation ends.

    `seats` are the places of the members at the new switch, by rank, and `reason` is that of the generation's end. The
    entries on `away` are removed when that switch answers, and no generation waits for it. Raises ControlPlaneError for
    a job that is ending or over a tree, and for a switch that the job has already; ValueError if the job is not on
    `away`.
    """
    if record.state is JobState.ENDING or (record.branches and not record.is_sharded) or to.switch in record.places:
        raise _fault(record, f"move from {away} to {to.switch}")
    record = end_generation(record, reason)
    shard, standing = record.switches.index(away), record.parts.get(away)
    if standing is not None:
        # The slots at the old switch stay taken until it has confirmed that they are clear (rule S1).
        left = BranchAssignment(away, *record.place(away), standing)
        record = replace(record, departed=(*record.departed, left))
    confirmed = tuple(name for name in record.confirmed if name != away)
    if shard:
        branches = (*record.branches[: shard - 1], replace(to, job=None), *record.branches[shard:])
        record = replace(record, branches=branches, confirmed=confirmed)
    else:
        # The new switch has no entries of the job, so it needs no removal.
        changing = (to.switch,) if record.state is JobState.CHANGING else ()
        record = replace(record, switch=to.switch, job_index=to.job_index, region=to.region)
        record = replace(record, confirmed=(*confirmed, *changing))
    members = (each.with_seat(shard, seats[each.rank]) if each.rank in seats else each for each in record.members)
    record = replace(record, members=tuple(members))
    return _advance(record) if record.state is JobState.CHANGING else record


def on_cleared(record: JobRecord, switch: str) -> JobRecord | None:
    """Record that `switch`, from which the job has moved away, holds no entries of the job any more.

    Return the new record, or None if the job is ending and this was the last switch with entries.
    """
    record = replace(record, departed=tuple(left for left in record.departed if left.switch != switch))
    return _advance(record) if record.state is JobState.ENDING else record


def _advance(record: JobRecord) -> JobRecord | None:
    """Form the job again, or return None for a deleted job, once no switch has entries of the ended generation."""
    if record.next_switches:
        return record
    if record.state is JobState.ENDING:
        return record if record.departed else None
    branches = tuple(replace(branch, job=None) for branch in record.branches)
    # Where nobody is left the job begins anew, with all its workers.
    absent = record.absent if any(member.phase in LEASED for member in record.members) else ()
    record = replace(record, state=JobState.FORMING, job=None, resume=None, branches=branches, confirmed=())
    return replace(record, absent=absent)


def _reports(record: JobRecord) -> dict[int, Report]:
    """Return the reports of the waiting workers, by rank."""
    return {m.rank: m.report for m in record.members if m.phase is MemberPhase.WAITING and m.report is not None}


def _fault(record: JobRecord, what: str) -> ControlPlaneError:
    what = f"job {record.name!r}, {record.state.value}, generation {record.generation}, cannot {what}"
    return ControlPlaneError(what, hint="report this as a fault of the controller")


def _end_if_all_gone(record: JobRecord) -> JobRecord:
    if any(member.phase is MemberPhase.IN for member in record.members):
        return record
    lost = any(member.phase is MemberPhase.LOST and _belongs(record, member) for member in record.members)
    return end_generation(record, f"{FINISHED}{' or are lost' if lost else ''}")


def _belongs(record: JobRecord, member: Member) -> bool:
    """Return whether a member is a worker of a running generation, lost or not: another one in its rank ends it."""
    lasts = record.state in (JobState.INSTALLING, JobState.RUNNING)
    inside = member.joined_generation == record.generation and member.phase in (MemberPhase.IN, MemberPhase.LOST)
    return lasts and inside


def _no_newcomer(record: JobRecord, member: Member, what: str) -> UnauthenticatedError:
    return UnauthenticatedError(
        f"rank {member.rank} of job {record.name!r} {what}",
        hint="close, connect again, and take the others' state (fetch_state)",
    )


def _check_address(record: JobRecord, member: Member) -> None:
    for other in record.members:
        places = [{(each.ip, each.udp_port) for each in who.endpoints} for who in (other, member)]
        if not places[0].isdisjoint(places[1]) and other.rank != member.rank and other.phase in LEASED:
            raise InvalidRequestError(
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


ROUNDS = 1 << 32
ROUNDS_MOST = ROUNDS // 4 * 3
"""The rounds of a slot after which a generation is ended. The remaining quarter lasts until all workers know."""


def why_rounds_used_up(record: JobRecord, member: Member, position: float) -> str:
    """Return why a generation has to end if three quarters of its rounds are used (N4), else an empty string.

    `position` is the newest one of the member's stream in this generation. A member outside a running generation has
    used none.
    """
    # One round of all slots is as many positions as the window: round = position / slots + 1.
    rounds = position / (record.window or record.region.size)
    if record.state is not JobState.RUNNING or member.phase is not MemberPhase.IN or rounds <= ROUNDS_MOST:
        return ""
    return (
        f"rank {member.rank} has used {rounds:.0f} of the {ROUNDS} rounds that a slot has in a generation: "
        "they begin anew in another"
    )
