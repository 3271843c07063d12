# SPDX-License-Identifier: Apache-2.0
"""Jobs and sessions of controllers on real switch processes: the embedded switch, and bmv2 where installed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from hopsum_controlplane import ControlPlaneError, Job, JobSpec, SwitchController, SwitchEndpoint, WriteError, artifacts
from hopsum_controlplane.devices.device import Device, PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.entries import Delete, Insert, TableEntry
from hopsum_controlplane.errors import NotPrimaryError
from hopsum_controlplane.tables import address, admit, forward, lookup, reply, requantize
from hopsum_topologies import Bmv2Switch, NativeSwitch

from .test_audit import STRANGERS

pytestmark = pytest.mark.system
TABLES = ("jobs", "workers", "lookup", "requantize", "rewrite")


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


@pytest.fixture
def device(rig: Rig, pipeline: PipelineConfig) -> Iterator[Device]:
    """The switch, which runs the compiled program."""
    with open_device(rig.target, rig.address) as device:
        ensure_pipeline(device, pipeline)
        yield device


def installed_entries(device: Device) -> dict[str, list[TableEntry]]:
    def by_key(entry: TableEntry) -> tuple[object, ...]:
        return entry.key()

    return {table: sorted(device.read_table(table), key=by_key) for table in TABLES}


def expected(*jobs: Job) -> dict[str, list[TableEntry]]:
    jobs_of = (admit.jobs, admit.workers, lookup.lookup, requantize.requantize, reply.rewrite)
    builders = dict(zip(TABLES, jobs_of, strict=True))
    return {table: [entry for job in jobs for entry in build(job)] for table, build in builders.items()}


def test_a_job_comes_and_goes(
    device: Device, make_spec: Callable[..., JobSpec], switch_endpoint: SwitchEndpoint
) -> None:
    controller = SwitchController(device, switch_endpoint)
    results = {
        "table4": (*range(-8, 8), *range(8, 128, 8)),
        "table3": (*range(-7, 8, 2), *range(16, 128, 16)),
        "table2": (-3, -1, 1, 3, 62, 64, 66),
    }
    first = controller.create_job(make_spec("first", workers=12, **results))
    second = controller.create_job(make_spec("second", workers=64, table=None))
    assert installed_entries(device) == expected(first, second)
    assert device.read_groups() == [*reply.group(first), *reply.group(second)]
    assert device.read_table("switch_address") == [address.switch_address(switch_endpoint)]
    assert set(controller.job_counters(first).values()) == {0}
    assert set(controller.drop_counters().values()) == {0}

    controller.delete_job(first)
    assert installed_entries(device) == expected(second)
    controller.delete_job(second)
    assert installed_entries(device) == expected()
    assert device.read_groups() == []


def test_a_write_error_names_the_update(device: Device) -> None:
    stations = forward.l2({f"02:00:00:00:01:{number:02x}": number for number in range(1, 4)})
    device.write([Insert(stations[1])])
    with pytest.raises(WriteError) as error:
        device.write([Insert(entry) for entry in stations])
    assert [(failure.position, failure.code) for failure in error.value.failures] == [(1, "ALREADY_EXISTS")]
    assert error.value.may_be_installed() == [stations[0], stations[2]]
    assert len(device.read_table("l2")) == 3
    with pytest.raises(WriteError) as error:
        device.write([Delete(entry) for entry in (*stations, stations[0])])
    assert [(failure.position, failure.code) for failure in error.value.failures] == [(3, "NOT_FOUND")]


def test_pushing_again_forgets_everything(
    device: Device, make_spec: Callable[..., JobSpec], switch_endpoint: SwitchEndpoint, pipeline: PipelineConfig
) -> None:
    SwitchController(device, switch_endpoint).create_job(make_spec())
    assert not ensure_pipeline(device, pipeline), "the switch runs it already, and must not lose its jobs"
    with pytest.raises(ControlPlaneError, match="another controller"):
        SwitchController(device, switch_endpoint)
    device.set_pipeline_config(pipeline)
    assert installed_entries(device) == expected()
    assert device.read_cookie() == pipeline.cookie
    SwitchController(device, switch_endpoint).create_job(make_spec())


def test_the_wrong_device_id(rig: Rig) -> None:
    # bmv2 lets anybody in, and then has no program for that device.
    with (
        pytest.raises(ControlPlaneError, match=f"switch 9 at {rig.address}"),
        open_device(rig.target, rig.address, 9) as wrong,
    ):
        wrong.read_table("jobs")


def test_a_second_controller_takes_over(rig: Rig, device: Device) -> None:
    entry = Insert(forward.l2({"02:00:00:00:01:01": 1})[0])
    with pytest.raises(ControlPlaneError, match=r"switch 0 at .*: .*election id"):
        open_device(rig.target, rig.address, election_id=(0, 5))
    with open_device(rig.target, rig.address, election_id=(2, 0)) as other:
        other.write([entry])
        with pytest.raises(ControlPlaneError, match=r"highest so far is 2;|another client is primary"):
            device.write([entry])


def test_two_controllers_with_one_election_id(rig: Rig, pipeline: PipelineConfig) -> None:
    with open_device(rig.target, rig.address, owner=7) as first:
        first.set_pipeline_config(pipeline)
        with pytest.raises(NotPrimaryError, match="with the same election_id 1 as this one; stop that"):
            open_device(rig.target, rig.address, owner=8)
        assert first.read_cookie() == pipeline.cookie
        first.write([Insert(STRANGERS[3])])
        with open_device(rig.target, rig.address, owner=7) as newer:
            newer.write([Delete(STRANGERS[3])])
            with pytest.raises(NotPrimaryError):
                first.write([Insert(STRANGERS[3])])
    for owner in (8, 0, 7):  # nobody has it any more
        with open_device(rig.target, rig.address, owner=owner) as later:
            later.write([Insert(STRANGERS[3])])
            later.write([Delete(STRANGERS[3])])
