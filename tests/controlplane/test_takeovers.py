# SPDX-License-Identifier: Apache-2.0
"""Sessions of controllers at one switch process: after a dead connection, and with equal election ids."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pytest

from hopsum_controlplane import (
    SwitchController,
    SwitchEndpoint,
    artifacts,
)
from hopsum_controlplane.audit import read_installed
from hopsum_controlplane.devices.device import PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.devices.p4runtime_device import P4RuntimeDevice
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_controlplane.entries import Delete, Insert
from hopsum_controlplane.errors import NotPrimaryError
from hopsum_topologies import Bmv2Switch, NativeSwitch

from ..system.drills.silent_proxy import SilentProxy
from .conftest import MakeSpec
from .test_audit import STRANGERS, desired

pytestmark = pytest.mark.system
DEADLINE_S = 60.0
SHORT_S = 5.0


class Rig(NamedTuple):
    """A running switch process."""

    target: str
    address: str


@pytest.fixture(params=["native", "bmv2"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    if request.param == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("simple_switch_grpc is not on PATH")
    switch = Bmv2Switch({}) if request.param == "bmv2" else NativeSwitch(*artifacts.compiled_program())
    with switch as running:
        yield Rig(request.param, running.address)


def test_after_a_dead_connection_the_same_controller_has_its_switch_again(
    rig: Rig, pipeline: PipelineConfig, make_spec: MakeSpec, switch_endpoint: SwitchEndpoint
) -> None:
    """The switch still believes in the session that is dead; so it does after a power loss of the controller's host."""
    with closing(SilentProxy("127.0.0.1", rig.address)) as way:

        def connect() -> P4RuntimeDevice:
            return open_device(rig.target, way.address, owner=7, rpc_timeout_s=SHORT_S, connect_timeout_s=DEADLINE_S)

        device = ReconnectingDevice(connect, pipeline.cookie)
        try:
            ensure_pipeline(device, pipeline)
            job = SwitchController(device, switch_endpoint).create_job(make_spec("first"))
            way.kill_connections()
            assert device.cookie() == pipeline.cookie
            assert device.sessions == 2
            again = SwitchController(device, switch_endpoint, adopt=[job])
            again.delete_job(job)
            assert read_installed(device) == desired(switch_endpoint)
        finally:
            device.close()


def test_two_controllers_with_one_election_id(rig: Rig, pipeline: PipelineConfig) -> None:
    with open_device(rig.target, rig.address, owner=7) as first:
        first.set_pipeline_config(pipeline)
        with pytest.raises(NotPrimaryError, match="with the same election_id 1 as this one; stop that"):
            open_device(rig.target, rig.address, owner=8)
        assert first.cookie() == pipeline.cookie
        first.write([Insert(STRANGERS[3])])
        with open_device(rig.target, rig.address, owner=7) as newer:
            newer.write([Delete(STRANGERS[3])])
            with pytest.raises(NotPrimaryError):
                first.write([Insert(STRANGERS[3])])
    for owner in (8, 0, 7):  # nobody has it any more
        with open_device(rig.target, rig.address, owner=owner) as later:
            later.write([Insert(STRANGERS[3])])
            later.write([Delete(STRANGERS[3])])
