# SPDX-License-Identifier: Apache-2.0
"""The metrics, from what a ClusterController answers. All begin with `hopsum_controller_`.

How many values there are is bounded: a switch has at most 64 jobs, events, drops and statistics have the names that
this version knows (what else an agent says is left out), and at most MAX_MEMBERS members are shown, of the first jobs
by name. `members_truncated` says how many are not. A job over a tree has its slots and its packets once for each of its
switches, and every other value once, so that a sum over the switches counts nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hopsum_base import __version__
from hopsum_controlplane.cluster.cluster_controller import ClusterController
from hopsum_controlplane.cluster.job_status import Health
from hopsum_controlplane.cluster.records import JobState, MemberPhase
from hopsum_wire import Drop, Event, Op
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.values import enum_word
from hopsum_wire.watch.heartbeat import LATENCY_BOUNDS_S, WORKER_COUNTS, codes_name, latency_name

MAX_MEMBERS: Final = 1024
CONDITION_REASONS: Final = ("unreachable", "not_primary", "other_program", "store", "undecided", "other")

_SWITCH: Final = ("switch",)
_JOB: Final = ("job_name",)
_PART: Final = ("job_name", "switch")
_MEMBER: Final = ("job_name", "rank")
_Declared = tuple[str, Literal["counter", "gauge", "histogram"], str, tuple[str, ...]]

FAMILIES: Final[Sequence[_Declared]] = (
    ("build_info", "gauge", "1 for the version of hopsum that runs.", ("version",)),
    ("database_writable", "gauge", "1 while the database can be written.", ()),
    ("certificate_expiry_timestamp_seconds", "gauge", "Unix time at which the service's certificate ends.", ()),
    ("switch_up", "gauge", "1 while the controller drives the switch.", _SWITCH),
    ("switch_condition", "gauge", "1 for the reason why the controller cannot use the switch.", ("switch", "reason")),
    ("switch_slots", "gauge", "Slots that jobs may use.", _SWITCH),
    ("switch_slots_used", "gauge", "Slots that jobs have.", _SWITCH),
    ("switch_slots_largest_free", "gauge", "Slots of the largest job that there is room for.", _SWITCH),
    ("switch_jobs", "gauge", "Jobs in a state.", ("switch", "state")),
    ("switch_dropped_packets_total", "counter", "Packets that the program dropped.", ("switch", "reason")),
    ("switch_audits_total", "counter", "Comparisons of the switch with the database.", _SWITCH),
    ("switch_entries_repaired_total", "counter", "Entries that audits removed or restored.", _SWITCH),
    ("switch_sessions_total", "counter", "P4Runtime sessions: all but the first are reconnects.", _SWITCH),
    ("job_generations_begun_total", "counter", "Generations that were begun.", _JOB),
    ("job_joins_refused_total", "counter", "Joins with the right token that were refused.", _JOB),
    ("job_condition", "gauge", "1 while a switch lacks what the job needs.", _JOB),
    ("job_health", "gauge", "1 for how well the job is.", (*_JOB, "health")),
    ("job_slots", "gauge", "Slots of the job at a switch.", _PART),
    ("job_workers", "gauge", "Workers that the job was made for.", _JOB),
    ("job_quorum", "gauge", "Workers that complete a sum.", _JOB),
    ("job_members", "gauge", "Members in a phase.", (*_JOB, "phase")),
    ("job_missing_ranks", "gauge", "Workers that the next generation lacks.", _JOB),
    ("job_packets_total", "counter", "Packets of this generation at a switch, by what they did.", (*_PART, "event")),
    ("member_lease_remaining_seconds", "gauge", "Until the member is evicted.", _MEMBER),
    *((count.metric, "counter", count.meaning, _MEMBER) for count in WORKER_COUNTS if count.metric),
    ("member_allreduce_duration_seconds", "histogram", "Time of an all-reduce, from vector to mean.", _MEMBER),
    ("member_codes_total", "counter", "Lanes of which the agent has the sums, bits for OR.", (*_MEMBER, "op")),
    ("members_truncated", "gauge", "Members beyond those of which values are shown.", ()),
)
PREFIX: Final = "hopsum_controller_"

_KINDS: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
_encode, CONTENT_TYPE = choose_encoder("")


class ControllerCollector(Collector):
    """The metrics of a controller, for a registry of prometheus_client."""

    def __init__(
        self, controller: ClusterController, max_members: int = MAX_MEMBERS, certificate_ends_at_s: float | None = None
    ) -> None:
        self._controller, self._max_members = controller, max_members
        self._certificate_ends_at_s = certificate_ends_at_s

    def collect(self) -> Iterable[Metric]:
        """Read the controller and its switches now, and return the families that have values."""
        found = collect(self._controller, self._max_members, self._certificate_ends_at_s)
        return [family for family in found if family.samples]


def render_metrics(
    controller: ClusterController, max_members: int = MAX_MEMBERS, *, certificate_ends_at_s: float | None = None
) -> str:
    """Read the controller and its switches now, and return the metrics as text of type CONTENT_TYPE.

    The arguments are those of `collect`.
    """
    # A registry for each scrape: the values are read at that moment, and none is kept.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ControllerCollector(controller, max_members, certificate_ends_at_s))
    return bytes(_encode(registry)).decode()


def collect(
    controller: ClusterController, max_members: int = MAX_MEMBERS, certificate_ends_at_s: float | None = None
) -> list[Metric]:
    """Read the controller and its switches now, and return all families of FAMILIES, some without values.

    A switch that does not answer soon lacks its counters. Members beyond `max_members` are left out, and counted.
    `certificate_ends_at_s` is in unix seconds, None without TLS.
    """
    made: dict[str, Metric] = {
        name: _KINDS[kind](PREFIX + name, text, labels=labels) for name, kind, text, labels in FAMILIES
    }
    _add(made["build_info"], 1, __version__)
    _add(made["database_writable"], int(not controller.database_condition))
    if certificate_ends_at_s is not None:
        _add(made["certificate_expiry_timestamp_seconds"], certificate_ends_at_s)
    jobs = controller.jobs(counters=True)
    for switch in controller.switches():
        _add_switch(made, switch, [job for job in jobs if switch.name in job.switches])
    for job in jobs:
        _add_job(made, job)
    members = [(job.name, member) for job in jobs for member in job.members]
    # Prometheus keeps a series for each label: jobs by the hundred must not make it run out of memory.
    for name, member in members[:max_members]:
        _add_member(made, name, member)
    _add(made["members_truncated"], max(len(members) - max_members, 0))
    return list(made.values())


def _add_switch(made: dict[str, Metric], switch: pb.Switch, jobs: Iterable[pb.Job]) -> None:
    name = switch.name
    _add(made["switch_up"], int(switch.reachable), name)
    for reason in CONDITION_REASONS:
        _add(made["switch_condition"], int(switch.condition_reason == reason), name, reason)
    for field in ("slots", "slots_used", "slots_largest_free"):
        _add(made[f"switch_{field}"], getattr(switch, field), name)
    for field in ("audits", "entries_repaired", "sessions"):
        _add(made[f"switch_{field}_total"], getattr(switch, field), name)
    states = [enum_word(pb.JobState.DESCRIPTOR, job.state) for job in jobs]
    for state in JobState:
        _add(made["switch_jobs"], states.count(state.value), name, state.value)
    for drop in Drop:
        if (word := drop.name.lower()) in switch.drops:
            _add(made["switch_dropped_packets_total"], switch.drops[word], name, word)


def _add_job(made: dict[str, Metric], job: pb.Job) -> None:
    labels = (job.name,)
    _add(made["job_generations_begun_total"], job.generations_begun, *labels)
    _add(made["job_joins_refused_total"], job.joins_refused, *labels)
    _add(made["job_condition"], int(bool(job.condition)), *labels)
    word = enum_word(pb.JobHealth.DESCRIPTOR, job.health)
    for health in Health:
        _add(made["job_health"], int(word == health.value), *labels, health.value)
    _add(made["job_workers"], job.workers, *labels)
    _add(made["job_quorum"], job.quorum, *labels)
    phases = [enum_word(pb.MemberPhase.DESCRIPTOR, member.phase) for member in job.members]
    for phase in MemberPhase:
        _add(made["job_members"], phases.count(phase.value), *labels, phase.value)
    _add(made["job_missing_ranks"], len(job.missing_ranks), *labels)
    parts = [(part.switch, part.slots, part.counters) for part in job.parts]
    for switch, slots, counted in parts or [(job.switches[0], job.slots, job.counters)]:
        _add(made["job_slots"], slots, job.name, switch)
        for event in Event:
            if (word := event.name.lower()) in counted:
                _add(made["job_packets_total"], counted[word], job.name, switch, word)


def _add_member(made: dict[str, Metric], job: str, member: pb.Member) -> None:
    labels = (job, str(member.rank))
    if member.HasField("lease_left_s"):
        _add(made["member_lease_remaining_seconds"], round(member.lease_left_s, 3), *labels)
    for count in WORKER_COUNTS:
        if count.metric and count.name in member.statistics:
            _add(made[count.metric], member.statistics[count.name], *labels)
    for op in Op:
        if (statistic := codes_name(op)) in member.statistics:
            _add(made["member_codes_total"], member.statistics[statistic], *labels, op.name.lower())
    _add_times(made["member_allreduce_duration_seconds"], member.statistics, labels)


def _add_times(family: Metric, told: Mapping[str, float], labels: tuple[str, ...]) -> None:
    within = [(f"{bound_s:g}", told[name]) for bound_s in LATENCY_BOUNDS_S if (name := latency_name(bound_s)) in told]
    if within and "seconds" in told and "allreduces" in told:
        assert isinstance(family, HistogramMetricFamily)
        family.add_metric(labels, [*within, ("+Inf", told["allreduces"])], told["seconds"])


def _add(family: Metric, value: float, *labels: str) -> None:
    assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
    family.add_metric(labels, value)
