# SPDX-License-Identifier: Apache-2.0
"""Jobs on real switch processes: the embedded switch, and bmv2 where it is installed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from hopsum_controlplane import (
    ControlPlaneError,
    Job,
    JobSpec,
    SwitchController,
    SwitchEndpoint,
    WriteError,
    artifacts,
)
from hopsum_controlplane.devices.bmv2 import Bmv2Device
from hopsum_controlplane.devices.device import PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_controlplane.devices.p4runtime_device import P4RuntimeDevice
from hopsum_controlplane.entries import Delete, Insert, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.tables import address, admit, forward, lookup, reply
from hopsum_topologies import Bmv2Switch, NativeSwitch

pytestmark = pytest.mark.system
TABLES = ("jobs", "workers", "lookup", "rewrite")

Start = Callable[..., P4RuntimeDevice]


@pytest.fixture(params=["native", "bmv2"])
def start(request: pytest.FixtureRequest, pipeline: PipelineConfig) -> Iterator[Start]:
    """Start switches of one target, each running the compiled program."""
    if request.param == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("simple_switch_grpc is not on PATH")
    with ExitStack() as stack:

        def start(device_id: int = 0) -> P4RuntimeDevice:
            device: P4RuntimeDevice
            if request.param == "bmv2":
                switch = stack.enter_context(Bmv2Switch({}, device_id=device_id))
                device = stack.enter_context(Bmv2Device(switch.address, device_id))
            else:
                native = stack.enter_context(NativeSwitch(*artifacts.compiled_program(), device_id=device_id))
                device = stack.enter_context(NativeDevice(native.address, device_id))
            ensure_pipeline(device, pipeline)
            return device

        yield start


def installed_entries(device: P4RuntimeDevice) -> dict[str, list[TableEntry]]:
    def by_key(entry: TableEntry) -> tuple[object, ...]:
        return entry.key()

    return {table: sorted(device.read_table(table), key=by_key) for table in TABLES}


def expected(*jobs: Job) -> dict[str, list[TableEntry]]:
    builders = {
        "jobs": admit.jobs,
        "workers": admit.workers,
        "lookup": lookup.lookup,
        "rewrite": reply.rewrite,
    }
    return {table: [entry for job in jobs for entry in build(job)] for table, build in builders.items()}


def test_a_job_comes_and_goes(start: Start, make_spec: Callable[..., JobSpec], switch_endpoint: SwitchEndpoint) -> None:
    device = start()
    controller = SwitchController(device, switch_endpoint)
    first = controller.create_job(make_spec("first", workers=12))
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


def test_a_creation_that_the_switch_refuses_leaves_nothing(
    start: Start, make_spec: Callable[..., JobSpec], switch_endpoint: SwitchEndpoint
) -> None:
    device = start()
    controller = SwitchController(device, switch_endpoint)
    theirs = MulticastGroup(1, (Replica(9, 9),))
    device.write([Insert(theirs)])
    with pytest.raises(WriteError) as error:
        controller.create_job(make_spec())
    assert [(failure.update, failure.code) for failure in error.value.failures] == [
        (Insert(MulticastGroup(1, tuple(Replica(rank + 1, rank) for rank in range(3)))), "ALREADY_EXISTS")
    ]
    assert installed_entries(device) == expected()
    assert device.read_groups() == [theirs]


def test_a_write_error_names_the_update(start: Start) -> None:
    device = start()
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


def test_forwarding(start: Start) -> None:
    device = start()
    entries = [*forward.broadcast([1, 2, 3]), *forward.l2({"02:00:00:00:01:01": 1})]
    device.write([Insert(entry) for entry in entries])
    assert device.read_groups() == [entries[0]]
    assert {str(entry) for entry in device.read_table("l2")} == {str(entry) for entry in entries[1:]}


def test_pushing_again_forgets_everything(
    start: Start, make_spec: Callable[..., JobSpec], switch_endpoint: SwitchEndpoint, pipeline: PipelineConfig
) -> None:
    device = start()
    SwitchController(device, switch_endpoint).create_job(make_spec())
    assert not ensure_pipeline(device, pipeline), "the switch runs it already, and must not lose its jobs"
    with pytest.raises(ControlPlaneError, match="another controller"):
        SwitchController(device, switch_endpoint)
    device.set_pipeline_config(pipeline)
    assert installed_entries(device) == expected()
    assert device.cookie() == pipeline.cookie
    SwitchController(device, switch_endpoint).create_job(make_spec())


def test_the_wrong_device_id(start: Start) -> None:
    device = start()
    address = device.where.rpartition(" ")[2]
    # bmv2 lets anybody in, and then has no program for that device.
    with pytest.raises(ControlPlaneError, match=f"switch 9 at {address}"), type(device)(address, 9) as wrong:
        wrong.read_table("jobs")


def test_a_second_controller_takes_over(start: Start) -> None:
    device = start()
    address = device.where.rpartition(" ")[2]
    entry = Insert(forward.l2({"02:00:00:00:01:01": 1})[0])
    with pytest.raises(ControlPlaneError, match=r"switch 0 at .*: .*election id"):
        type(device)(address, election_id=(0, 5))
    with type(device)(address, election_id=(2, 0)) as other:
        other.write([entry])
        with pytest.raises(ControlPlaneError, match=r"highest so far is 2;|another client is primary"):
            device.write([entry])
