# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime service: arbitration of clients, pipelines, writes and reads, packet-ins, packet-outs and digests."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2

from hopsum_base.internal_error import internal_error
from hopsum_base.p4runtime import p4info_pb2, p4runtime_pb2_grpc
from hopsum_base.p4runtime import p4runtime_pb2 as p4rt
from hopsum_base.quiet_grpc import grpc
from hopsum_switch.grpc_address import handler_function, handler_like
from hopsum_switch.p4runtime.entities import acknowledge, digest_message, error_messages, read_entity, write_update
from hopsum_switch.p4runtime.pipeline_config import (
    CheckedPipeline,
    EngineFactory,
    PipelineManager,
    RunningPipeline,
    requested_pipeline,
    verify,
)
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode, invalid, unsupported
from hopsum_switch.p4runtime.table_entries import idle_message
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.ports.port import Port, PortCounters
from hopsum_switch.state.digest_store import DigestList

# The CPU port: frames that the program sends there become packet-ins.


class CpuPort(Port):
    """A port whose other side is the controller. Packet-outs enter through the data plane's `inject`."""

    def __init__(self, deliver: Callable[[bytes], str | None]) -> None:
        """`send` calls `deliver`, which returns None, or the reason under which the lost frame is counted."""
        self.counters = PortCounters()
        self._deliver = deliver

    def fileno(self) -> int | None:
        """Return None: there is nothing to select on."""
        return None

    def receive(self) -> list[bytes]:
        return []

    def send(self, frame: bytes) -> None:
        reason = self._deliver(frame)
        if reason is None:
            self.counters.count_sent(frame)
        else:
            self.counters.dropped[reason] += 1

    def close(self) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {"kind": "cpu"}


# P4Runtime client arbitration for one device and the default role: the choice of the primary client. No I/O.
#
# A client is a live stream. Its election id is a 128-bit number, or None: below every number and never primary.
# `highest` is the greatest id that any primary has had. It never decreases while the server runs.
#
#   event                       condition                               effect
#   ----------------------------------------------------------------------------------------------------------
#   first update of a client    other device                            refuse NOT_FOUND
#   later update of a client    other device than before                refuse FAILED_PRECONDITION
#   any update                  role named or configured                refuse INVALID_ARGUMENT
#                               id in use by another live client        refuse INVALID_ARGUMENT
#                               id >= highest                           is primary, notify all clients, it last
#                               id < highest or None, was primary       no client is primary, notify all clients
#                               id < highest or None, was not           notify this client only
#   disconnect                  was primary                             no client is primary, notify all other clients
#                               was not                                 nothing
#   refused                                                             the caller ends the stream: disconnect
#
#   notification                OK to the primary, ALREADY_EXISTS to the others while there is a primary, else
#                               NOT_FOUND, with `highest` (None before the first primary)

MAX_ELECTION_ID = (1 << 128) - 1


class Notice(NamedTuple):
    """The notification of one client: a status code and the highest election id so far."""

    client: Hashable
    code: RpcCode
    election_id: int | None


class Arbitration:
    """The choice of the primary among the clients of one device, by the rules above, without I/O.

    The owner serialises the calls, and delivers the returned notices in their order.
    """

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._election_ids: dict[Hashable, int | None] = {}  # of live clients, in order of arrival
        self._primary: Hashable | None = None
        self._highest: int | None = None

    @property
    def primary(self) -> Hashable | None:
        """The primary client, or None."""
        return self._primary

    def update(
        self, client: Hashable, device_id: int, election_id: int | None, role: str | None = None
    ) -> list[Notice]:
        """Handle one arbitration message, which may change the primary. Return the notices for clients.

        `role` is None for the default role, else a description of the requested role.
        Raises P4RuntimeError: end this client's stream with its code, then call `disconnect`.
        """
        self._check(client, device_id, election_id, role)
        self._election_ids[client] = election_id
        if election_id is not None and (self._highest is None or election_id >= self._highest):
            self._primary, self._highest = client, election_id
            return self._broadcast()
        if self._primary == client:
            self._primary = None
            return self._broadcast()
        return [self._notice(client)]

    def disconnect(self, client: Hashable) -> list[Notice]:
        """Forget a client after its stream's end. Return the notices for the others: none unless it was primary."""
        self._election_ids.pop(client, None)
        if self._primary != client:
            return []
        self._primary = None
        return self._broadcast()

    def check_writer(self, election_id: int | None) -> None:
        """Do nothing if `election_id` is the primary's, else raise P4RuntimeError (PERMISSION_DENIED)."""
        if self._primary is None:
            raise P4RuntimeError(
                RpcCode.PERMISSION_DENIED,
                "no client is primary: open a StreamChannel and send a"
                f" MasterArbitrationUpdate with an election id >= {self._highest or 0}",
            )
        held = self._election_ids[self._primary]
        if election_id != held:
            raise P4RuntimeError(
                RpcCode.PERMISSION_DENIED, f"election id {election_id} is not the primary's, which is {held}"
            )

    def _check(self, client: Hashable, device_id: int, election_id: int | None, role: str | None) -> None:
        known = client in self._election_ids
        if device_id != self._device_id:
            raise P4RuntimeError(
                RpcCode.FAILED_PRECONDITION if known else RpcCode.NOT_FOUND,
                f"device id {device_id} is not served here: this is device {self._device_id}",
            )
        if role is not None:
            raise invalid(f"role {role} is not supported: leave the role unset, for full access")
        if election_id is not None and not 0 <= election_id <= MAX_ELECTION_ID:
            raise invalid(f"election id {election_id} does not fit 128 bits")
        if election_id is not None and any(
            other != client and held == election_id for other, held in self._election_ids.items()
        ):
            raise invalid(f"election id {election_id} is in use by another client: use a unique one")

    def _broadcast(self) -> list[Notice]:
        # The primary comes last: when it learns that it may write, all others know that they may not.
        others = [client for client in self._election_ids if client != self._primary]
        return [self._notice(client) for client in (*others, *([self._primary] if self._primary is not None else ()))]

    def _notice(self, client: Hashable) -> Notice:
        backup = RpcCode.NOT_FOUND if self._primary is None else RpcCode.ALREADY_EXISTS
        code = RpcCode.OK if client == self._primary else backup
        return Notice(client, code, self._highest)


API_VERSION = "1.4.1"
# Each stream holds one of gRPC's threads for as long as it lives.
MAX_STREAMS = 16
# Messages that wait for one client. Packet-ins beyond this number are dropped.
_MAX_QUEUED = 4096
# The size of one ReadResponse. Clients accept 4 MiB by default.
_RESPONSE_BYTES = 1 << 20
# The size of an error's details. Clients accept 8 KiB of metadata by default, in base64.
_DETAILS_BYTES = 5500
_UNPARSABLE_LOG_S = 60.0
# Entries in one notification. Clients accept messages of 4 MiB by default.
_IDLE_TOGETHER = 1000
# The time between two looks for timeouts where the running program has none.
_NO_TIMEOUT_S = 1.0
_log = logging.getLogger(__name__)
_STATUS = {code: next(status for status in grpc.StatusCode if status.value[0] == code) for code in RpcCode}

_SetConfig: TypeAlias = p4rt.SetForwardingPipelineConfigRequest
_GetConfig: TypeAlias = p4rt.GetForwardingPipelineConfigRequest
_Elected: TypeAlias = p4rt.MasterArbitrationUpdate | p4rt.WriteRequest | _SetConfig
_DeviceRequest: TypeAlias = p4rt.WriteRequest | p4rt.ReadRequest | _SetConfig | _GetConfig


class _Stream:
    """The messages to send on one StreamChannel, and its end."""

    def __init__(self) -> None:
        self._outgoing: queue.SimpleQueue[p4rt.StreamMessageResponse | None] = queue.SimpleQueue()
        self.refusal: P4RuntimeError | None = None
        self.closed = False  # under the service's lock

    def put(self, message: p4rt.StreamMessageResponse) -> None:
        self._outgoing.put(message)

    def put_if_room(self, message: p4rt.StreamMessageResponse) -> bool:
        if self._outgoing.qsize() >= _MAX_QUEUED:
            return False
        self._outgoing.put(message)
        return True

    def end(self) -> None:
        self._outgoing.put(None)

    def messages(self) -> Iterator[p4rt.StreamMessageResponse]:
        """Yield messages until the end."""
        return iter(self._outgoing.get, None)


class P4RuntimeService(p4runtime_pb2_grpc.P4RuntimeServicer):
    """P4Runtime for one data plane. The RPC methods are called by gRPC's threads.

    The constructor binds `cpu_port` (None: no packet-ins and packet-outs) and takes the digests of the data plane.
    """

    def __init__(
        self, dataplane: Dataplane, make_engine: EngineFactory, *, device_id: int, cpu_port: int | None = None
    ) -> None:
        self._dataplane = dataplane
        self._device_id = device_id
        self._cpu_port = cpu_port
        # Order of locks: this one, then the gate of the data plane. `_deliver` and `_deliver_digest` run with the gate
        # held, so they must not take this one.
        self._lock = threading.Lock()
        self._arbitration = Arbitration(device_id)
        self._pipelines = PipelineManager(dataplane, make_engine)
        self._streams: set[_Stream] = set()
        self._primary: _Stream | None = None  # read without the lock by `_deliver`
        self._ended = threading.Event()
        self._sweeper: threading.Thread | None = None  # from the first entry with an idle timeout on
        dataplane.set_digest_receiver(self._deliver_digest)
        if cpu_port is not None:
            dataplane.bind(cpu_port, CpuPort(self._deliver))

    def load(self, p4info: p4info_pb2.P4Info, device_config: bytes) -> None:
        """Run a program with empty state, as if a client had pushed it. Raises P4RuntimeError: it cannot run here."""
        target = self._pipelines.make(verify(p4info, device_config))
        with self._lock:
            self._pipelines.save(target)
            self._pipelines.commit()

    def end_streams(self) -> None:
        """End all streams and the sweeps for idle entries, before the server stops."""
        self._ended.set()
        with self._lock:
            for stream in self._streams:
                stream.end()

    def Capabilities(
        self, request: p4rt.CapabilitiesRequest, context: grpc.ServicerContext
    ) -> p4rt.CapabilitiesResponse:
        """Answer with the version of P4Runtime that this server speaks."""
        return p4rt.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def SetForwardingPipelineConfig(
        self, request: _SetConfig, context: grpc.ServicerContext
    ) -> p4rt.SetForwardingPipelineConfigResponse:
        """Verify, save or commit a pipeline, as the request's action says. Only the primary client may."""
        with _answering(context):
            with self._lock:
                self._check_device(request)
                self._arbitration.check_writer(_election_id(request))
            target = self._prepare(request)  # to compile takes seconds, in which others may read, write and arbitrate
            with self._lock:
                self._arbitration.check_writer(_election_id(request))
                self._set_pipeline(request, target)
        return p4rt.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(
        self, request: _GetConfig, context: grpc.ServicerContext
    ) -> p4rt.GetForwardingPipelineConfigResponse:
        """Return the parts of the current pipeline that are asked for, or an empty response if there is none."""
        response = p4rt.GetForwardingPipelineConfigResponse()
        with _answering(context), self._lock:
            self._check_device(request)
            if self._pipelines.current is not None:
                _fill_config(response.config, self._pipelines.current.pipeline, request.response_type)
        return response

    def Write(self, request: p4rt.WriteRequest, context: grpc.ServicerContext) -> p4rt.WriteResponse:
        """Apply a batch of updates, each on its own. If any fails, the RPC ends in UNKNOWN with an error for each."""
        with _answering(context), self._lock:
            self._check_device(request)
            self._arbitration.check_writer(_election_id(request))
            target = self._require_target()
            if request.atomicity != p4rt.WriteRequest.CONTINUE_ON_ERROR:
                raise unsupported("only CONTINUE_ON_ERROR is supported")
            errors = [self._apply(target, update) for update in request.updates]
            if self._sweeper is None and target.idle.period_s() is not None:
                self._sweeper = threading.Thread(target=self._sweep, name="p4runtime-idle", daemon=True)
                self._sweeper.start()
        if any(errors):
            _abort_batch(context, errors, "Write")
        return p4rt.WriteResponse()

    def Read(self, request: p4rt.ReadRequest, context: grpc.ServicerContext) -> Iterator[p4rt.ReadResponse]:
        """Stream the results of a batch of queries, then the errors of the invalid queries."""
        entities: list[tuple[str, Message]] = []
        errors: list[P4RuntimeError | None] = []
        with _answering(context), self._lock:
            self._check_device(request)
            target = self._require_target()
            for query in request.entities:
                try:
                    with self._dataplane.gate.control():  # for each query, so that packets pass between two of them
                        entities += read_entity(target, query)
                    errors.append(None)
                except P4RuntimeError as error:
                    errors.append(error)
        yield from _responses(entities)
        if any(errors):
            _abort_batch(context, errors, "Read")

    def StreamChannel(
        self, requests: Iterable[p4rt.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4rt.StreamMessageResponse]:
        """Arbitrate, and carry packet-ins, packet-outs, lists of digests and notices of idle entries, until the end."""
        stream = _Stream()
        with _answering(context), self._lock:
            if len(self._streams) >= MAX_STREAMS:
                raise P4RuntimeError(RpcCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} streams are open, which is the limit")
            self._streams.add(stream)
        context.add_callback(stream.end)  # called at the end of the RPC, after errors too
        # gRPC gives a stream one thread, which sends. Another one has to wait for the requests.
        threading.Thread(target=self._listen, args=(stream, requests), name="p4runtime-stream", daemon=True).start()
        try:
            yield from stream.messages()
        finally:
            self._close(stream)
        if stream.refusal is not None:
            context.abort(_STATUS[stream.refusal.code], str(stream.refusal))

    def _prepare(self, request: _SetConfig) -> RunningPipeline | None:
        """Return the pipeline that a request saves, or None. Refuse requests that make no sense."""
        pipeline = requested_pipeline(request)
        if pipeline is None or request.action == _SetConfig.VERIFY:
            return None
        return self._pipelines.make(pipeline)

    def _set_pipeline(self, request: _SetConfig, target: RunningPipeline | None) -> None:
        if target is not None:
            self._pipelines.save(target)
        if request.action in (_SetConfig.COMMIT, _SetConfig.VERIFY_AND_COMMIT):
            self._pipelines.commit()

    def _apply(self, target: RunningPipeline, update: p4rt.Update) -> P4RuntimeError | None:
        try:
            with self._dataplane.gate.control():
                write_update(target, update)
        except P4RuntimeError as error:
            return error
        except Exception as error:
            # The other updates of the batch have been applied, or will be: the client gets the result of each.
            return _internal(error)
        return None

    def _check_device(self, request: _DeviceRequest) -> None:
        if request.device_id != self._device_id:
            raise P4RuntimeError(
                RpcCode.NOT_FOUND, f"device id {request.device_id} is not served here: this is device {self._device_id}"
            )
        role = getattr(request, "role", "") or getattr(request, "role_id", 0)
        if role:
            raise P4RuntimeError(RpcCode.NOT_FOUND, f"role {role!r} does not exist: leave it unset, for full access")

    def _require_target(self) -> RunningPipeline:
        if self._pipelines.current is None:
            raise P4RuntimeError(RpcCode.FAILED_PRECONDITION, "no program is loaded: use SetForwardingPipelineConfig")
        return self._pipelines.current

    def _require_primary(self, stream: _Stream, what: str) -> None:
        if self._primary is not stream:
            raise P4RuntimeError(RpcCode.PERMISSION_DENIED, f"only the primary may {what}")

    def _require_running(self) -> RunningPipeline:
        if (running := self._pipelines.running) is None:
            raise P4RuntimeError(RpcCode.FAILED_PRECONDITION, "no program is loaded")
        return running

    def _listen(self, stream: _Stream, requests: Iterable[p4rt.StreamMessageRequest]) -> None:
        """Handle a client's messages until it closes its side, its connection breaks or it is refused."""
        try:
            for request in requests:
                kind = request.WhichOneof("update")
                if kind == "arbitration":
                    self._arbitrate(stream, request.arbitration)
                elif kind == "packet":
                    self._packet_out(stream, request.packet)
                elif kind == "digest_ack":
                    self._acknowledge(stream, request)
                else:
                    stream.put_if_room(
                        _stream_error(
                            RpcCode.INVALID_ARGUMENT, f"{kind or 'an empty message'} means nothing here", request
                        )
                    )
        except P4RuntimeError as error:
            stream.refusal = error
        except grpc.RpcError:
            pass  # the connection is gone, which ends the stream as well
        except Exception as error:
            stream.refusal = _internal(error)
        finally:
            stream.end()

    def _arbitrate(self, stream: _Stream, message: p4rt.MasterArbitrationUpdate) -> None:
        role = str(message.role).strip() if message.HasField("role") and message.role.ByteSize() else None
        with self._lock:
            if not stream.closed:
                self._tell(self._arbitration.update(stream, message.device_id, _election_id(message), role))

    def _close(self, stream: _Stream) -> None:
        with self._lock:
            # A late arbitration message of the listening thread finds the stream closed and changes nothing.
            stream.closed = True
            self._streams.discard(stream)
            self._tell(self._arbitration.disconnect(stream))

    def _tell(self, notices: list[Notice]) -> None:
        self._primary = self._arbitration.primary  # type: ignore[assignment]  # clients are streams
        for client, code, election_id in notices:
            message = p4rt.StreamMessageResponse()
            message.arbitration.device_id = self._device_id
            if election_id is not None:
                message.arbitration.election_id.high = election_id >> 64
                message.arbitration.election_id.low = election_id & (1 << 64) - 1
            message.arbitration.status.code = int(code)
            if code is not RpcCode.OK:
                message.arbitration.status.message = (
                    "another client is primary" if code is RpcCode.ALREADY_EXISTS else "no client is primary"
                )
            client.put(message)  # type: ignore[attr-defined]

    def _packet_out(self, stream: _Stream, packet: p4rt.PacketOut) -> None:
        try:
            self._require_primary(stream, "send packets")
            # Before the program is asked for: without the port no program can send.
            if self._cpu_port is None:
                raise P4RuntimeError(
                    RpcCode.FAILED_PRECONDITION, "this switch has no CPU port: start it with --cpu-port"
                )
            target = self._require_running()
            header = target.pipeline.packet_out.pack((field.metadata_id, field.value) for field in packet.metadata)
        except P4RuntimeError as error:
            request = p4rt.StreamMessageRequest(packet=packet)
            stream.put_if_room(_stream_error(error.code, str(error), request))
            return
        # Without this service's lock: `inject` takes the gate.
        self._dataplane.inject(self._cpu_port, header + packet.payload)

    def _acknowledge(self, stream: _Stream, request: p4rt.StreamMessageRequest) -> None:
        try:
            self._require_primary(stream, "acknowledge digests")
            target = self._require_running()
            with self._dataplane.gate.control():
                acknowledge(target, request.digest_ack)
        except P4RuntimeError as error:
            stream.put_if_room(_stream_error(error.code, str(error), request))

    def _deliver_digest(self, complete: DigestList) -> str | None:
        """Send a list of digests to the primary. Return the reason of a failure. Called with the gate held."""
        stream, target = self._primary, self._pipelines.running
        if stream is None or target is None:
            return "no_primary"
        message = digest_message(target, complete)
        if message is None:
            return "not_in_p4info"
        return None if stream.put_if_room(message) else "controller_slow"

    def _sweep(self) -> None:
        """Tell the primary of entries that are idle, until the server stops."""
        period_s: float | None = 0.0
        while not self._ended.wait(_NO_TIMEOUT_S if period_s is None else period_s):
            try:
                with self._dataplane.gate.control():
                    period_s = self._tell_idle()
            except Exception as error:  # whatever it was, later entries need the next sweep
                _internal(error)

    def _tell_idle(self) -> float | None:
        """Send what is idle. Return the time until the next sweep. Called with the gate held."""
        stream, target = self._primary, self._pipelines.running
        if target is None:
            return None
        idle = target.idle.sweep(time.monotonic_ns())
        for first in range(0, len(idle), _IDLE_TOGETHER):
            some = idle[first : first + _IDLE_TOGETHER]
            # Nobody is notified: the next sweep tries again.
            if stream is None or not stream.put_if_room(idle_message(target, some)):
                break
            target.idle.mark_notified(some)
        return target.idle.period_s()

    def _deliver(self, frame: bytes) -> str | None:
        """Send a frame from the CPU port to the primary. Return the reason of a failure. Called with the gate held."""
        stream, target = self._primary, self._pipelines.running
        if stream is None or target is None:
            return "no_primary"
        message = p4rt.StreamMessageResponse()
        try:
            metadata, message.packet.payload = target.pipeline.packet_in.unpack(frame)
        except P4RuntimeError:
            return "short_packet_in"
        for number, value in metadata:
            message.packet.metadata.add(metadata_id=number, value=value)
        return None if stream.put_if_room(message) else "controller_slow"


class RequestParser(grpc.ServerInterceptor):
    """The interceptor that parses the requests of every method in the handler's thread.

    A parser inside gRPC's Python server may not fail. That server keeps the state of such a call for good, 17 kB, and
    its `stop` waits for the call for ever. It also writes a traceback for each.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unparsable = 0
        self._logged_at_s = -_UNPARSABLE_LOG_S

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Return the handler of a call, which takes bytes, or None for a method that is not served."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        answer, streams = handler_function(handler), handler.request_streaming
        parse = partial(self._parsed, handler.request_deserializer, handler_call_details.method)

        def serve(request: Any, context: Any) -> Any:
            with _answering(context):
                request = map(parse, request) if streams else parse(request)
            return answer(request, context)

        return handler_like(handler, serve, None)

    def _parsed(self, parse: Callable[[bytes], Any], method: str, data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            self._note(method)
            raise invalid(f"{len(data)} bytes that are no message of {method}") from None

    def _note(self, method: str) -> None:
        """Count a request that does not parse. A stranger can send thousands: one line a minute has their number."""
        with self._lock:
            self._unparsable += 1
            now_s = time.monotonic()
            if now_s - self._logged_at_s < _UNPARSABLE_LOG_S:
                return
            self._logged_at_s = now_s
            told = self._unparsable
        _log.warning("requests that do not parse: %d since the start, the last one of %s", told, method)


@contextmanager
def _answering(context: grpc.ServicerContext) -> Iterator[None]:
    """Answer a P4RuntimeError with its code and message, and what nobody expected with INTERNAL and one line."""
    try:
        yield
    except P4RuntimeError as error:
        context.abort(_STATUS[error.code], str(error))
    except Exception as error:
        context.abort(grpc.StatusCode.INTERNAL, str(_internal(error)))


def _internal(error: Exception) -> P4RuntimeError:
    line = internal_error(error)
    _log.error("%s", line)
    return P4RuntimeError(RpcCode.INTERNAL, line)


def _abort_batch(context: grpc.ServicerContext, errors: list[P4RuntimeError | None], what: str) -> None:
    """End an RPC with one p4.v1.Error for each element of its batch, shortened so that clients take it."""
    summary = f"{what}: {sum(error is not None for error in errors)} of {len(errors)} failed"
    # A batch of thousands of updates would exceed the metadata that clients accept: messages are cut, codes stay.
    for limit in (1000, 200, 60, 0):
        status = status_pb2.Status(code=int(RpcCode.UNKNOWN), message=summary)
        for message in error_messages(errors):
            message.message = message.message[:limit]
            status.details.add().Pack(message)
        if status.ByteSize() <= _DETAILS_BYTES:
            break
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, summary)


def _responses(entities: Iterable[tuple[str, Message]]) -> Iterator[p4rt.ReadResponse]:
    response, size = p4rt.ReadResponse(), 0
    for name, message in entities:
        if size >= _RESPONSE_BYTES:
            yield response
            response, size = p4rt.ReadResponse(), 0
        entity = response.entities.add()
        getattr(entity, name).CopyFrom(message)
        size += entity.ByteSize()
    if size:
        yield response


def _fill_config(config: p4rt.ForwardingPipelineConfig, pipeline: CheckedPipeline, parts: int) -> None:
    if parts in (_GetConfig.ALL, _GetConfig.P4INFO_AND_COOKIE):
        config.p4info.CopyFrom(pipeline.p4info.message)
    if parts in (_GetConfig.ALL, _GetConfig.DEVICE_CONFIG_AND_COOKIE):
        config.p4_device_config = pipeline.device_config
    if pipeline.cookie is not None:
        config.cookie.cookie = pipeline.cookie
    config.SetInParent()


def _election_id(message: _Elected) -> int | None:
    if not message.HasField("election_id"):
        return None
    return int(message.election_id.high) << 64 | int(message.election_id.low)


def _stream_error(code: RpcCode, message: str, request: p4rt.StreamMessageRequest) -> p4rt.StreamMessageResponse:
    response = p4rt.StreamMessageResponse()
    response.error.canonical_code = int(code)
    response.error.message = message
    kind = request.WhichOneof("update")
    if kind == "packet":
        response.error.packet_out.packet_out.CopyFrom(request.packet)
    elif kind == "digest_ack":
        response.error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
    else:
        response.error.other.SetInParent()
    return response
