# SPDX-License-Identifier: Apache-2.0
"""A specification that is wrong is refused before anything is allotted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hopsum_controlplane import ControlPlaneError, JobSpec, WorkerEndpoint


def refusal(spec: JobSpec) -> str:
    with pytest.raises(ControlPlaneError) as error:
        spec.check()
    return str(error.value)


def with_worker(spec: JobSpec, **changes: object) -> JobSpec:
    first, *rest = spec.workers
    return replace(spec, workers=(replace(first, **changes), *rest))


@pytest.mark.parametrize("workers", [1, 2, 64])
def test_a_right_specification_passes(make_spec: Callable[..., JobSpec], workers: int) -> None:
    make_spec(workers=workers, table=None).check()


def test_ranks_in_any_order_pass(make_spec: Callable[..., JobSpec]) -> None:
    spec = make_spec(workers=3)
    replace(spec, workers=spec.workers[::-1]).check()


def test_numbers_out_of_range(make_spec: Callable[..., JobSpec]) -> None:
    assert "without a name" in refusal(make_spec(name=""))
    assert "0 workers; a job has 1 .. 64" in refusal(make_spec(workers=0))
    assert "65 workers" in refusal(make_spec(workers=65, table=None))
    assert "0 slots; a job has 1 .. 2048" in refusal(make_spec(slots=0))
    assert "2049 slots" in refusal(make_spec(slots=2049))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 1}, "ranks 1, 1, 2; 3 workers have the ranks 0 .. 2, each once"),
        ({"rank": 3}, "ranks 3, 1, 2"),
        ({"port": 511}, "worker 0 on switch port 511"),
        ({"port": -1}, "worker 0 on switch port -1"),
        ({"udp_port": 0}, "UDP port 0"),
        ({"udp_port": 65536}, "UDP port 65536"),
        ({"mac": "ff:ff:ff:ff:ff:ff"}, "'ff:ff:ff:ff:ff:ff' is not the MAC address of a host"),
        ({"ip": "10.0.0"}, "'10.0.0' is not the IPv4 address of a host"),
        ({"ip": "224.0.0.1"}, "'224.0.0.1' is not"),
        ({"ip": "10.0.0.2", "udp_port": 4001}, "several workers at 10.0.0.2:4001"),
    ],
)
def test_wrong_workers(make_spec: Callable[..., JobSpec], changes: dict[str, object], message: str) -> None:
    assert message in refusal(with_worker(make_spec(), **changes))


def test_workers_may_share_an_address_and_a_switch_port() -> None:
    workers = tuple(WorkerEndpoint(rank, 1, "02:00:00:00:01:01", "127.0.0.1", 5000 + rank) for rank in range(4))
    JobSpec("loopback", workers, 8).check()


@pytest.mark.parametrize(("quorum", "min_quorum"), [(None, 1), (None, 3), (1, 1), (3, 3), (2, 1)])
def test_quorums_that_pass(make_spec: Callable[..., JobSpec], quorum: int | None, min_quorum: int) -> None:
    spec = make_spec(workers=3, quorum=quorum, min_quorum=min_quorum)
    spec.check()
    assert spec.effective_quorum == (quorum or 3)


@pytest.mark.parametrize(
    ("quorums", "message"),
    [
        ({"quorum": 0}, "quorum 0; of 3 workers it is 1 .. 3"),
        ({"quorum": 4}, "quorum 4; of 3 workers it is 1 .. 3"),
        ({"min_quorum": 0}, "min_quorum 0; with quorum 3 it is 1 .. 3"),
        ({"quorum": 2, "min_quorum": 3}, "min_quorum 3; with quorum 2 it is 1 .. 2"),
    ],
)
def test_wrong_quorums(make_spec: Callable[..., JobSpec], quorums: dict[str, int], message: str) -> None:
    assert message in refusal(make_spec(workers=3, **quorums))


def test_observers(make_spec: Callable[..., JobSpec], observer: WorkerEndpoint) -> None:
    make_spec(observers=(observer,)).check()
    make_spec(observers=(replace(observer, rank=65535),)).check()
    make_spec(workers=64, table=None, observers=(observer,)).check()
    assert [member.rank for member in make_spec(workers=2, observers=(observer,)).members] == [0, 1, 64]


def test_wrong_observers(make_spec: Callable[..., JobSpec], observer: WorkerEndpoint) -> None:
    def with_observers(*observers: WorkerEndpoint, **options: Any) -> str:
        return refusal(make_spec(observers=observers, **options))

    other = replace(observer, rank=65, ip="10.0.0.201")
    ranks = "observers have ranks of 64 .. 65535, each once"
    assert f"observers of ranks 63; {ranks}" in with_observers(replace(observer, rank=63))
    assert f"observers of ranks 65536; {ranks}" in with_observers(replace(observer, rank=65536))
    assert f"observers of ranks 64, 64; {ranks}" in with_observers(observer, replace(other, rank=64))
    assert "observer 64 on switch port 511" in with_observers(replace(observer, port=511))
    assert "several workers and observers at 10.0.0.1:4000" in with_observers(
        replace(observer, ip="10.0.0.1", udp_port=4000)
    )
    assert "64 workers and 2 observers; the switch has room for 65" in with_observers(
        observer, other, workers=64, table=None
    )


def test_a_table_of_wide_lanes_too_fine_for_the_workers(make_spec: Callable[..., JobSpec]) -> None:
    table16 = (*range(15), 5000)
    make_spec(workers=13, table=None, table16=table16).check()
    refused = refusal(make_spec(workers=14, table=None, table16=table16))
    assert "n * g = 14 workers * granularity 5000 = 70000 may overflow a lane of 16 bits" in refused
    assert "15 entries" in refusal(make_spec(table16=table16[1:]))


def test_a_table_whose_sums_leave_packed_results_is_refused_with_the_numbers(make_spec: Callable[..., JobSpec]) -> None:
    table6 = tuple(range(16))
    make_spec(workers=4, table=None, table6=table6).check()
    refused = refusal(make_spec(workers=5, table=None, table6=table6))
    assert "n * g = 5 workers * granularity 15 = 75 may overflow a lane of 6 bits, whose maximum is 63" in refused
    assert "granularity 15 allows 4 workers, 5 workers allow granularity 12" in refused
    assert "15 entries" in refusal(make_spec(table6=table6[1:]))


def test_a_table_too_fine_for_the_workers(make_spec: Callable[..., JobSpec]) -> None:
    assert "n * g = 13 workers * granularity 20 = 260" in refusal(make_spec(workers=13))
