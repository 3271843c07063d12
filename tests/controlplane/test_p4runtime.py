# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime driver against a server that misbehaves in every way that we know of."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import pytest
from google.rpc import code_pb2, status_pb2

from hopsum_controlplane import ControlPlaneError, WriteError
from hopsum_controlplane.devices import p4runtime_session
from hopsum_controlplane.devices.bmv2 import Bmv2Device
from hopsum_controlplane.devices.device import PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_controlplane.entries import Insert, MulticastGroup, Replica
from hopsum_controlplane.errors import NotPrimaryError, SessionLostError
from hopsum_wire.p4runtime import p4runtime_pb2

if TYPE_CHECKING:
    from tests.controlplane.conftest import Server

DEADLINE_S = 60.0
PIPELINE = PipelineConfig(b'{"program": []}', 'tables { preamble { id: 33554433 name: "t" alias: "t" } }')
BATCH = [Insert(MulticastGroup(group, (Replica(1, 0),))) for group in (1, 2, 3)]


@contextmanager
def opened(address: str, **options: object) -> Iterator[NativeDevice]:
    with NativeDevice(address, **options) as device:  # type: ignore[arg-type]
        device.set_pipeline_config(PIPELINE)
        yield device


def refuse(*codes: int) -> Callable[[object, grpc.ServicerContext], None]:
    """Answer a write with one p4.v1.Error for each update."""

    def answer(_request: object, context: grpc.ServicerContext) -> None:
        status = status_pb2.Status(code=code_pb2.UNKNOWN)
        for code in codes:
            status.details.add().Pack(p4runtime_pb2.Error(canonical_code=code, message="because" if code else ""))
        context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
        context.abort(grpc.StatusCode.UNKNOWN, "")

    return answer


def until_write_fails(device: NativeDevice) -> ControlPlaneError:
    """Write until the switch's message has arrived."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            device.write(BATCH)
        except ControlPlaneError as error:
            return error
    raise AssertionError(f"writes still succeed after {DEADLINE_S} s")


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "stream_recv" in thread.name or "open " in thread.name]


def test_a_write_error_names_the_updates(server: Server) -> None:
    server.write_answer = refuse(code_pb2.OK, code_pb2.ALREADY_EXISTS, code_pb2.OK)
    with opened(server.address) as device, pytest.raises(WriteError) as error:
        device.write(BATCH)
    assert [(failure.position, failure.update) for failure in error.value.failures] == [(1, BATCH[1])]
    assert error.value.may_be_installed() == [BATCH[0].entity, BATCH[2].entity]
    assert str(error.value) == (
        f"switch 0 at {server.address}: 1 of 3 updates refused: update 1 (insert multicast group 2 of 1/0): "
        "ALREADY_EXISTS 'because'; the others of the batch stand"
    )


def test_an_unanswered_write_may_stand(server: Server) -> None:
    release = threading.Event()
    server.write_answer = lambda _request, _context: release.wait(DEADLINE_S)
    with opened(server.address, rpc_timeout_s=0.3) as device, pytest.raises(WriteError) as error:
        device.write(BATCH)
    release.set()
    assert error.value.failures == ()
    assert error.value.may_be_installed() == [update.entity for update in BATCH]
    assert "Write of 3 updates ended without an answer: DEADLINE_EXCEEDED" in str(error.value)


def test_a_write_that_was_refused_as_a_whole_stands_nowhere(server: Server) -> None:
    server.write_answer = lambda _, context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "Not primary")
    with opened(server.address) as device, pytest.raises(ControlPlaneError) as error:
        device.write(BATCH)
    assert not isinstance(error.value, WriteError)
    assert "Write failed: PERMISSION_DENIED 'Not primary'; another client is primary" in str(error.value)


def test_requests_carry_device_election_and_deadline(server: Server) -> None:
    with opened(server.address, device_id=7, election_id=(2, 9), rpc_timeout_s=5.0) as device:
        device.write(BATCH)
    (request,) = server.writes
    assert (request.device_id, request.election_id.high, request.election_id.low) == (7, 2, 9)
    assert [update.type for update in request.updates] == [p4runtime_pb2.Update.INSERT] * 3
    assert server.deadlines_s[0] is not None
    assert server.deadlines_s[0] < 60


def test_a_pipeline_is_pushed_once(server: Server) -> None:
    with Bmv2Device(server.address) as device:
        assert device.cookie() is None
        with pytest.raises(ControlPlaneError, match="the switch runs no program; push one"):
            device.read_table("t")
        assert ensure_pipeline(device, PIPELINE)
        assert server.config.p4_device_config == PIPELINE.device_config
        assert device.cookie() == PIPELINE.cookie
        assert not ensure_pipeline(device, PIPELINE)
        assert device.p4info.tables["t"].id == 0x02000001
    with Bmv2Device(server.address) as again:
        assert again.p4info.tables["t"].id == 0x02000001


def test_a_cookie_depends_on_both_files() -> None:
    cookies = {
        PipelineConfig(json, p4info).cookie for json, p4info in [(b"ab", "c"), (b"a", "bc"), (b"ab", "d"), (b"ab", "c")]
    }
    assert len(cookies) == 3


def test_nobody_listens() -> None:
    with pytest.raises(ControlPlaneError, match=r"switch 0 at 127\.0\.0\.1:1: no P4Runtime server answered in 0\.5 s"):
        NativeDevice("127.0.0.1:1", connect_timeout_s=0.5)
    assert our_threads() == []


def test_proxies_are_not_asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    with opened(server.address) as device:
        assert device.cookie() == PIPELINE.cookie


def test_another_client_is_primary(server: Server) -> None:
    server.arbitration_code = code_pb2.ALREADY_EXISTS
    with pytest.raises(ControlPlaneError, match=r"our election id 1 is not the primary's"):
        NativeDevice(server.address)
    assert our_threads() == []


def test_a_silent_handshake(server: Server) -> None:
    server.answers_handshake = False
    with pytest.raises(ControlPlaneError, match=r"no answer to the P4Runtime handshake in 0\.3 s"):
        NativeDevice(server.address, connect_timeout_s=0.3)
    assert our_threads() == []


def test_mastership_lost_later(server: Server) -> None:
    with opened(server.address) as device:
        device.write(BATCH)
        server.pushed.put((code_pb2.ALREADY_EXISTS, 5))
        error = until_write_fails(device)
        assert "the highest so far is 5;" in str(error)
        assert isinstance(error, NotPrimaryError), "nothing was sent"


def test_mastership_that_comes_back_is_not_taken(server: Server) -> None:
    with opened(server.address) as device:
        server.pushed.put((code_pb2.ALREADY_EXISTS, 5))
        until_write_fails(device)
        server.pushed.put((code_pb2.OK, 1))
        server.pushed.put(None)
        device._session._stream.receiver.join(DEADLINE_S)  # so both have arrived
        for call in (device.cookie, lambda: device.write(BATCH), lambda: device.set_pipeline_config(PIPELINE)):
            with pytest.raises(NotPrimaryError, match="the highest so far is 5;"):
                call()


def test_a_session_that_the_server_ends(server: Server) -> None:
    with opened(server.address) as device:
        server.pushed.put(None)
        error = until_write_fails(device)
        assert "the P4Runtime session ended: OK" in str(error)
        assert isinstance(error, SessionLostError)


def test_closing_does_not_wait_for_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p4runtime_session, "_CLOSE_S", 0.1)
    server.ends_with_client = False
    device = NativeDevice(server.address)
    device.close()
    device.close()
    assert our_threads() == []


def test_several_switches_in_one_process(server: Server) -> None:
    with opened(server.address) as first, opened(server.address, device_id=1, election_id=(3, 0)) as second:
        first.write(BATCH)
        second.write(BATCH[:1])
        first.write(BATCH)
    assert [(request.device_id, len(request.updates)) for request in server.writes] == [
        (0, 3),
        (1, 1),
        (0, 3),
    ]


def test_a_process_that_forgets_to_close_ends(server: Server) -> None:
    program = f"""
from hopsum_controlplane.devices.native import NativeDevice
device = NativeDevice({server.address!r})
raise RuntimeError("forgotten")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "RuntimeError: forgotten" in done.stderr
