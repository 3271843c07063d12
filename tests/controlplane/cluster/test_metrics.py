# SPDX-License-Identifier: Apache-2.0
"""Metrics of a cluster in memory, read by Prometheus's own parser."""

from __future__ import annotations

from typing import Any

import pytest

from hopsum_base import __version__
from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster import ClusterController
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_controlplane.errors import NotPrimaryError, SessionLostError
from hopsum_controlplane.web.prometheus_metrics import FAMILIES, PREFIX, collect, render_metrics
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire import JOB_EVENTS, Drop, Event
from hopsum_wire.watch.heartbeat import NAMES

from ...support.printed import Values, parse_metrics
from .conftest import MakeCluster
from .world import LEASE_S, Cluster, device_of, switch_config


def values_of(controller: ClusterController, **options: Any) -> Values:
    return parse(render_metrics(controller, **options))


def test_a_switch_and_its_jobs(cluster: Cluster) -> None:
    device = device_of(cluster)
    crew = cluster.run("train", 2, 16)
    cluster.make("next", 3, 8)
    index = cluster.controller.job("train").job_index
    device.counters["job_events"] = {index * JOB_EVENTS + Event.ADDED: 40, index * JOB_EVENTS + Event.DUPLICATE: 3}
    device.counters["drops"] = {Drop.UNKNOWN_GENERATION: 5}
    times = {"seconds_le_0.1": 3, "seconds_le_0.3": 6, "seconds_le_1": 7}
    crew[0].beat(allreduces=7, seconds=1.25, retransmits=2, bytes_sent=2**53 - 1, codes_add16=5, **times)
    cluster.clock.sleep(4)
    crew[1].beat()
    values = values_of(cluster.controller)
    assert values[f'build_info{{version="{__version__}"}}'] == values["database_writable"] == 1
    assert values['switch_up{switch="s1"}'] == 1
    assert values['switch_condition{switch="s1",reason="unreachable"}'] == 0
    assert values['switch_slots_used{switch="s1"}'] == 24
    assert values['switch_slots{switch="s1"}'] == 2048
    assert values['switch_jobs{switch="s1",state="running"}'] == 1
    assert values['switch_jobs{switch="s1",state="forming"}'] == 1
    assert values['switch_jobs{switch="s1",state="ending"}'] == 0
    assert values['switch_dropped_packets_total{switch="s1",reason="unknown_generation"}'] == 5
    assert values['job_packets_total{job_name="train",switch="s1",event="added"}'] == 40
    assert values['job_packets_total{job_name="train",switch="s1",event="duplicate"}'] == 3
    assert 'job_packets_total{job_name="next",switch="s1",event="added"}' not in values
    assert values['job_generations_begun_total{job_name="train"}'] == 1
    assert values['job_missing_ranks{job_name="next"}'] == 3
    assert values['job_members{job_name="train",phase="in"}'] == 2
    assert values['member_lease_remaining_seconds{job_name="train",rank="0"}'] == LEASE_S - 4
    assert values['member_lease_remaining_seconds{job_name="train",rank="1"}'] == LEASE_S
    assert values['member_allreduces_total{job_name="train",rank="0"}'] == 7
    assert values['member_allreduce_duration_seconds_sum{job_name="train",rank="0"}'] == 1.25
    assert values['member_allreduce_duration_seconds_count{job_name="train",rank="0"}'] == 7
    told = [
        (bound, values.get(f'member_allreduce_duration_seconds_bucket{{job_name="train",rank="0",le="{bound}"}}'))
        for bound in ("0.03", "0.1", "0.3", "1", "3", "+Inf")
    ]
    assert told == [("0.03", None), ("0.1", 3), ("0.3", 6), ("1", 7), ("3", None), ("+Inf", 7)]
    assert not any(name.startswith("member_allreduce_duration_seconds") and 'rank="1"' in name for name in values)
    assert values['member_codes_total{job_name="train",rank="0",op="add16"}'] == 5
    assert values['member_retransmits_total{job_name="train",rank="0"}'] == 2
    assert values['member_sent_bytes_total{job_name="train",rank="0"}'] == 2**53 - 1
    assert values["members_truncated"] == 0


def test_generations_are_counted_and_losses_seen(cluster: Cluster) -> None:
    crew = cluster.run("train")
    for _ in range(2):
        crew[1].start_again()
        crew[0].join()
        crew[0].membership()
    assert values_of(cluster.controller)['job_generations_begun_total{job_name="train"}'] == 3
    cluster.clock.sleep(LEASE_S + 1)
    cluster.controller.tick()
    values = values_of(cluster.controller)
    assert values['job_members{job_name="train",phase="lost"}'] == 2
    assert 'member_lease_remaining_seconds{job_name="train",rank="0"}' not in values
    cluster.controller.delete_job("train")
    assert not any("train" in name for name in values_of(cluster.controller))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SessionLostError("nobody answers"), "unreachable"),
        (NotPrimaryError("another one is"), "not_primary"),
        (ControlPlaneError("odd"), "other"),
    ],
)
def test_a_condition_has_a_reason(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, error: ControlPlaneError, kind: str
) -> None:
    cluster = make_cluster()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(device_of(cluster), "read_counter", fail)
    assert values_of(cluster.controller)['switch_up{switch="s1"}'] == 0
    values = values_of(cluster.controller)
    assert {name for name in values if name.startswith("switch_condition") and values[name]} == {
        f'switch_condition{{switch="s1",reason="{kind}"}}'
    }
    assert not any(name.startswith("switch_dropped") for name in values)


def test_sessions_show_reconnects(make_cluster: MakeCluster) -> None:
    switch = FakeDevice()
    cluster = make_cluster()
    cluster.devices = {"s1": ReconnectingDevice(lambda: switch, 0)}
    switch.read_cookie = lambda: 0  # type: ignore[method-assign]
    cluster.start()
    assert values_of(cluster.controller)['switch_sessions_total{switch="s1"}'] == 1


def test_members_are_bounded_and_other_statistics_left_out(cluster: Cluster) -> None:
    for number in range(3):
        for worker in cluster.run(f"job{number}"):
            worker.beat(allreduces=1, **{f"made-up{n}": 1.0 for n in range(60)})
    values = values_of(cluster.controller, max_members=4)
    assert values["members_truncated"] == 2
    shown = sum(name.startswith("member_allreduces_total") for name in values)
    assert shown == 4
    assert not any("made" in name for name in values)


def test_no_secret_and_no_address_of_a_worker_is_shown(cluster: Cluster) -> None:
    crew = cluster.run("train")
    text = render_metrics(cluster.controller)
    assert "train" in text
    for worker in crew:
        for secret in (worker.token, repr(worker.secret)[2:-1], worker.secret.hex(), worker.request().ip):
            assert secret not in text


def test_every_family_is_declared_once_and_used(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(switch_config(1), switch_config(2, {1: "10.0.0.0/16"}))
    for worker in cluster.run("train"):
        worker.beat(**dict.fromkeys(NAMES, 1.0))
    families = collect(cluster.controller, certificate_ends_at_s=1.0)
    assert [family.name for family in families] == [PREFIX + name.removesuffix("_total") for name, *_ in FAMILIES]
    assert [family.name for family in families if not family.samples] == []
    for family, (_, _, _, labels) in zip(families, FAMILIES, strict=True):
        for sample in family.samples:
            assert {*sample.labels} - {"le"} == {*labels}, sample


_LABELS = {PREFIX + name.removesuffix("_total"): labels for name, _, _, labels in FAMILIES}


def parse(text: str) -> Values:
    """Return the values by name with labels in the order of their declaration, without the prefix."""
    return {name.removeprefix(PREFIX): value for name, value in parse_metrics(text, _LABELS).items()}
