# SPDX-License-Identifier: Apache-2.0
"""Messages as values of the cluster, and back. What is out of range is for the cluster to refuse."""

from __future__ import annotations

from itertools import islice
from typing import Any

from hopsum_controlplane.cluster.decision import MAX_RUNS, Report
from hopsum_controlplane.cluster.health import Health
from hopsum_controlplane.cluster.records import JobState, MemberPhase
from hopsum_controlplane.cluster.requests import JobRequest, JoinRequest, ShardEndpoint
from hopsum_controlplane.cluster.switch_registry import RegistrationRequest
from hopsum_controlplane.cluster.views import (
    ConditionView,
    CreatedJob,
    EventView,
    HeartbeatResult,
    JobView,
    Located,
    MemberView,
    PartView,
    Pending,
    SwitchView,
)
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import MAX_SHARDS


def join_request(message: Any, token: str) -> JoinRequest:
    """Return what a worker asks for."""
    return JoinRequest(
        job=message.job,
        token=token,
        rank=_given(message, "rank"),
        ip=message.endpoint.ip,
        udp_port=message.endpoint.udp_port,
        mac=_given(message, "mac"),
        side_port=_given(message, "side_port"),
        incarnation=message.incarnation,
        wire_version=message.wire_version,
        version=message.version,
        report=_report(message.report) if message.HasField("report") else None,
        settings=dict(message.settings),
        further=tuple(
            ShardEndpoint(each.endpoint.ip, each.endpoint.udp_port, _given(each, "mac"), _given(each, "side_port"))
            for each in islice(message.further, MAX_SHARDS)
        ),
    )


def _report(message: Any) -> Report:
    held = tuple((run.first, run.end) for run in islice(message.held, MAX_RUNS + 1))
    further = tuple(_report(each) for each in islice(message.further, MAX_SHARDS))
    positions = (message.generation, message.delivered_to, message.submitted_to)
    return Report(*positions, held, message.allreduces_begun, further_shards=further)


def job_request(message: Any) -> JobRequest:
    """Return what an operator asks for."""
    return JobRequest(
        name=message.name,
        workers=message.workers,
        slots=message.slots,
        table=tuple(message.table) or None,
        table16=tuple(message.table16) or None,
        table6=tuple(message.table6) or None,
        digits=tuple(message.digits) or None,
        quorum=_given(message, "quorum"),
        min_quorum=message.min_quorum if message.HasField("min_quorum") else 1,
        switch=_given(message, "switch"),
        lease_s=_given(message, "lease_s"),
        observers=message.observers,
        tree=message.tree,
        codec=message.codec,
        codec_options=message.codec_options,
        shards=message.shards or len(message.shard_switches) or 1,
        shard_switches=tuple(message.shard_switches),
        hosts=message.hosts,
    )


def registration_request(message: Any) -> RegistrationRequest:
    """Return what a switch asks for that registers."""
    return RegistrationRequest(
        name=message.name,
        incarnation=message.incarnation,
        address=message.address,
        mac=message.mac,
        ip=message.ip,
        service=(message.service.ip, message.service.udp_port),
        slots=message.slots,
        device_id=message.device_id,
    )


def created_message(made: CreatedJob) -> pb.CreateJobResponse:
    """Return what an operator is told of a new job, its token among it."""
    return pb.CreateJobResponse(
        name=made.name,
        token=made.token,
        switches=made.switches,
        slot_base=made.slot_base,
        slots=made.slots,
        workers=made.workers,
        parts=[_part_message(part) for part in made.parts],
    )


def located_message(found: Located) -> pb.LocateResponse:
    """Return what a worker is told that is to join."""
    leaves = [pb.LocateResponse.Leaf(send_to=_endpoint(each.send_to), networks=each.networks) for each in found.leaves]
    return pb.LocateResponse(
        send_to=_endpoint(found.send_to),
        workers=found.workers,
        leaves=leaves,
        codec=found.codec,
        codec_options=found.codec_options,
        further=map(_endpoint, found.further),
    )


def pending_message(pending: Pending, again_s: float) -> pb.AwaitMembershipResponse:
    """Return what a worker is told that waits."""
    return pb.AwaitMembershipResponse(
        pending=pb.AwaitMembershipResponse.Pending(
            missing_ranks=pending.missing_ranks,
            again_s=again_s,
            state=_state(pending.state),
            condition=pending.condition,
            gone_ranks=pending.gone_ranks,
            reason=pending.reason,
        )
    )


def beat_message(beat: HeartbeatResult) -> pb.HeartbeatResponse:
    """Return what a worker is told that lives."""
    return pb.HeartbeatResponse(
        state=_state(beat.state),
        generation=beat.generation,
        reason=beat.reason,
        lost_ranks=beat.lost_ranks,
        switch_unreachable=beat.switch_unreachable,
    )


def job_message(view: JobView) -> pb.Job:
    """Return a job."""
    return pb.Job(
        name=view.name,
        state=_state(view.state),
        reason=view.reason,
        condition=view.condition,
        generation=view.generation,
        switches=view.switches,
        job_index=view.job_index,
        slot_base=view.slot_base,
        slots=view.slots,
        workers=view.workers,
        quorum=view.quorum,
        min_quorum=view.min_quorum,
        observers=view.observers,
        lease_s=view.lease_s,
        members=[_member_message(member) for member in view.members],
        missing_ranks=view.missing_ranks,
        counters=view.counters,
        generations_begun=view.generations_begun,
        joins_refused=view.joins_refused,
        last_refusal=view.last_refusal,
        parts=[_part_message(part) for part in view.parts],
        health=_health(view.health),
        health_reason=view.health_reason,
        last_refusal_age_s=view.last_refusal_age_s,
        ended_age_s=view.ended_age_s,
        begun_age_s=view.begun_age_s,
        codec=view.codec,
        codec_options=view.codec_options,
        conditions=[_condition_message(each) for each in view.conditions],
        events=[_event_message(each) for each in view.events],
        shards=view.shards,
    )


def switch_message(view: SwitchView) -> pb.Switch:
    """Return a switch."""
    return pb.Switch(
        name=view.name,
        driver=view.driver,
        address=view.address,
        reachable=view.reachable,
        condition=view.condition,
        slots=view.slots,
        slots_used=view.slots_used,
        slots_largest_free=view.slots_largest_free,
        jobs=view.jobs,
        drops=view.drops,
        audits=view.audits,
        entries_repaired=view.entries_repaired,
        findings=view.findings,
        condition_reason=view.condition_reason,
        sessions=view.sessions,
        registered=view.registered,
        lease_left_s=view.lease_left_s,
    )


def _condition_message(view: ConditionView) -> pb.JobCondition:
    return pb.JobCondition(
        type=view.type, status=view.status, reason=view.reason, message=view.message, age_s=view.age_s
    )


def _event_message(view: EventView) -> pb.JobEvent:
    return pb.JobEvent(type=view.type, reason=view.reason, message=view.message, count=view.count, age_s=view.age_s)


def _member_message(view: MemberView) -> pb.Member:
    return pb.Member(
        rank=view.rank,
        phase=_phase(view.phase),
        endpoint=pb.Endpoint(ip=view.ip, udp_port=view.udp_port),
        side_port=view.side_port,
        port=view.port,
        version=view.version,
        lease_left_s=view.lease_left_s,
        statistics=view.statistics,
        heartbeat_age_s=view.heartbeat_age_s,
        reason=view.reason,
    )


def _part_message(part: PartView) -> pb.Part:
    return pb.Part(
        switch=part.switch,
        job_index=part.job_index,
        slot_base=part.slot_base,
        slots=part.slots,
        counters=part.counters,
    )


def _endpoint(address: tuple[str, int]) -> pb.Endpoint:
    return pb.Endpoint(ip=address[0], udp_port=address[1])


def _state(state: JobState) -> pb.JobState:
    value: pb.JobState = pb.JobState.Value(f"JOB_STATE_{state.name}")
    return value


def _health(health: Health) -> pb.JobHealth:
    value: pb.JobHealth = pb.JobHealth.Value(f"JOB_HEALTH_{health.name}")
    return value


def _phase(phase: MemberPhase) -> pb.MemberPhase:
    value: pb.MemberPhase = pb.MemberPhase.Value(f"MEMBER_PHASE_{phase.name}")
    return value


def _given(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None
