# SPDX-License-Identifier: Apache-2.0
"""Messages as values of the cluster, and back. What is out of range is for the cluster to refuse."""

from __future__ import annotations

from itertools import islice
from typing import Any

from hopsum_controlplane.cluster.answers import HeartbeatResult, Pending, state_number
from hopsum_controlplane.cluster.decision import MAX_RUNS, Report
from hopsum_controlplane.cluster.requests import JobRequest, JoinRequest, ShardEndpoint
from hopsum_controlplane.cluster.switch_registry import RegistrationRequest
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


def pending_message(pending: Pending, again_s: float) -> pb.AwaitMembershipResponse:
    """Return what a worker is told that waits."""
    return pb.AwaitMembershipResponse(
        pending=pb.AwaitMembershipResponse.Pending(
            missing_ranks=pending.missing_ranks,
            again_s=again_s,
            state=state_number(pending.state),
            condition=pending.condition,
            gone_ranks=pending.gone_ranks,
            reason=pending.reason,
        )
    )


def beat_message(beat: HeartbeatResult) -> pb.HeartbeatResponse:
    """Return what a worker is told that lives."""
    return pb.HeartbeatResponse(
        state=state_number(beat.state),
        generation=beat.generation,
        reason=beat.reason,
        lost_ranks=beat.lost_ranks,
        switch_unreachable=beat.switch_unreachable,
    )


def _given(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None
