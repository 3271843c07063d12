# SPDX-License-Identifier: Apache-2.0
"""Answers of the cluster: values that do not change any more. None shows a token or a secret when printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hopsum_controlplane.cluster.cluster_config import ClusterConfig
from hopsum_controlplane.cluster.conditions import JobCondition
from hopsum_controlplane.cluster.events import JobEvent
from hopsum_controlplane.cluster.health import Health, health_of, why_lost
from hopsum_controlplane.cluster.history import JoinRejections
from hopsum_controlplane.cluster.job_state_cache import GenerationHistory
from hopsum_controlplane.cluster.leases import Leases
from hopsum_controlplane.cluster.membership_builder import leaves_of, switches_of
from hopsum_controlplane.cluster.placement import networks_of
from hopsum_controlplane.cluster.records import LEASED, JobRecord, JobState, Member, MemberPhase
from hopsum_controlplane.cluster.switch_reconciler import SwitchReconciler
from hopsum_controlplane.foreign import ForeignGeneration
from hopsum_controlplane.resource_allocator import FreeCapacity


@dataclass(frozen=True)
class PartView:
    """A job over a tree or over shards as it is on one of its switches. `counters` are its packets there, by event."""

    switch: str
    job_index: int
    slot_base: int
    slots: int
    counters: Mapping[str, int]


@dataclass(frozen=True)
class CreatedJob:
    """A job that was made: its switches, its slots there, and the token that its members join with, told this once.

    Over a tree `switches` are the leaves and then the spine, `parts` what it is on each. The slots are the spine's.
    """

    name: str
    token: str = field(repr=False)
    switches: tuple[str, ...]
    slot_base: int
    slots: int
    workers: int
    parts: tuple[PartView, ...] = ()


@dataclass(frozen=True)
class LeafPlace:
    """Where members whose addresses are of one of these networks send to, as (IPv4 address, UDP port)."""

    send_to: tuple[str, int]
    networks: tuple[str, ...]


@dataclass(frozen=True)
class Located:
    """Where the members of a job send to, as (IPv4 address, UDP port), and how many workers it has.

    Over a tree that depends on where they are: `leaves` has it, and `send_to` is the first one's. Over several shards
    a member sends to all of them: `further` has shards 1 .. k - 1. `codec` and
    `codec_options` are those of the request.
    """

    send_to: tuple[str, int]
    workers: int
    leaves: tuple[LeafPlace, ...] = ()
    codec: str = ""
    codec_options: str = ""
    further: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Joined:
    """A rank, the secret for the other calls of its member, and how long and how often it is listened for."""

    rank: int
    secret: bytes = field(repr=False)
    lease_s: float
    heartbeat_s: float


@dataclass(frozen=True)
class Pending:
    """No generation yet. `missing_ranks` are the workers that are waited for, or none when the switch is.

    `gone_ranks` are those of them without a member. `reason` is why the last generation ended, empty before the first.
    """

    missing_ranks: tuple[int, ...]
    state: JobState
    condition: str = ""
    gone_ranks: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class HeartbeatResult:
    """The answer to a member that says that it lives.

    `generation` is the one that the switch serves with this member in it, 0 for none. `reason` says why the generation
    that the member named is over, or why it has been evicted. It is empty when neither is so. `lost_ranks` are the
    workers that the generation goes on without. `switch_unreachable` says why a switch of that generation cannot be
    reached. It is empty when it can.
    """

    state: JobState
    generation: int
    reason: str
    lost_ranks: tuple[int, ...] = ()
    switch_unreachable: str = ""


@dataclass(frozen=True)
class MemberView:
    """A member of a job. `lease_left_s` is None when it has none, `statistics` are those of its last heartbeat.

    That came `heartbeat_age_s` ago, None where there was none. `reason` is why it was evicted, empty if it was not.
    """

    rank: int
    phase: MemberPhase
    ip: str
    udp_port: int
    side_port: int | None
    port: int
    version: str
    lease_left_s: float | None
    statistics: Mapping[str, float]
    heartbeat_age_s: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class ConditionView:
    """A condition of a job, see `hopsum_controlplane.cluster.conditions`. Its status changed `age_s` ago."""

    type: str
    status: bool
    reason: str
    message: str
    age_s: float


@dataclass(frozen=True)
class EventView:
    """An event of a job, see `hopsum_controlplane.cluster.events`: `count` times in a row, the last one `age_s` ago."""

    type: str
    reason: str
    message: str
    count: int
    age_s: float


@dataclass(frozen=True)
class JobView:
    """A job. `generation` is 0 when nothing of it may stand on the switch, `reason` why its last generation ended.

    `counters` are what the switch did with its packets in this generation, by event: empty when it was not asked.
    Over a tree `switches` are the leaves and then the spine, `parts` what it is on each, and `counters` those of the
    leaves together, where workers' packets come, but `completed`, which is the spine's. Index and slots are the
    spine's, too. With `shards` above 1 the switches are its shards, `parts` what it is on each, and `counters` those
    of all together. `condition` says why the switch does not do what the state wants, if so. Since the controller was
    started, `generations_begun` generations were begun and `joins_refused` joins with the right token refused, the
    last one with the words `last_refusal`.

    `health` and `health_reason` say how well it is, see `hopsum_controlplane.cluster.health`. `last_refusal_age_s`,
    `ended_age_s` and `begun_age_s` are seconds since the last refusal, the end of the last generation that ended, and
    the beginning of the last one that began, or None where there was none since the controller was started.
    `events` are the last ones, the oldest first, and none where one job was not asked for by name.
    """

    name: str
    state: JobState
    reason: str
    condition: str
    generation: int
    switches: tuple[str, ...]
    job_index: int
    slot_base: int
    slots: int
    workers: int
    quorum: int
    min_quorum: int
    observers: int
    lease_s: float
    members: tuple[MemberView, ...]
    missing_ranks: tuple[int, ...]
    counters: Mapping[str, int]
    generations_begun: int
    joins_refused: int
    last_refusal: str
    parts: tuple[PartView, ...] = ()
    health: Health = Health.HEALTHY
    health_reason: str = ""
    last_refusal_age_s: float | None = None
    ended_age_s: float | None = None
    begun_age_s: float | None = None
    codec: str = ""
    codec_options: str = ""
    conditions: tuple[ConditionView, ...] = ()
    events: tuple[EventView, ...] = ()
    shards: int = 1


@dataclass(frozen=True)
class SwitchView:
    """A switch. `condition` is what is wrong with it, if anything is, `condition_reason` that in one word (`errors`).

    `slots` may be used, `slots_used` are. `jobs` is the number of jobs. `drops` are packets by reason, empty when it
    was not asked. `audits` counts audits and `entries_repaired` the entries that audits removed or restored, since
    the controller was started. `findings` is what the last audit that found something found, in words. `sessions`
    counts P4Runtime sessions: all but the first are reconnects. `lease_left_s` is of a switch that `registered`.
    """

    name: str
    driver: str
    address: str
    reachable: bool
    condition: str
    slots: int
    slots_used: int
    slots_largest_free: int
    jobs: int
    drops: Mapping[str, int]
    audits: int
    entries_repaired: int
    findings: tuple[str, ...]
    condition_reason: str
    sessions: int
    registered: bool = False
    lease_left_s: float | None = None


def of_job(
    record: JobRecord,
    leases: Leases,
    now_s: float,
    *,
    lease_s: float,
    condition: str,
    counters: Mapping[str, Mapping[str, int]],
    past: GenerationHistory,
    rejections: JoinRejections,
    conditions: tuple[JobCondition, ...],
) -> JobView:
    """Return the view of a job at a time of the leases' clock. `counters` are by switch."""
    request = record.request
    members = tuple(_of_member(record.name, member, leases, now_s, lease_s) for member in record.members)
    health = health_of(record, condition, {member.rank: member.lease_left_s for member in members}, lease_s)
    return JobView(
        name=record.name,
        state=record.state,
        reason=record.reason,
        condition=condition,
        generation=record.generation,
        switches=switches_of(record),
        job_index=record.job_index,
        slot_base=record.region.base,
        slots=record.region.size,
        workers=request.workers,
        quorum=request.workers if request.quorum is None else request.quorum,
        min_quorum=request.min_quorum,
        observers=request.observers,
        lease_s=lease_s,
        members=members,
        missing_ranks=record.missing_ranks if record.state in (JobState.FORMING, JobState.CHANGING) else (),
        counters=_together(record, counters),
        generations_begun=past.begun,
        joins_refused=rejections.count,
        last_refusal=rejections.last,
        parts=_parts(record, counters),
        health=health.health,
        health_reason=health.reason,
        last_refusal_age_s=_age_s(rejections.at_s, now_s),
        ended_age_s=_age_s(past.ended_at_s, now_s),
        begun_age_s=_age_s(past.begun_at_s, now_s),
        codec=request.codec,
        codec_options=request.codec_options,
        conditions=tuple(
            ConditionView(each.type, each.status, each.reason, each.message, max(now_s - each.since_s, 0.0))
            for each in conditions
        ),
        shards=request.shards,
    )


def with_events(view: JobView, events: tuple[JobEvent, ...], now_s: float) -> JobView:
    """Return a view of a job with its events, at a time of their clock."""
    shown = (
        EventView(each.type.value, each.reason, each.message, each.count, max(now_s - each.at_s, 0.0))
        for each in events
    )
    return replace(view, events=tuple(shown))


def _age_s(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else max(now_s - at_s, 0.0)


def _together(record: JobRecord, counters: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the counters of a job's switch or of all shards, or those of all leaves with `completed` of the spine."""
    top = counters.get(record.switch, {})
    if not record.branches:
        return dict(top)
    total: Counter[str] = Counter()
    for branch in record.branches:
        total.update(counters.get(branch.switch, {}))
    if record.is_sharded:
        return dict(total + Counter(top)) if len(counters) == len(record.switches) else {}
    return {**total, "completed": top["completed"]} if total and top else {}


def of_created(record: JobRecord, token: str) -> CreatedJob:
    """Return what the creator of a job is told of it."""
    base, size = record.region
    return CreatedJob(record.name, token, switches_of(record), base, size, record.request.workers, _parts(record, {}))


def of_place(record: JobRecord, config: ClusterConfig) -> Located:
    """Return where the members of a job send to."""
    request = record.request
    located = partial(Located, workers=request.workers, codec=request.codec, codec_options=request.codec_options)
    if not record.branches:
        return located(config.switch(record.switch).service)
    if record.is_sharded:
        first, *further = [config.switch(name).service for name in record.switches]
        return located(first, further=tuple(further))
    leaves = tuple(
        LeafPlace(leaf.service, tuple(map(str, networks_of(leaf, link)))) for leaf, link in leaves_of(record, config)
    )
    return located(leaves[0].send_to, leaves=leaves)


def _parts(record: JobRecord, counters: Mapping[str, Mapping[str, int]]) -> tuple[PartView, ...]:
    """Return the parts of a job over a tree, leaves first, or over its shards, none of a job on one switch."""
    names = switches_of(record) if record.branches else ()
    places = ((name, *record.place(name)) for name in names)
    return tuple(PartView(name, index, *region, dict(counters.get(name, {}))) for name, index, region in places)


def _of_member(job: str, member: Member, leases: Leases, now_s: float, lease_s: float) -> MemberView:
    at, until_s = member.endpoint, leases.until_s(job, member.rank)
    left_s = None if until_s is None or member.phase not in LEASED else max(until_s - now_s, 0.0)
    statistics = dict(leases.statistics(job, member.rank))
    return MemberView(
        rank=at.rank,
        phase=member.phase,
        ip=at.ip,
        udp_port=at.udp_port,
        side_port=member.side_port,
        port=at.port,
        version=member.version,
        lease_left_s=left_s,
        statistics=statistics,
        heartbeat_age_s=_age_s(leases.heartbeat_at_s(job, member.rank), now_s),
        reason=why_lost(member, lease_s) if member.phase is MemberPhase.LOST else "",
    )


def of_switch(
    reconciler: SwitchReconciler,
    free: FreeCapacity,
    jobs: int,
    drops: Mapping[str, int],
    lease_left_s: float | None = None,
) -> SwitchView:
    """Return the view of a switch on which so much is left, with what is left of its lease if it registered."""
    config = reconciler.config
    return SwitchView(
        name=config.name,
        driver=config.driver,
        address=config.address,
        reachable=reconciler.controller is not None,
        condition=reconciler.condition or _undecided(reconciler.foreign),
        slots=config.slots,
        slots_used=config.slots - free.slots,
        slots_largest_free=free.largest_range,
        jobs=jobs,
        drops=dict(drops),
        audits=reconciler.audits,
        entries_repaired=reconciler.entries_repaired,
        findings=reconciler.findings,
        condition_reason=reconciler.condition_reason or ("undecided" if reconciler.foreign else ""),
        sessions=reconciler.sessions,
        registered=config.registered,
        lease_left_s=lease_left_s,
    )


def _undecided(foreign: Sequence[ForeignGeneration]) -> str:
    """Say which generations the database does not have, or an empty string for none."""
    if not foreign:
        return ""
    return (
        f"not in the database, and kept: {'; '.join(map(str, foreign))}; restore a newer database, or end them with "
        "`hopsum controller --remove-existing`"
    )
