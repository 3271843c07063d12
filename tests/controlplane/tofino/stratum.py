# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime server for the Tofino program's P4Info, with what is known of Stratum's manners from its sources.

It is the embedded switch's server: arbitration, checks against the P4Info, table sizes, groups, counters. It runs a
program that has the P4Info's tables and does nothing (program.py), takes a BfPipelineConfig as device config, and
messages of 4 MiB at most. No claim is made that Stratum is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.message import DecodeError

from hopsum_switch.engine import Engine
from hopsum_switch.p4runtime.service import P4RuntimeService
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.state.counters import PacketByteCount
from hopsum_wire.p4runtime import p4runtime_pb2, p4runtime_pb2_grpc

from .program import idle_program

DEVICE_ID = 1
_Types = descriptor_pb2.FieldDescriptorProto


def _message(name: str, fields: list[tuple[str, int, int, bool]]) -> descriptor_pb2.DescriptorProto:
    message = descriptor_pb2.DescriptorProto(name=name)
    for field, number, kind, repeated in fields:
        label = _Types.LABEL_REPEATED if repeated else _Types.LABEL_OPTIONAL
        added = message.field.add(name=field, number=number, type=kind, label=label)  # type: ignore[arg-type]
        if kind == _Types.TYPE_MESSAGE:
            added.type_name = ".bf.Profile"
    return message


def _pipeline_config() -> Any:
    """Return the class of Stratum's BfPipelineConfig: names, numbers and types of its fields in bf.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="bf.proto", package="bf", syntax="proto3")
    text, data, number = _Types.TYPE_STRING, _Types.TYPE_BYTES, _Types.TYPE_UINT32
    profile = [("profile_name", 1, text, False), ("context", 2, data, False), ("binary", 3, data, False)]
    program = [("p4_name", 1, text, False), ("bfruntime_info", 2, data, False)]
    file.message_type.add().CopyFrom(_message("Profile", [*profile, ("pipe_scope", 4, number, True)]))
    config = _message("BfPipelineConfig", [*program, ("profiles", 3, _Types.TYPE_MESSAGE, True)])
    file.message_type.add().CopyFrom(config)
    return message_factory.GetMessages([file])["bf.BfPipelineConfig"]


BfPipelineConfig = _pipeline_config()


class Stratum(P4RuntimeService):
    """One chip. `configs` are the device configs that were pushed, `writes` the number of updates of each call."""

    def __init__(self) -> None:
        self.dataplane = Dataplane()
        super().__init__(self.dataplane, Engine, device_id=DEVICE_ID)
        self.configs: list[Any] = []
        self.writes: list[int] = []
        self.before_writes: Callable[[int], None] | None = None  # with the number of the call in `writes`, from 1
        self.address = ""

    def SetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            config = BfPipelineConfig.FromString(request.config.p4_device_config)
        except DecodeError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"Unknown format for p4_device_config: {error}")
        if not (config.p4_name and config.bfruntime_info and config.profiles):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no program in p4_device_config")
        self.configs.append(config)
        runs = p4runtime_pb2.SetForwardingPipelineConfigRequest()
        runs.CopyFrom(request)
        runs.config.p4_device_config = idle_program(request.config.p4info)
        return super().SetForwardingPipelineConfig(runs, context)

    def Write(self, request: p4runtime_pb2.WriteRequest, context: grpc.ServicerContext) -> p4runtime_pb2.WriteResponse:
        self.writes.append(len(request.updates))
        if self.before_writes is not None:
            self.before_writes(len(self.writes))
        return super().Write(request, context)

    def count(self, counter: str, index: int, packets: int) -> None:
        """Let a counter have counted so many packets."""
        target = self._pipelines.running
        assert target is not None
        target.engine.counters.write(counter, index, PacketByteCount(packets, 0))


@contextmanager
def stratum() -> Iterator[Stratum]:
    """Serve on loopback for the block."""
    service = Stratum()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(service, server)
    service.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield service
    finally:
        service.end_streams()
        server.stop(grace=0).wait()
        service.dataplane.close()
