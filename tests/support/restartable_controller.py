# SPDX-License-Identifier: Apache-2.0
"""A cluster controller with its database and service in this process, for workers that join by URL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

import hopsum
from hopsum.agent import Communicator
from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.jobs_client import JobsClient
from hopsum_controlplane.cluster import ClusterConfig, ClusterController, PortRule, StateStore, SwitchConfig
from hopsum_controlplane.devices.device import Device
from hopsum_controlplane.service.grpc_service import Service
from hopsum_topologies.local_cluster import NATIVE_PORT, LocalCluster

SLOTS, LEASE_S, TICK_S = 16, 60.0, 0.05


@dataclass
class RestartableController:
    """A controller that can be stopped and started again over its database."""

    config: ClusterConfig
    devices: dict[str, Device]
    address: str = "127.0.0.1:0"

    @contextmanager
    def running(self) -> Iterator[ClusterController]:
        over = threading.Event()
        with ExitStack() as stack:
            store = StateStore(self.config.database)
            stack.callback(store.close)
            cluster = ClusterController(self.config, store, self.devices)
            stack.callback(_close_between, cluster, store)
            ticking = threading.Thread(target=_tick, args=(cluster, over))
            ticking.start()
            stack.callback(ticking.join)
            stack.callback(over.set)
            service = stack.enter_context(Service(cluster, self.address))
            self.address = service.address  # and so it stays
            yield cluster

    def operator(self, stack: ExitStack) -> JobsClient:
        return JobsClient(stack.enter_context(Channel(ControllerAddress.of(self.address))))

    def connect(self, job: str, token: str, rank: int | None = None, **settings: Any) -> Communicator:
        given = {"codec": "fixed", "backend": "numpy", "deadline_s": 60.0, "replacement_wait_s": 60.0, **settings}
        return hopsum.connect(f"hopsum://{self.address}/{job}", token=token, rank=rank, **given)

    def connect_all(self, job: str, token: str, workers: int = 2, **settings: Any) -> list[Communicator]:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda rank: self.connect(job, token, rank, **settings), range(workers)))


def _close_between(cluster: ClusterController, store: StateStore) -> None:
    """Close the store while no thread of the controller writes it, which SQLite answers with a crash."""
    with cluster._cache.changed:
        store.close()


def _tick(cluster: ClusterController, over: threading.Event) -> None:
    while not over.wait(TICK_S):
        cluster.tick()


def controller_of(cluster: LocalCluster, folder: Path, **settings: float) -> RestartableController:
    """Return a controller for a cluster's switches s1, s2, ..., with its database in a folder. It is not running."""
    switches, devices = [], {}
    for number, switch in enumerate(cluster.switches, 1):
        name, rules = f"s{number}", (PortRule(NATIVE_PORT, IPv4Network("127.0.0.0/8")),)
        switches.append(
            # Nobody connects to this address: the controller is given the devices.
            SwitchConfig(
                name, "native", f"127.0.0.1:{number}", 0, switch.endpoint, rules, service_address=switch.service
            )
        )
        devices[name] = switch.device
    config = ClusterConfig(
        tuple(switches), folder / "state.sqlite", lease_s=LEASE_S, **{"heartbeat_s": 0.2, **settings}
    )
    return RestartableController(config, devices)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[RestartableController]:
    """A controller that is not running yet, with one embedded switch."""
    with LocalCluster(1) as cluster:
        yield controller_of(cluster, tmp_path)


def close_all(jobs: list[Communicator]) -> None:
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(lambda job: job.close(), jobs))
