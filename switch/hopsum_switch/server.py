# SPDX-License-Identifier: Apache-2.0
"""A whole switch in one process: data plane, P4Runtime and management on one gRPC address.

In a program or a test, as a context manager, with the packet loop in a thread of its own:

    with SwitchServer(device_id=3) as switch:
        switch.load(p4info_text, program_json)
        switch.dataplane.bind(0, MemoryPort())
        ...  # P4Runtime at switch.grpc_address

As a process (see `cli`): `open`, then `run` in the main thread until `stop`, then `close`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from p4.v1 import p4runtime_pb2_grpc

from hopsum_switch.engine import Engine
from hopsum_switch.management import Management, add_to_server
from hopsum_switch.p4runtime.p4info import parse_text
from hopsum_switch.p4runtime.pipeline import EngineFactory
from hopsum_switch.p4runtime.service import MAX_STREAMS, P4RuntimeService
from hopsum_switch.ports.base import check_port_number
from hopsum_switch.ports.dataplane import Dataplane

DEFAULT_GRPC = "127.0.0.1:9559"
DEFAULT_DEVICE_ID = 0  # as bmv2
_UNIX = "unix:"
_UNARY_THREADS = 8
_MAX_MESSAGE_BYTES = 64 << 20  # a compiled program can have many megabytes
_GRACE_S = 0.5  # for requests that are being answered when the server stops


class ServerError(Exception):
    """The switch cannot start; the message says what to change."""


class SwitchServer:
    """One device. Public methods may be called from any thread; `open` and `close` once each."""

    def __init__(
        self,
        grpc_address: str = "127.0.0.1:0",
        *,
        device_id: int = DEFAULT_DEVICE_ID,
        cpu_port: int | None = None,
        make_engine: EngineFactory = Engine,
    ) -> None:
        """Prepare a switch; nothing listens yet.

        `grpc_address`: HOST:PORT, port 0 for any, or unix:PATH, which only who may write there reaches, from any
        network namespace.

        Raises PortError: a switch port `cpu_port` does not exist.
        """
        if cpu_port is not None:
            check_port_number(cpu_port)
        self.device_id = device_id
        self.dataplane = Dataplane()
        self.management = Management(self.dataplane)
        self._service = P4RuntimeService(self.dataplane, make_engine, device_id=device_id, cpu_port=cpu_port)
        self._asked_address = grpc_address
        self._thread: threading.Thread | None = None
        self._server: grpc.Server | None = None
        self.grpc_address = grpc_address

    def load(self, p4info_text: str, program_json: bytes) -> None:
        """Load a compiled program and its P4Info.

        Raises P4RuntimeError: it cannot run here; what ran before runs on.
        """
        self._service.load(parse_text(p4info_text), program_json)

    def open(self) -> None:
        """Serve gRPC; `grpc_address` is the real address from now on.

        Raises ServerError: the address is not free.
        """
        server = grpc.server(
            ThreadPoolExecutor(MAX_STREAMS + _UNARY_THREADS, thread_name_prefix="grpc"),
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)],
        )
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(self._service, server)
        add_to_server(self.management, server)
        host, _, port_text = self._asked_address.rpartition(":")
        is_path = self._asked_address.startswith(_UNIX) and self._asked_address != _UNIX
        try:
            if not (is_path or (host and port_text.isascii() and port_text.isdigit())):
                raise RuntimeError("neither HOST:PORT nor unix:PATH")
            port = server.add_insecure_port(self._asked_address)
        except RuntimeError as error:
            server.stop(None)
            raise ServerError(
                f"cannot listen on {self._asked_address}: it is in use or not an address of this machine;"
                f" choose another HOST:PORT ({error})"
            ) from error
        server.start()
        self._server, self.grpc_address = server, self._asked_address if is_path else f"{host}:{port}"

    def run(self) -> None:
        """Carry packets in this thread until `stop` is called."""
        self.dataplane.run()

    def stop(self) -> None:
        """Make `run` return soon; safe in a signal handler."""
        self.dataplane.stop()

    def close(self) -> None:
        """End all requests and streams, then close all ports; `run` must have returned."""
        if self._server is not None:
            stopped = self._server.stop(_GRACE_S)
            self._service.end_streams()
            stopped.wait()
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
