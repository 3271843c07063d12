# SPDX-License-Identifier: Apache-2.0
"""A desk behind the service, a cluster controller behind it, and a token file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum_base.token_files import AdminToken
from hopsum_controlplane.service.access import Safeguards
from hopsum_controlplane.service.grpc_service import Service
from hopsum_ptf.fake_device import FakeDevice

from ...controlplane.cluster.world import Cluster, switch_config
from .desk import ADMIN, TOKEN, Desk, desk_service


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on machines behind one; no process listens at this one, so no call may go there."""
    for variable in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")


@pytest.fixture
def served(proxies: None) -> Iterator[tuple[Desk, Service]]:
    with desk_service() as found:
        yield found


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.token"
    path.write_text(TOKEN + "\n")
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A controller in memory, with its database and one switch that is none."""
    switch = switch_config(networks={1: "127.0.0.0/8"}, service_address=("127.0.0.1", 47500))
    found = Cluster(tmp_path, (switch,), {switch.name: FakeDevice()})
    found.start()
    yield found
    found.stop()


@pytest.fixture
def service(cluster: Cluster) -> Iterator[Service]:
    with Service(cluster.controller, "127.0.0.1:0", safeguards=Safeguards(admin_tokens=[AdminToken(ADMIN)])) as found:
        yield found


@pytest.fixture
def channel(service: Service) -> Iterator[Channel]:
    with Channel(ControllerAddress.of(service.address)) as found:
        yield found
