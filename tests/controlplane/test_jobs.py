# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a specification is said before anything is allotted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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


def test_a_table_too_fine_for_the_workers(make_spec: Callable[..., JobSpec]) -> None:
    assert "n * g = 13 workers * granularity 20 = 260" in refusal(make_spec(workers=13))
