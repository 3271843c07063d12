# SPDX-License-Identifier: Apache-2.0
"""Calls to the controller: each with a deadline, and errors in words. No call goes through a proxy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from hopsum.errors import HopsumError
from hopsum_base.quiet_grpc import details, grpc
from hopsum_base.tls_client import Contents, TlsClientFiles
from hopsum_wire.control import is_local
from hopsum_wire.control.services import BEARER, MESSAGE_BYTES_MAX, Method, methods

# The errors of calls to the controller: a refusal, or a controller that cannot be reached.


class ControllerError(HopsumError):
    """The controller refused a call. `code` is gRPC's name of the kind: NOT_FOUND, UNAUTHENTICATED, ..."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class ControllerUnreachableError(ControllerError):
    """The controller gave no answer, so whether the call took effect is unknown. Every call of hopsum may be repeated.

    `tls` is the reason if the TLS handshake failed, else empty.
    """

    def __init__(self, message: str, code: str, tls: str = "") -> None:
        super().__init__(message, code)
        self.tls = tls


START_AGAIN: Final = "start all ranks again, or with min_workers this one"
"""The remedy in errors of a rank without a place in a job of hosts://."""
CALL_S: Final = 5.0
"""Deadline of a call that the server answers at once."""
MISSED_MAX: Final = 2
"""Calls without an answer, one after the other, after which another connection is opened."""
_REFUSAL_S: Final = 1.0
"""Seconds for the host of a controller to refuse a connection."""
PING_S: Final = 5.0
"""Seconds of silence until a ping is sent, and seconds until a connection without an answer to it is given up."""
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),  # also how long one attempt may take
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", int(PING_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(PING_S * 1000)),
    ("grpc.http2.ping_timeout_ms", int(PING_S * 1000)),  # newer versions of gRPC wait for this, a minute without it
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # no bound: a stream may have no news for hours
)
_NO_ANSWER: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class TlsError(HopsumError):
    """TLS options contradict each other, or a certificate file cannot be read."""


@dataclass(frozen=True, slots=True)
class ControllerAddress:
    """The controller's gRPC target, HOST:PORT or unix:PATH, and the TLS settings for it. No file is read.

    With `tls` the controller's certificate is checked against `ca_file` (PEM), without a file against gRPC's own
    authorities. `identity`: the files of the client certificate and its key (PEM), if the controller requires one.
    Without TLS, secrets are sent unencrypted.
    """

    target: str
    tls: bool = True
    ca_file: Path | None = None
    identity: tuple[Path, Path] | None = None
    host_rank: int | None = None
    """The rank of hosts:// whose process has the controller, which ends with it for good. None: an operator's."""

    @classmethod
    def of(
        cls,
        target: str,
        *,
        tls: bool | None = None,
        ca_file: str | Path = "",
        certificate_file: str | Path = "",
        key_file: str | Path = "",
    ) -> ControllerAddress:
        """Return the address of a target, with TLS as the options or the target itself ask for. No file is read.

        Args:
            target: HOST:PORT or unix:PATH.
            tls: None: TLS if a file is given, or if the target is neither a unix socket nor loopback.
            ca_file: empty: gRPC's own authorities.
            certificate_file: empty: no client certificate.
            key_file: of the client certificate.

        Raises:
            TlsError: a file although `tls` is off, or only one of certificate and key.
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

    @property
    def tls_files(self) -> TlsClientFiles:
        """Return the files of its TLS: CA, client certificate and key, None for each that is not set."""
        return TlsClientFiles(self.ca_file, *(self.identity or (None, None)))


class Channel:
    """One connection to the controller, opened by the first call, and again after a failure. Thread-safe.

    After MISSED_MAX calls in a row without an answer in time, another connection is opened. Calls that still wait on
    the former one end with ControllerUnreachableError. A connection that has streams stays until they end: the
    controller may only be slow, and takes the end of a stream for the end of its reader.

    The files of TLS are read for each connection. gRPC itself connects again with what it read first, so after a call
    without an answer another connection is opened where the files have changed.

    The constructor raises TlsError when the files of `address` cannot be read or do not fit each other. Later ones that
    do not fit leave the ones before in use.
    """

    def __init__(self, address: ControllerAddress) -> None:
        self.address = address
        self._tls = _read_tls(address)
        self._lock = threading.Lock()
        self._missed = 0
        self._closed = False
        self._channel = self._connected()
        self._streams: dict[Replies, Any] = {}
        """The channel of each stream that has not ended."""

    def call(self, service: str, name: str, request: Any, *, secret: str = "", timeout_s: float = CALL_S) -> Any:
        """Send one request and return the reply. Blocks. The call is not repeated.

        Args:
            service: MEMBERSHIP_SERVICE or JOB_SERVICE.
            name: of the method. `request` is its message.
            secret: the token or member secret that the method requires, empty for none.
            timeout_s: the most seconds until the reply. The reason of a failure may take some seconds more to find.

        Raises:
            ControllerUnreachableError: no answer in time, or, at once, no connection: pause before another call.
            ControllerError: the controller refused, in its own words, the channel is closed, or (hosts://) the process
                with the controller has ended.
        """
        # The connection is read once: another thread may replace it during the call, and `_note` must count for this
        # one.
        method, channel = methods(service)[name], self._channel
        try:
            send = channel.unary_unary(method.path, *_forms(method))
            reply = send(request, timeout=timeout_s, metadata=_metadata(secret))
            self._note(channel, missed=False)
            return reply
        except grpc.RpcError as error:
            # Only silence counts. A refusal is an answer, so the connection lives.
            if error.code() in _NO_ANSWER and self._has_renewed_tls():
                self._replace(channel)
            else:
                self._note(channel, missed=error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)
            raise self._error(error, name, timeout_s) from None  # grpc's own shows the metadata in tracebacks
        except ValueError:  # as grpc says that the channel is closed
            raise self._gone(name) from None

    def stream(self, service: str, name: str, request: Any, *, secret: str = "") -> Replies:
        """Send a request and return an iterator of its replies, without a deadline. Does not wait.

        Arguments as `call`. Raises ControllerError if the channel is closed. All later errors come from the iterator.
        """
        method = methods(service)[name]
        with self._lock:
            channel = self._channel
            try:
                send = channel.unary_stream(method.path, *_forms(method))
                call = send(request, metadata=_metadata(secret))
            except ValueError:
                raise self._gone(name) from None
            # Registered under the lock, so that `close` and `_note` see each open stream.
            replies = Replies(self, call, name)
            self._streams[replies] = channel
        return replies

    def close(self) -> None:
        """Close the channel, with its streams. May be called again.

        Calls in progress end with ControllerUnreachableError, later ones with ControllerError.
        """
        with self._lock:
            self._closed = True
            channels = {self._channel, *self._streams.values()}
        for channel in channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _connected(self) -> Any:
        if self._tls is not None:
            return grpc.secure_channel(self.address.target, grpc.ssl_channel_credentials(*self._tls), _OPTIONS)
        return grpc.insecure_channel(self.address.target, _OPTIONS)

    def _note(self, channel: Any, *, missed: bool) -> None:
        """Count the calls without an answer on the present connection. Leave it where they are too many."""
        with self._lock:
            # A call that waited on an older connection says nothing about the present one.
            if channel is not self._channel:
                return
            self._missed = self._missed + 1 if missed else 0
            if self._missed < MISSED_MAX:
                return
        self._replace(channel)

    def _has_renewed_tls(self) -> bool:
        """Return true where the files of TLS have other contents than those of the present connection."""
        try:
            return _read_tls(self.address) != self._tls
        # A file is being written: the next call looks again.
        except TlsError:
            return False

    def _replace(self, channel: Any) -> None:
        """Open another connection in the place of `channel`, if that is the present one."""
        with self._lock:
            if channel is not self._channel or self._closed:
                return
            # Files that do not fit just now leave the ones of before.
            with suppress(TlsError):
                self._tls = _read_tls(self.address)
            self._missed, self._channel = 0, self._connected()
            is_idle = channel not in self._streams.values()
        # Closed outside the lock: gRPC ends the calls on it, whose threads come back here.
        if is_idle:
            channel.close()

    def _note_end(self, replies: Replies) -> None:
        """Forget a stream. Close the connection that was given up and has no other."""
        with self._lock:
            channel = self._streams.pop(replies, None)
            has_ended = channel not in (None, self._channel) and channel not in self._streams.values()
        if has_ended:
            channel.close()

    def _is_given_up(self, replies: Replies) -> bool:
        with self._lock:
            return self._streams.get(replies) is not self._channel

    def _gone(self, name: str) -> ControllerError:
        # Not unreachable, or a caller would try again until its time has passed, and `close` of its owner would wait.
        return ControllerError(f"{name}: the channel to {self.address.target} is closed", "CANCELLED")

    def _why_no_tls(self) -> str:
        """Return why the TLS handshake fails, as far as another one shows it, empty where it does not."""
        host, _, port = self.address.target.rpartition(":")
        # gRPC tells the client whose certificate was refused no more than that the connection was closed.
        if self._tls is None or not port.isdigit():
            return ""
        return self.address.tls_files.handshake_failure(host.strip("[]"), int(port))

    def _has_ended_for_good(self) -> bool:
        """Say whether the host of a controller that is never started again answers that nothing listens there."""
        host, _, port = self.address.target.rpartition(":")
        try:
            if self.address.host_rank is not None:
                socket.create_connection((host, int(port)), _REFUSAL_S).close()
        # Only a refusal is proof: a network that is down for a while says nothing, or that there is no route.
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        return False

    def _error(self, error: Any, name: str, timeout_s: float) -> ControllerError:
        code, told = error.code(), details(error)
        where = f"controller at {self.address.target}"
        if code is grpc.StatusCode.UNAVAILABLE and (why := self._why_no_tls()):
            files = ", ".join(str(file) for file in (self.address.ca_file, *(self.address.identity or ())) if file)
            return ControllerUnreachableError(
                f"{where} gave no answer to {name}: TLS: {why}: renew the files at their places "
                f"({files or 'none given, see ca_file'}) or the controller's; they are read again",
                code.name,
                why,
            )
        if code is grpc.StatusCode.UNAVAILABLE and self._has_ended_for_good():
            rank = self.address.host_rank
            return ControllerError(
                f"rank {rank} has ended: nothing listens any more at {self.address.target}, where its process had the "
                f"controller of the job. See what rank {rank} says, and start all ranks again",
                code.name,
            )
        if code in _NO_ANSWER:
            how = "with TLS" if self.address.tls else "without TLS"
            within = f" within {timeout_s:.3g} s" if code is grpc.StatusCode.DEADLINE_EXCEEDED else ""
            return ControllerUnreachableError(
                f"{where}, {how}, gave no answer to {name}{within} ({told}): check that it runs there, and that it is "
                "asked as it listens (ca_file, or tls=off in the URL)",
                code.name,
            )
        # The hints behind the semicolon are for jobs in which another worker may take a place.
        if self.address.host_rank is not None:
            told = f"{told.partition('; ')[0]}; {START_AGAIN}"
        return ControllerError(f"{where}: {told}", code.name)


class Replies(Iterator[Any]):
    """An iterator of the replies of one stream. It ends when the controller ends the stream.

    If the stream breaks off, the iterator raises the errors of `Channel.call`. `cancel` is for any thread.
    """

    def __init__(self, channel: Channel, call: Any, name: str) -> None:
        self._channel, self._call, self._name = channel, call, name

    @property
    def is_given_up(self) -> bool:
        """Return whether new calls use another connection than this stream, or the stream has ended."""
        return self._channel._is_given_up(self)

    def __next__(self) -> Any:
        """Return the next reply. Blocks until it comes."""
        try:
            return next(self._call)
        except grpc.RpcError as error:
            self._channel._note_end(self)
            raise self._channel._error(error, self._name, 0.0) from None
        except StopIteration:
            self._channel._note_end(self)
            raise

    def cancel(self) -> None:
        """End the stream: a waiting reader gets ControllerUnreachableError. Does nothing on an ended stream."""
        self._call.cancel()
        self._channel._note_end(self)


def _forms(method: Method) -> tuple[Any, Any]:
    """Return the serialiser of a method's request and the parser of its reply."""
    return method.request.SerializeToString, method.response.FromString


def _metadata(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", BEARER + secret),) if secret else ()


def _read_tls(address: ControllerAddress) -> Contents | None:
    if not address.tls:
        return None
    try:
        return address.tls_files.contents()
    except OSError as error:
        raise TlsError(
            f"controller {address.target}: the files for TLS cannot be read or do not fit: {error}"
        ) from error
