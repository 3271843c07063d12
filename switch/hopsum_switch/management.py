# SPDX-License-Identifier: Apache-2.0
"""Ports and statistics of a running switch over gRPC, as JSON.

Service `hopsum_switch.Management`, on P4Runtime's address. Unary methods, UTF-8 JSON objects both ways::

  BindUdp    {"port": 1, "address": "127.0.0.1:0", "as": "10.0.0.1:24677"}   -> the port as ListPorts shows it
  ListPorts  {}                        -> {"ports": {"1": {"kind": ..., "received": ..., "dropped": {...}}}}
  Stats      {}                        -> {"packets": ..., "dropped": {...}, "faults": {...}, "digests": {...}, ...}
  Snapshot   {"names": ["reg"]}        -> registers and counters at one moment between two packets, in the form that
             `hopsum_switch.observe.snapshot` describes. Without names all of them

Names of registers and counters may be cut to their last parts, `slot.tag` or `tag`, where only one has them.

INVALID_ARGUMENT says what is wrong with a request, FAILED_PRECONDITION why a port cannot be opened, or that no program
is loaded. Ports over AF_UNIX paths and interfaces are opened at the start only: a switch that runs as root would hand
out files and interfaces of its machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from hopsum_base.internal_error import internal_error
from hopsum_base.quiet_grpc import details, grpc
from hopsum_switch.engine import Engine
from hopsum_switch.errors import InvalidArgumentError
from hopsum_switch.observe.snapshot import SnapshotError, take_snapshot
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.ports.port import PortError
from hopsum_switch.ports.udp import UdpPort, parse_udp_address

SERVICE = "hopsum_switch.Management"
# gRPC takes 4 MiB by default, less than the registers of a program may have.
_MAX_SNAPSHOT_BYTES = 1 << 30
Json = dict[str, Any]


class ManagementError(Exception):
    """The switch refused a management request, or did not answer in time. The message has the reason."""


class BadRequestError(Exception):
    """A request with missing or unknown keys, or with a value of the wrong type."""


class NoProgramError(Exception):
    """No program is loaded, and the request needs one."""


class Management:
    """The management methods of a switch, without gRPC: each takes and returns a JSON object (see the module)."""

    def __init__(self, dataplane: Dataplane) -> None:
        self._dataplane = dataplane
        self._started = time.monotonic()

    def methods(self) -> dict[str, Callable[[Json], Json]]:
        """Return the bound methods by their names in the gRPC service."""
        return {
            "BindUdp": self.bind_udp,
            "ListPorts": self.list_ports,
            "Stats": self.stats,
            "Snapshot": self.snapshot,
        }

    def bind_udp(self, request: Json) -> Json:
        """Open a UDP port. Return number and description. Raises BadRequestError or PortError: nothing was opened."""
        _check_keys(request, required={"port": int, "address": str}, optional={"as": str})
        shown_as = parse_udp_address(request["as"]) if "as" in request else None
        port = UdpPort.bind(request["port"], parse_udp_address(request["address"]), shown_as)
        self._dataplane.bind(request["port"], port)
        return {"port": request["port"], **port.describe()}

    def list_ports(self, request: Json) -> Json:
        """Return all ports with their counters, under the key `ports`. Raises BadRequestError: the request has keys."""
        _check_keys(request)
        return {"ports": {str(number): shown for number, shown in self._dataplane.ports().items()}}

    def stats(self, request: Json) -> Json:
        """Return the counts of `Dataplane.stats`, and `uptime_s`. Raises BadRequestError: the request has keys."""
        _check_keys(request)
        return {**self._dataplane.stats(), "uptime_s": time.monotonic() - self._started}

    def snapshot(self, request: Json) -> Json:
        """Return registers and indexed counters at one moment, those in `names` or all.

        Raises BadRequestError, SnapshotError (no such name, or an ambiguous one), NoProgramError.
        """
        _check_keys(request, optional={"names": list})
        names = request.get("names", [])
        if not all(isinstance(name, str) for name in names):
            raise BadRequestError(f"names must be strings, not {names!r}")
        with self._dataplane.gate.control():
            # Only the copy is made under the gate. Packets continue while it is turned into JSON.
            frozen = take_snapshot(self._engine())
        return frozen.as_json(names)

    def _engine(self) -> Engine:
        engine = self._dataplane.engine
        if not isinstance(engine, Engine):
            raise NoProgramError("no program is loaded: there are no registers and counters")
        return engine


def add_to_server(management: Management, server: grpc.Server) -> None:
    """Serve the methods on `server`, which has not started yet."""
    # Generic handlers take and give bytes: JSON needs no generated code.
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _handler(method), request_deserializer=_identity, response_serializer=_identity
        )
        for name, method in management.methods().items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class ManagementClient:
    """A client of a switch, one method per RPC. Every RPC raises ManagementError: refused, or no answer in time."""

    def __init__(
        self, address: str, *, timeout_s: float = 5.0, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        """Make a client of the switch at gRPC `address` (HOST:PORT or unix:PATH). No request is sent yet.

        `timeout_s`: the time limit of each RPC, in which a switch that is just starting may become ready.
        `credentials`: of TLS. None: plain text.
        """
        # A proxy of the environment is for the world outside, not for a switch on this machine.
        options = [("grpc.max_receive_message_length", _MAX_SNAPSHOT_BYTES), ("grpc.enable_http_proxy", 0)]
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)
        self._timeout_s = timeout_s

    def __enter__(self) -> ManagementClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the switch. Nothing is sent."""
        self._channel.close()

    def bind_udp(self, port: int, address: str, shown_as: str | None = None) -> str:
        """Open switch port `port` on UDP HOST:PORT (PORT 0: any free one) and return the bound HOST:PORT.

        `shown_as`: the switch's address in frames, as IP:UDPPORT. None: the bound address. Raises ManagementError.
        """
        request: Json = {"port": port, "address": address}
        if shown_as is not None:
            request["as"] = shown_as
        return str(self._call("BindUdp", request)["address"])

    def list_ports(self) -> dict[int, Json]:
        """Ask for every port's kind, addresses and counters, and return them by port number. Raises ManagementError."""
        return {int(number): shown for number, shown in self._call("ListPorts", {})["ports"].items()}

    def stats(self) -> Json:
        """Ask for the counts of the switch since its start, and return them. Raises ManagementError."""
        return self._call("Stats", {})

    def snapshot(self, names: Sequence[str] = ()) -> Json:
        """Ask for registers and indexed counters at one moment, and return them as `Snapshot.as_json` does.

        Empty `names`: all. Raises ManagementError.
        """
        return self._call("Snapshot", {"names": list(names)})

    def _call(self, method: str, request: Json) -> Json:
        call = self._channel.unary_unary(f"/{SERVICE}/{method}", request_serializer=_dump, response_deserializer=_load)
        try:
            # wait_for_ready: a switch that is just starting is waited for, within the time limit.
            response: Json = call(request, timeout=self._timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            raise ManagementError(f"{method}: {details(error)} ({error.code().name})") from error
        return response


def _handler(method: Callable[[Json], Json]) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return _dump(method(_load(request)))
        except (BadRequestError, SnapshotError, InvalidArgumentError, ValueError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except (PortError, NoProgramError) as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Exception as error:
            context.abort(grpc.StatusCode.INTERNAL, internal_error(error))
        raise AssertionError("abort raises")

    return serve


def _check_keys(
    request: Json, required: dict[str, type] | None = None, optional: dict[str, type] | None = None
) -> None:
    required, known = required or {}, {**(required or {}), **(optional or {})}
    missing, unknown = required.keys() - request.keys(), request.keys() - known.keys()
    if missing or unknown:
        raise BadRequestError(f"keys missing: {sorted(missing)}, unknown: {sorted(unknown)}; known are {sorted(known)}")
    for key, value in request.items():
        # Not isinstance, by which True would be a port number.
        if type(value) is not known[key]:
            raise BadRequestError(f"{key} must be {known[key].__name__}, not {value!r}")


def _dump(value: Json) -> bytes:
    return json.dumps(value).encode()


def _load(data: bytes) -> Json:
    try:
        value = json.loads(data)
    except RecursionError:
        raise BadRequestError("JSON that is nested too deeply") from None
    if not isinstance(value, dict):
        raise BadRequestError(f"a JSON object is wanted, not {type(value).__name__}")
    return value


def _identity(data: bytes) -> bytes:
    return data
