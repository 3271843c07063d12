# SPDX-License-Identifier: Apache-2.0
"""Jobs to make, the compiled program, and a P4Runtime server that behaves as badly as it is told to."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import suppress
from typing import Any

import grpc
import pytest

from hopsum_base.p4runtime import p4runtime_pb2, p4runtime_pb2_grpc
from hopsum_controlplane import ControlPlaneError, JobSpec, SwitchController, SwitchEndpoint, WorkerEndpoint, artifacts
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.p4info import P4Info
from hopsum_ptf.fake_device import FakeDevice

from ..support.jobs import spec_options

NOW = 1_700_000_000
MakeSpec = Callable[..., JobSpec]
Connect = Callable[..., SwitchController]
TABLE = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 20)
TABLE16 = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)
# Values, then thresholds. Four workers have sums of -124 .. 124.
TABLE4 = (*range(-31, -1, 2), 30, 1, 9, 18, 27, 36, 45, 54, 64, 64, 80, 90, 100, 109, 118, 127)
TABLE3 = (-31, -20, -10, -3, 3, 10, 20, 31, 16, 32, 48, 64, 80, 96, 112)
TABLE2 = (-31, -9, 9, 31, 32, 64, 96)


@pytest.fixture
def switch_endpoint() -> SwitchEndpoint:
    return SwitchEndpoint("02:00:00:00:00:aa", "10.0.0.254")


@pytest.fixture
def make_spec() -> MakeSpec:
    def make(
        name: str = "job", workers: int = 3, slots: int = 16, table: tuple[int, ...] | None = TABLE, **options: Any
    ) -> JobSpec:
        endpoints = tuple(
            WorkerEndpoint(rank, rank + 1, f"02:00:00:00:01:{rank:02x}", f"10.0.0.{rank + 1}", 4000 + rank)
            for rank in range(workers)
        )
        return JobSpec(name, endpoints, slots, **spec_options(table=table, **options))

    return make


@pytest.fixture
def connect(switch_endpoint: SwitchEndpoint) -> Connect:
    """Return a function that makes a controller whose clock is fixed."""

    def connect(device: FakeDevice, **options: Any) -> SwitchController:
        return SwitchController(device, switch_endpoint, clock=lambda: NOW, **options)

    return connect


@pytest.fixture(scope="session")
def pipeline() -> PipelineConfig:
    try:
        return PipelineConfig.load(*artifacts.compiled_program())
    except ControlPlaneError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def p4info(pipeline: PipelineConfig) -> P4Info:
    return P4Info.from_text(pipeline.p4info)


class Server(p4runtime_pb2_grpc.P4RuntimeServicer):
    """Accepts everything, unless told otherwise through its attributes."""

    def __init__(self) -> None:
        self.config = p4runtime_pb2.ForwardingPipelineConfig()
        self.arbitration_code = 0
        self.answers_handshake = True
        self.ends_with_client = True
        self.refuses_config = False
        self.write_answer: Callable[[p4runtime_pb2.WriteRequest, grpc.ServicerContext], None] | None = None
        self.writes: list[p4runtime_pb2.WriteRequest] = []
        self.deadlines_s: list[float | None] = []
        self.streams: list[queue.Queue[tuple[int, int] | None]] = []  # of (code, election id), None ends
        self.address = ""

    def StreamChannel(
        self, requests: Iterator[p4runtime_pb2.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4runtime_pb2.StreamMessageResponse]:
        request = next(requests)
        own: queue.Queue[tuple[int, int] | None] = queue.Queue()
        self.streams.append(own)
        context.add_callback(lambda: own.put(None))
        if self.ends_with_client:
            threading.Thread(target=self._await_client, args=(requests, own), daemon=True).start()
        if self.answers_handshake:
            election_id = request.arbitration.election_id
            yield self._arbitration(self.arbitration_code, election_id.high, election_id.low)
        while (pushed := own.get()) is not None:
            yield self._arbitration(*pushed, 0)

    def Write(self, request: p4runtime_pb2.WriteRequest, context: grpc.ServicerContext) -> p4runtime_pb2.WriteResponse:
        self.writes.append(request)
        self.deadlines_s.append(context.time_remaining())
        if self.write_answer is not None:
            self.write_answer(request, context)
        return p4runtime_pb2.WriteResponse()

    def SetForwardingPipelineConfig(
        self, request: p4runtime_pb2.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.SetForwardingPipelineConfigResponse:
        self.config = request.config
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(
        self, request: p4runtime_pb2.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.GetForwardingPipelineConfigResponse:
        if self.refuses_config:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no program")
        return p4runtime_pb2.GetForwardingPipelineConfigResponse(config=self.config)

    @property
    def pushed(self) -> queue.Queue[tuple[int, int] | None]:
        """What the stream that was opened last is to say."""
        return self.streams[-1]

    def _await_client(
        self, requests: Iterator[p4runtime_pb2.StreamMessageRequest], own: queue.Queue[tuple[int, int] | None]
    ) -> None:
        with suppress(Exception):  # how gRPC ends the iterator of a cancelled stream
            for _ in requests:
                pass
        own.put(None)

    @staticmethod
    def _arbitration(code: int, high: int, low: int) -> p4runtime_pb2.StreamMessageResponse:
        response = p4runtime_pb2.StreamMessageResponse()
        response.arbitration.status.code = code
        response.arbitration.election_id.high = high
        response.arbitration.election_id.low = low
        return response


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    grpc_server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(server, grpc_server)
    server.address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
    grpc_server.start()
    yield server
    for stream in server.streams:
        stream.put(None)
    grpc_server.stop(grace=0).wait()
