# SPDX-License-Identifier: Apache-2.0
"""Switch processes that restart, that others write to, and that two controllers want."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import grpc
import pytest

from hopsum_controlplane import (
    AdoptionStatus,
    ControlPlaneError,
    Job,
    JobSpec,
    SwitchController,
    SwitchEndpoint,
    artifacts,
)
from hopsum_controlplane.audit import read_installed
from hopsum_controlplane.devices.device import Device, PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.devices.p4runtime_device import P4RuntimeDevice
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_controlplane.entries import Delete, Entity, Insert, Modify, Update
from hopsum_controlplane.errors import NotPrimaryError, SwitchStateLostError
from hopsum_controlplane.p4runtime_encoding import encode_update
from hopsum_controlplane.tables import admit, reply
from hopsum_topologies import Bmv2Switch, NativeSwitch
from hopsum_wire.p4runtime import p4runtime_pb2, p4runtime_pb2_grpc

from ..support.black_holes import BlackHoles
from .test_audit import STRANGERS, altered, desired

pytestmark = pytest.mark.system
DEADLINE_S = 60.0
SHORT_S = 5.0

MakeSpec = Callable[..., JobSpec]


class Rig:
    """A switch process that can be restarted; `opened` devices are closed at the end."""

    def __init__(self, target: str, stack: ExitStack) -> None:
        self.target = target
        self._stack = stack
        self._running = self._start()
        self.sessions: list[P4RuntimeDevice] = []

    def restart(self) -> None:
        self._running.stop()
        self._running = self._start()

    @property
    def address(self) -> str:
        return self._running.address

    def open(self, election_id: tuple[int, int] = (1, 0)) -> P4RuntimeDevice:
        device = open_device(self.target, self.address, election_id=election_id, rpc_timeout_s=DEADLINE_S)
        self.sessions.append(self._stack.enter_context(device))
        return device

    def _start(self) -> Bmv2Switch | NativeSwitch:
        if self.target == "bmv2":
            return self._stack.enter_context(Bmv2Switch({}))
        return self._stack.enter_context(NativeSwitch(*artifacts.compiled_program()))


@pytest.fixture(params=["native", "bmv2"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    if request.param == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("simple_switch_grpc is not on PATH")
    with ExitStack() as stack:
        yield Rig(request.param, stack)


@pytest.fixture
def device(rig: Rig, pipeline: PipelineConfig) -> Device:
    device = ReconnectingDevice(rig.open, pipeline.cookie)
    ensure_pipeline(device, pipeline)
    return device


def write_as(controller_id: tuple[int, int], rig: Rig, device: P4RuntimeDevice, updates: list[Update]) -> None:
    """Write with somebody else's election id, which takes no session."""
    request = p4runtime_pb2.WriteRequest(updates=[encode_update(device.p4info, update) for update in updates])
    request.election_id.high, request.election_id.low = controller_id
    with grpc.insecure_channel(rig.address) as channel:
        p4runtime_pb2_grpc.P4RuntimeStub(channel).Write(request, timeout=DEADLINE_S)


def until_not_primary(controller: SwitchController) -> NotPrimaryError:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            controller.audit()
        except NotPrimaryError as error:
            return error
        time.sleep(0.01)
    raise AssertionError(f"still primary after {DEADLINE_S} s")


def jobs_of(controller: SwitchController, make_spec: MakeSpec) -> list[Job]:
    return [controller.create_job(make_spec(name, workers=4)) for name in ("first", "second")]


def test_a_restarted_switch_is_never_filled_again(
    rig: Rig, device: ReconnectingDevice, pipeline: PipelineConfig, make_spec: MakeSpec, switch_endpoint: SwitchEndpoint
) -> None:
    controller = SwitchController(device, switch_endpoint)
    old = jobs_of(controller, make_spec)
    rig.restart()
    with pytest.raises(SwitchStateLostError, match="its jobs need new generations"):
        controller.audit()
    with pytest.raises(SwitchStateLostError):
        controller.delete_job(old[0])
    assert controller.ending == ()
    assert ensure_pipeline(device, pipeline)
    audit = controller.audit()
    assert audit.lost == tuple(old)
    controller.repair(audit)
    assert read_installed(device) == desired(switch_endpoint)
    new = jobs_of(controller, make_spec)
    assert min(job.generation for job in new) > max(job.generation for job in old)
    assert read_installed(device) == desired(switch_endpoint, *new)
    assert controller.audit().clean


def test_a_new_controller_adopts(
    rig: Rig, device: ReconnectingDevice, pipeline: PipelineConfig, make_spec: MakeSpec, switch_endpoint: SwitchEndpoint
) -> None:
    old = jobs_of(SwitchController(device, switch_endpoint), make_spec)
    device.write([Delete(admit.workers(old[0])[1]), Modify(altered(reply.group(old[1])[0]))])
    device.close()
    again = ReconnectingDevice(rig.open, pipeline.cookie)
    assert not ensure_pipeline(again, pipeline)
    controller = SwitchController(again, switch_endpoint, adopt=old)
    assert [controller.adoptions[job.generation].status for job in old] == [AdoptionStatus.LOST, AdoptionStatus.RUNNING]
    assert read_installed(again) == desired(switch_endpoint, old[1])
    rig.restart()
    ensure_pipeline(again, pipeline)
    later = SwitchController(again, switch_endpoint, adopt=controller.jobs)
    assert later.adoptions[old[1].generation].status is AdoptionStatus.LOST
    assert read_installed(again) == desired(switch_endpoint)


def test_what_another_client_changed_is_repaired(
    rig: Rig, device: ReconnectingDevice, make_spec: MakeSpec, switch_endpoint: SwitchEndpoint
) -> None:
    controller = SwitchController(device, switch_endpoint)
    kept, lost = jobs_of(controller, make_spec)
    removed: list[Entity] = [admit.workers(lost)[0]]
    changed: list[Entity] = [*reply.group(kept), reply.rewrite(kept)[2]]
    meddling: list[Update] = [
        *(Delete(entity) for entity in removed),
        *(Modify(altered(entity)) for entity in changed),
        *(Insert(entity) for entity in STRANGERS[3:]),
    ]
    write_as((1, 0), rig, rig.sessions[0], meddling)
    audit = controller.audit()
    assert audit.lost == (lost,)
    assert {entity.key() for entity in audit.foreign} == {STRANGERS[3].key(), STRANGERS[4].key()}
    assert {change.wanted.key() for finding in audit.findings for change in finding.changed} == {
        entity.key() for entity in changed
    }
    repair = controller.repair(audit)
    assert (repair.lost, len(repair.removed), len(repair.restored)) == ((lost,), 2, 2)
    assert read_installed(device) == desired(switch_endpoint, kept)
    assert controller.audit().clean


def test_two_controllers(
    rig: Rig, device: ReconnectingDevice, make_spec: MakeSpec, switch_endpoint: SwitchEndpoint
) -> None:
    first = SwitchController(device, switch_endpoint)
    (job, other) = jobs_of(first, make_spec)
    with pytest.raises(NotPrimaryError, match=r"\(0, 9\) is not the primary's"):
        rig.open(election_id=(0, 9))
    with rig.open(election_id=(3, 0)) as higher:
        before = read_installed(higher)
        with pytest.raises(ControlPlaneError, match="entries of another controller stand here"):
            SwitchController(higher, switch_endpoint)
        second = SwitchController(higher, switch_endpoint, adopt=[job, other])
        assert {adoption.status for adoption in second.adoptions.values()} == {AdoptionStatus.RUNNING}
        error = until_not_primary(first)
        assert "higher election id" in str(error)
        for action in (lambda: first.create_job(make_spec("third")), lambda: first.delete_job(job)):
            with pytest.raises(NotPrimaryError):
                action()
        assert read_installed(higher) == before
        second.delete_job(other)
    with pytest.raises(NotPrimaryError):  # also when the other has gone
        first.audit()
    assert (first.jobs, first.ending) == ((job, other), ())
    with rig.open(election_id=(3, 0)) as again:
        third = SwitchController(again, switch_endpoint, adopt=first.jobs)
        assert [third.adoptions[old.generation].status for old in (job, other)] == [
            AdoptionStatus.RUNNING,
            AdoptionStatus.LOST,
        ]
        assert read_installed(again) == desired(switch_endpoint, job)


def test_after_a_dead_connection_the_same_controller_has_its_switch_again(
    rig: Rig, pipeline: PipelineConfig, make_spec: MakeSpec, switch_endpoint: SwitchEndpoint
) -> None:
    """The switch still believes in the session that is dead; so it does after a power loss of the controller's host."""
    with BlackHoles(rig.address) as way:

        def connect() -> P4RuntimeDevice:
            return open_device(rig.target, way.address, owner=7, rpc_timeout_s=SHORT_S, connect_timeout_s=DEADLINE_S)

        device = ReconnectingDevice(connect, pipeline.cookie)
        try:
            ensure_pipeline(device, pipeline)
            job = SwitchController(device, switch_endpoint).create_job(make_spec("first"))
            way.swallow()
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
