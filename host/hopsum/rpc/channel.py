# SPDX-License-Identifier: Apache-2.0
"""Calls to the controller: each with a deadline, and errors in words. No call goes through a proxy."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc

from hopsum.errors import HopsumError
from hopsum.rpc.errors import ControllerError, ControllerUnreachable
from hopsum.rpc.services import BEARER, MESSAGE_BYTES_MAX, Method, methods

CALL_S: Final = 5.0
"""Deadline of a call that the server answers at once."""
UNIX: Final = "unix:"
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),  # also how long one attempt may take
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
)
_NO_ANSWER: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class TlsError(HopsumError):
    """How the controller is to be known does not fit, or its certificates cannot be read."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the controller is: HOST:PORT, or unix:PATH, and how it is known.

    With `tls` its certificate is checked against `ca_file` (PEM), or the authorities that gRPC brings without one;
    `identity` are certificate and key (PEM) to be known by, where it asks. Without TLS, secrets pass in the clear: on
    a unix socket or loopback they stay on the machine, elsewhere they do not.
    """

    target: str
    tls: bool = True
    ca_file: Path | None = None
    identity: tuple[Path, Path] | None = None

    @classmethod
    def of(
        cls,
        target: str,
        *,
        tls: bool | None = None,
        ca_file: str | Path = "",
        certificate_file: str | Path = "",
        key_file: str | Path = "",
    ) -> Place:
        """Return a place; TLS, unless told, where there is a file for it or secrets would leave the machine.

        Raises TlsError for files that are not used, or one of certificate and key.
        """
        files = [str(file) for file in (ca_file, certificate_file, key_file) if file]
        if tls is None:
            tls = bool(files) or not is_local(target)
        if files and not tls:
            raise TlsError(f"controller {target}: {files[0]} is for TLS, which is off; leave one of them out")
        if bool(certificate_file) != bool(key_file):
            raise TlsError(f"controller {target}: {files[-1]} is one of certificate_file and key_file: give both")
        identity = (Path(certificate_file), Path(key_file)) if key_file else None
        return cls(target, tls, Path(ca_file) if ca_file else None, identity)


def is_local(target: str) -> bool:
    """Say whether what is sent to HOST:PORT or unix:PATH stays on this machine."""
    host = target.rpartition(":")[0].strip("[]")
    if target.startswith(UNIX) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Channel:
    """One connection to the controller, opened by the first call and again whenever it broke. Thread-safe.

    Raises TlsError when one of the place's files cannot be read.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        if place.tls:
            self._channel = grpc.secure_channel(place.target, _credentials(place), _OPTIONS)
        else:
            self._channel = grpc.insecure_channel(place.target, _OPTIONS)

    def call(self, service: str, name: str, request: Any, *, secret: str = "", timeout_s: float = CALL_S) -> Any:
        """Return the reply to a request.

        Args:
            service: WORKERS or JOBS.
            name: of the method; `request` is its message.
            secret: whatever this method asks for, none if empty.
            timeout_s: seconds until it is given up.

        Raises:
            ControllerUnreachable: no answer in time.
            ControllerError: the controller refused; the message is its own.
        """
        method = methods(service)[name]
        send = self._channel.unary_unary(method.path, *_forms(method))
        try:
            return send(request, timeout=timeout_s, metadata=_metadata(secret))
        except grpc.RpcError as error:
            raise self._error(error, name, timeout_s) from None  # grpc's own shows the metadata in tracebacks
        except ValueError:  # as grpc says it
            raise ControllerUnreachable(f"{name}: the channel to {self.place.target} is closed", "CANCELLED") from None

    def stream(self, service: str, name: str, request: Any, *, secret: str = "") -> Replies:
        """Return the replies to a request as they come, without a deadline.

        Takes what `call` takes. The replies raise what it raises, this only ControllerUnreachable for a closed channel.
        """
        method = methods(service)[name]
        send = self._channel.unary_stream(method.path, *_forms(method))
        try:
            replies = send(request, metadata=_metadata(secret))
        except ValueError:  # as grpc says it
            raise ControllerUnreachable(f"{name}: the channel to {self.place.target} is closed", "CANCELLED") from None
        return Replies(replies, lambda error: self._error(error, name, 0.0))

    def close(self) -> None:
        """Close it; calls in progress end with ControllerUnreachable. Harmless when it is closed."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _error(self, error: Any, name: str, timeout_s: float) -> ControllerError:
        code, told = error.code(), error.details() or "no reason given"
        where = f"controller at {self.place.target}"
        if code in _NO_ANSWER:
            how = "with TLS" if self.place.tls else "without TLS"
            within = f" within {timeout_s:.3g} s" if code is grpc.StatusCode.DEADLINE_EXCEEDED else ""
            return ControllerUnreachable(
                f"{where}, {how}, gave no answer to {name}{within} ({told}): check that it runs there, and that it is "
                "asked as it listens (ca_file, or tls=off in the URL)",
                code.name,
            )
        return ControllerError(f"{where}: {told}", code.name)


class Replies(Iterator[Any]):
    """The replies of one call. The iteration ends when the controller ends it, and where it breaks off it raises as
    `Channel.call` does. `cancel` is for any thread."""

    def __init__(self, replies: Any, error: Callable[[Any], ControllerError]) -> None:
        self._replies = replies
        self._error = error

    def __next__(self) -> Any:
        """Return the next reply; waits for it."""
        try:
            return next(self._replies)
        except grpc.RpcError as error:
            raise self._error(error) from None

    def cancel(self) -> None:
        """End the call: who waits for a reply gets ControllerUnreachable. Harmless when it has ended."""
        self._replies.cancel()


def _forms(method: Method) -> tuple[Any, Any]:
    """Return what makes bytes of a method's request, and a message of its reply's bytes."""
    return method.request.SerializeToString, method.reply.FromString


def _metadata(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", BEARER + secret),) if secret else ()


def _credentials(place: Place) -> Any:
    try:
        roots = None if place.ca_file is None else place.ca_file.read_bytes()
        certificate, key = (None, None) if place.identity is None else (file.read_bytes() for file in place.identity)
    except OSError as error:
        raise TlsError(f"controller {place.target}: a file for TLS cannot be read: {error}") from error
    return grpc.ssl_channel_credentials(roots, key, certificate)
