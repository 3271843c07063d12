# SPDX-License-Identifier: Apache-2.0
"""A whole switch in one process: data plane, P4Runtime and management on one gRPC address.

In a program or a test, as a context manager, with the packet loop in a separate thread:

    with SwitchServer(device_id=3) as switch:
        switch.load(p4info_text, program_json)
        switch.dataplane.bind(0, MemoryPort())
        ...  # P4Runtime at switch.grpc_address

As a process (see `cli`): `open`, then `run` in the main thread until `stop`, then `close`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from hopsum_base.p4runtime import p4runtime_pb2_grpc
from hopsum_base.quiet_grpc import SERVER_OPTIONS, grpc
from hopsum_switch.engine import Engine
from hopsum_switch.grpc_address import ServerError, ServerTls, bind_address
from hopsum_switch.management import Management, add_to_server
from hopsum_switch.p4runtime.p4info_index import parse_p4info
from hopsum_switch.p4runtime.pipeline_config import EngineFactory
from hopsum_switch.p4runtime.service import MAX_STREAMS, P4RuntimeService, RequestParser
from hopsum_switch.ports.capture import CaptureFolder
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.ports.port import check_port_number

_log = logging.getLogger(__name__)
# The default of bmv2.
DEFAULT_DEVICE_ID = 0
# Each stream occupies a thread. These further threads serve Read, Write and other unary calls.
_UNARY_THREADS = 8
# A compiled program can have many megabytes.
_MAX_MESSAGE_BYTES = 64 << 20
# Seconds for running requests when the server stops, and for the end of cancelled ones.
_GRACE_S, _CUT_S = 0.5, 2.0

# If a client's host or path fails silently, TCP alone would keep its stream, and so its mastership, for hours. Clients
# may ping the switch too.
_PING_EVERY_MS, _PING_ANSWER_MS, _PINGS_ALLOWED_EVERY_MS = 5_000, 5_000, 1_000
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", _PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", _PING_ANSWER_MS),
    ("grpc.http2.ping_timeout_ms", _PING_ANSWER_MS),  # the option of newer versions of gRPC; default: a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # no bound, because streams are usually idle
    ("grpc.http2.min_ping_interval_without_data_ms", _PINGS_ALLOWED_EVERY_MS),
)


class SwitchServer:
    """One device. Any thread may call public methods. `open` and `close` may be called once each.

    The context manager calls `open`, and `run` in a thread of its own, and at the end `stop` and `close`.
    """

    def __init__(
        self,
        grpc_address: str = "127.0.0.1:0",
        *,
        device_id: int = DEFAULT_DEVICE_ID,
        cpu_port: int | None = None,
        make_engine: EngineFactory = Engine,
        capture_folder: Path | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """Prepare a switch. It does not listen yet.

        `grpc_address`: HOST:PORT, port 0 for any, or unix:PATH, for this user alone, in any network namespace.
        `cpu_port`: the switch port of packet-ins and packet-outs. None: the switch has none.
        `make_engine`: makes the engine of each program that is loaded, see `backend.engine_maker`.
        `capture_folder`: the folder for every port's frames, see `ports.capture`. `tls`: None for plain text.

        Raises PortError: `cpu_port` is no port number, or the folder or a capture in it cannot be made.
        """
        if cpu_port is not None:
            check_port_number(cpu_port)
        self.device_id = device_id
        self.dataplane = Dataplane(None if capture_folder is None else CaptureFolder(capture_folder))
        self.management = Management(self.dataplane)
        self._service = P4RuntimeService(self.dataplane, make_engine, device_id=device_id, cpu_port=cpu_port)
        self._asked_address = grpc_address
        self.tls = tls
        self._thread: threading.Thread | None = None
        self._server: grpc.Server | None = None
        self.grpc_address = grpc_address

    def load(self, p4info_text: str, program_json: bytes) -> None:
        """Run a compiled program (the JSON of p4c) with its P4Info in text format, from empty state.

        Raises P4RuntimeError if the program cannot run here or the two do not fit. The previous program continues.
        """
        self._service.load(parse_p4info(p4info_text), program_json)

    def open(self) -> None:
        """Serve gRPC, and set `grpc_address` to the real address. Raises ServerError: the address is not free."""
        server = grpc.server(
            ThreadPoolExecutor(MAX_STREAMS + _UNARY_THREADS, thread_name_prefix="grpc"),
            options=[*SERVER_OPTIONS, ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), *_KEEPALIVE],
            # The client's certificate is checked before its request is parsed.
            interceptors=[RequestParser()] if self.tls is None else [self.tls, RequestParser()],
        )
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(self._service, server)
        add_to_server(self.management, server)
        try:
            address = bind_address(self._add_port(server), self._asked_address)
        except ServerError:
            server.stop(None)
            raise
        server.start()
        self._server, self.grpc_address = server, address

    def _add_port(self, server: grpc.Server) -> Callable[[str], int]:
        if self.tls is None:
            return partial(server.add_insecure_port)
        return partial(server.add_secure_port, server_credentials=self.tls.credentials)

    def run(self) -> None:
        """Carry packets in this thread until `stop` is called. After `stop` it returns at once."""
        self.dataplane.run()

    def stop(self) -> None:
        """Make `run` return soon. Safe in a signal handler."""
        self.dataplane.stop()

    def close(self) -> None:
        """End all requests and streams, then close all ports. `run` must have returned."""
        if self._server is not None:
            # No new requests first, then the end of the streams, which would outlast the grace period.
            stopped = self._server.stop(_GRACE_S)
            self._service.end_streams()
            # Bounded: a call that gRPC never ends must not keep the ports open.
            if not stopped.wait(_GRACE_S + _CUT_S):
                _log.warning("some requests of P4Runtime or management do not end")
            self._server = None
        self.dataplane.close()

    def __enter__(self) -> SwitchServer:
        try:
            self.open()
        except ServerError:
            self.close()
            raise
        self._thread = threading.Thread(target=self.run, name="dataplane", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self.close()
