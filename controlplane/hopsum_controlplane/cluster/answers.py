# SPDX-License-Identifier: Apache-2.0
"""Answers of the cluster, which are messages of control.proto: commands, page, metrics and tests read their fields.

Two of them hold a secret in clear, and are never logged: CreateJobResponse and JoinResponse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from hopsum_controlplane.cluster.cluster_config import ClusterConfig
from hopsum_controlplane.cluster.job_history import JobHistory
from hopsum_controlplane.cluster.job_status import JobStatus, why_lost
from hopsum_controlplane.cluster.leases import Leases
from hopsum_controlplane.cluster.membership_builder import leaves_of, switches_of
from hopsum_controlplane.cluster.placement import networks_of
from hopsum_controlplane.cluster.records import LEASED, JobRecord, JobState, Member, MemberPhase
from hopsum_controlplane.cluster.switch_reconciler import SwitchReconciler
from hopsum_controlplane.resource_allocator import FreeCapacity
from hopsum_wire.control import control_pb2 as pb

Pending = pb.AwaitMembershipResponse.Pending
"""The answer to a member that waits: the ranks that its job lacks, and why no generation runs."""


def job_message(
    record: JobRecord,
    history: JobHistory,
    status: JobStatus,
    left_s: Mapping[int, float | None],
    leases: Leases,
    now_s: float,
    *,
    lease_s: float,
    condition: str,
    counters: Mapping[str, Mapping[str, int]],
    events: bool = False,
) -> pb.Job:
    """Make the message of a job.

    Args:
        history: of the job since the controller was started.
        left_s: seconds that are left of each member's lease, by rank.
        now_s: the time of the clock of `leases` and `history`.
        lease_s: seconds that a member may be silent.
        condition: why the switches do not do what the job wants, empty when they do.
        counters: packets by event, by switch; empty for switches that were not asked.
        events: whether the message has the history's events.
    """
    spec = record.spec
    changing = record.state in (JobState.FORMING, JobState.CHANGING)
    return pb.Job(
        name=record.name,
        state=state_number(record.state),
        reason=record.reason,
        condition=condition,
        generation=record.generation,
        switches=switches_of(record),
        job_index=record.job_index,
        slot_base=record.region.base,
        slots=record.region.size,
        workers=spec.ranks,
        quorum=record.quorum,
        min_quorum=spec.min_quorum,
        lease_s=lease_s,
        members=[_member(record.name, each, left_s[each.rank], leases, now_s, lease_s) for each in record.members],
        missing_ranks=record.missing_ranks if changing else (),
        counters=_together(record, counters),
        generations_begun=history.begun,
        joins_refused=history.joins_refused,
        last_refusal=history.last_refusal,
        parts=_parts(record, counters),
        health=pb.JobHealth.Value(f"JOB_HEALTH_{status.health.name}"),
        health_reason=status.reason,
        last_refusal_age_s=_age_s(history.refused_at_s, now_s),
        ended_age_s=_age_s(history.ended_at_s, now_s),
        begun_age_s=_age_s(history.begun_at_s, now_s),
        codec=spec.codec,
        codec_options=spec.codec_options,
        events=_events(history, now_s) if events else (),
        shards=spec.shards,
        min_workers=spec.least_workers,
        absent_ranks=record.absent,
    )


def state_number(state: JobState) -> pb.JobState:
    """Return the number of a state in messages of control.proto."""
    number: pb.JobState = pb.JobState.Value(f"JOB_STATE_{state.name}")
    return number


def _events(history: JobHistory, now_s: float) -> Iterator[pb.JobEvent]:
    for each in history.events:
        yield pb.JobEvent(
            type=each.type,
            reason=each.reason,
            message=each.message,
            count=each.count,
            age_s=_age_s(each.at_s, now_s),
        )


def _age_s(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else max(now_s - at_s, 0.0)


def _member(job: str, member: Member, left_s: float | None, leases: Leases, now_s: float, lease_s: float) -> pb.Member:
    at = member.endpoint
    return pb.Member(
        rank=at.rank,
        phase=pb.MemberPhase.Value(f"MEMBER_PHASE_{member.phase.name}"),
        endpoint=pb.Endpoint(ip=at.ip, udp_port=at.udp_port),
        side_port=member.side_port,
        port=at.port,
        version=member.version,
        lease_left_s=left_s,
        statistics=leases.statistics(job, member.rank),
        heartbeat_age_s=_age_s(leases.heartbeat_at_s(job, member.rank), now_s),
        reason=why_lost(member, lease_s) if member.phase is MemberPhase.LOST else "",
    )


def lease_left_s(record: JobRecord, leases: Leases, now_s: float) -> dict[int, float | None]:
    """Return by rank the seconds that are left of each member's lease, 0 at least, None for a member without one."""
    found: dict[int, float | None] = {}
    for member in record.members:
        until_s = leases.until_s(record.name, member.rank)
        leased = until_s is not None and member.phase in LEASED
        found[member.rank] = max(until_s - now_s, 0.0) if leased and until_s is not None else None
    return found


def _together(record: JobRecord, counters: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the counters of a job's switch or of all shards, or those of all leaves with `completed` of the spine."""
    top = counters.get(record.switch, {})
    if not record.branches:
        return dict(top)
    total: Counter[str] = Counter()
    for branch in record.branches:
        total.update(counters.get(branch.switch, {}))
    # Counters of some shards only would look like a loss: all of them, or none.
    if record.is_sharded:
        return dict(total + Counter(top)) if len(counters) == len(record.switches) else {}
    # Workers' packets come to the leaves, and sums are complete at the spine.
    return {**total, "completed": top["completed"]} if total and top else {}


def create_job_response(record: JobRecord, token: str) -> pb.CreateJobResponse:
    """Make the answer to the creator of a job: the only one that has the job's token."""
    base, size = record.region
    return pb.CreateJobResponse(
        name=record.name,
        token=token,
        switches=switches_of(record),
        slot_base=base,
        slots=size,
        workers=record.spec.ranks,
        parts=_parts(record, {}),
    )


def locate_response(record: JobRecord, config: ClusterConfig) -> pb.LocateResponse:
    """Make the answer to a worker that asks for the address of its switch: one, or one for each leaf or shard.

    Raises ClusterConfigError when a leaf of the job is not configured any more.
    """
    spec = record.spec
    found = pb.LocateResponse(workers=spec.ranks, codec=spec.codec, codec_options=spec.codec_options)
    if record.branches and not record.is_sharded:
        for leaf, link in leaves_of(record, config):
            found.leaves.add(send_to=_endpoint(leaf.service), networks=map(str, networks_of(leaf, link)))
        found.send_to.CopyFrom(found.leaves[0].send_to)
        return found
    first, *further = [_endpoint(config.switch(name).service) for name in record.switches]
    found.send_to.CopyFrom(first)
    found.further.extend(further)
    return found


def _endpoint(address: tuple[str, int]) -> pb.Endpoint:
    return pb.Endpoint(ip=address[0], udp_port=address[1])


def _parts(record: JobRecord, counters: Mapping[str, Mapping[str, int]]) -> Iterable[pb.Part]:
    """Return the parts of a job over a tree, leaves first, or over its shards, none of a job on one switch."""
    for name in switches_of(record) if record.branches else ():
        index, (base, size) = record.place(name)
        yield pb.Part(switch=name, job_index=index, slot_base=base, slots=size, counters=counters.get(name, {}))


def switch_message(reconciler: SwitchReconciler, free: FreeCapacity, jobs: int, drops: Mapping[str, int]) -> pb.Switch:
    """Make the message of a switch.

    Args:
        free: what is left of its slots.
        jobs: the number of jobs that have a place there.
        drops: packets by reason, empty when the switch was not asked.
    """
    config, inventory, undecided = reconciler.config, reconciler.inventory, ""
    if inventory.foreign:
        undecided = (
            f"not in the database, and kept: {'; '.join(map(str, inventory.foreign))}; restore a newer database, or "
            "end them with `hopsum controller --remove-existing`"
        )
    return pb.Switch(
        name=config.name,
        driver=config.driver,
        address=config.address,
        reachable=reconciler.controller is not None,
        condition=reconciler.condition or undecided,
        slots=config.slots,
        slots_used=config.slots - free.slots,
        slots_largest_free=free.largest_range,
        jobs=jobs,
        drops=drops,
        audits=inventory.audits,
        entries_repaired=inventory.entries_repaired,
        findings=inventory.findings,
        condition_reason=reconciler.condition_reason or ("undecided" if inventory.foreign else ""),
        sessions=inventory.sessions,
    )
