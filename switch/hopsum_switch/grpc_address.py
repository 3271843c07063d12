# SPDX-License-Identifier: Apache-2.0
"""The address of the gRPC server, and TLS for it.

The address of P4Runtime and management is HOST:PORT, or unix:PATH, a socket with mode 0600. Without an address given it
is a socket in a folder of this user alone, so that no other user of the machine reaches the switch:
$XDG_RUNTIME_DIR/hopsum-UID/switch.sock, or the same under the folder for temporary files.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

from hopsum_base.quiet_grpc import grpc
from hopsum_base.tls_server import ServerCredentials, TlsServerFiles, read_client_names

_UNIX = "unix:"
# The bits that the umask takes from the mode of a new socket.
_ONLY_ITS_USER = 0o177


class ServerError(Exception):
    """The switch cannot start, or cannot reload its TLS files. The message names the change to make."""


def default_address() -> str:
    """Return the default address of a switch, also for its tools: unix:PATH, a socket in this user's own folder."""
    return f"{_UNIX}{_default_folder() / 'switch.sock'}"


def bind_address(add_port: Callable[[str], int], address: str) -> str:
    """Bind a server to `address` by `add_port` (grpc.Server.add_insecure_port). Return it with the real port for 0.

    For `default_address()` the folder is made if there is none. A socket that a dead process left is replaced.

    Raises ServerError: the address is in use or malformed, or the default folder is open to others or cannot be made.
    """
    host, _, port = address.rpartition(":")
    try:
        if address.startswith(_UNIX) and address != _UNIX:
            with _claimed(Path(address.removeprefix(_UNIX)), in_private=address == default_address()):
                add_port(address)
            return address
        if not (host and port.isascii() and port.isdigit()):
            raise RuntimeError("neither HOST:PORT nor unix:PATH")
        return f"{host}:{add_port(address)}"
    except RuntimeError as error:
        raise ServerError(
            f"cannot listen on {address}: it is in use or not an address of this machine;"
            f" choose another with --grpc HOST:PORT or --grpc unix:PATH ({error})"
        ) from error


def _default_folder() -> Path:
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"hopsum-{os.getuid()}"


@contextmanager
def _claimed(path: Path, *, in_private: bool) -> Iterator[None]:
    """Hold a path while a socket is made there."""
    with _locked_folder() if in_private else nullcontext():
        # gRPC itself would take the place of a switch that listens there.
        if _answers(path):
            raise ServerError(
                f"cannot listen on {_UNIX}{path}: another switch listens there;"
                " give this one an address of its own with --grpc unix:PATH or --grpc HOST:PORT"
            )
        # gRPC makes the socket itself, with the mode that the umask leaves.
        before = os.umask(_ONLY_ITS_USER)
        try:
            yield
        finally:
            os.umask(before)


@contextmanager
def _locked_folder() -> Iterator[None]:
    """Make the private folder if it is not there, and lock it."""
    folder = _default_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise ServerError(f"cannot make the folder {folder}: {error.strerror}; choose with --grpc unix:PATH") from error
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ServerError(
                f"the folder {folder} belongs to another user or is open to others: remove it, or choose another place"
                " with --grpc unix:PATH"
            )
        # The lock is held until the socket is there, so two switches that start at once come one after the other.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _answers(path: Path) -> bool:
    """Return true where a process listens at a path. A socket file of a dead process does not count."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            # Its queue is full, so a process is there.
            return True
        except OSError:
            return False
        return True


# TLS of the gRPC server: certificate and key, the authority of clients, and the names of clients that may call.
#
# The files are read at the start and at `reload`. Each new connection is served with what is there by then. Each call
# asks again whether its client may call, and `reload` ends the streams of those that may not any more.

# The kinds of RPC handlers by whether request and response are streams: a replaced handler must be of the same kind.
_Methods = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


class ServerTls(grpc.ServerInterceptor):  # type: ignore[misc]
    """The credentials of a gRPC server, and the interceptor that refuses calls of clients that may not call.

    Raises ServerError for files that do not fit.
    """

    def __init__(self, files: TlsServerFiles, client_names: Path | None) -> None:
        """Read the files. `client_names` lists the common names of clients that may call. None: all clients may."""
        self._files = ServerCredentials(files, ServerError)
        self._client_names = client_names
        self._names = self._read_names()
        self._lock = threading.Lock()
        self._streams: dict[Any, str] = {}
        self.credentials = self._files.credentials

    def reload(self) -> None:
        """Read the files again, and end the streams of clients that may not call any more.

        New connections and new calls follow the new files. Raises ServerError for files that do not fit: nothing has
        changed.
        """
        prepared, names = self._files.prepare(self._files.files), self._read_names()
        self._files.use(prepared)
        self._names = names
        with self._lock:
            gone = [context for context, name in self._streams.items() if not self._may(name)]
        for context in gone:
            # A stream was allowed when it began. Unary calls end by themselves.
            context.cancel()

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Return the guarded handler of a call, or None for a method that is not served. Called by gRPC's threads."""
        handler = continuation(handler_call_details)
        return None if handler is None else self._guarded(handler)

    def _read_names(self) -> frozenset[str] | None:
        return None if self._client_names is None else read_client_names(self._client_names, ServerError)

    def _may(self, name: str) -> bool:
        # One read of the attribute: `reload` may replace it in another thread.
        names = self._names
        return names is None or name in names

    def _guarded(self, handler: Any) -> Any:
        answer = handler_function(handler)

        def guarded(request: Any, context: Any) -> Any:
            name = _common_name(context)
            # Before the check: a stream that a `reload` between the two does not end meets the new names here.
            if handler.response_streaming:
                self._keep_stream(context, name)
            if not self._may(name):
                told = f"certificate {name!r} is not among the names that may call this switch (--tls-client-names)"
                context.abort(grpc.StatusCode.UNAUTHENTICATED, told)
            return answer(request, context)

        return handler_like(handler, guarded, handler.request_deserializer)

    def _keep_stream(self, context: Any, name: str) -> None:
        """Keep a stream until it ends, for `reload`."""
        with self._lock:
            self._streams[context] = name
        # False: the call has ended, and gRPC calls nothing any more.
        if not context.add_callback(partial(self._forget_stream, context)):
            self._forget_stream(context)

    def _forget_stream(self, context: Any) -> None:
        # With the lock: `reload` goes over the streams meanwhile.
        with self._lock:
            self._streams.pop(context, None)


def handler_function(handler: Any) -> Callable[[Any, Any], Any]:
    """Return the function of an RPC handler. The function takes the request (or their iterator) and the context."""
    kind, _ = _Methods[handler.request_streaming, handler.response_streaming]
    return cast(Callable[[Any, Any], Any], getattr(handler, kind))


def handler_like(handler: Any, function: Callable[[Any, Any], Any], deserializer: Any) -> Any:
    """Return an RPC handler of the same kind with another function, and another deserializer of requests."""
    _, make = _Methods[handler.request_streaming, handler.response_streaming]
    return make(function, deserializer, handler.response_serializer)


def _common_name(context: Any) -> str:
    names = context.auth_context().get("x509_common_name", ())
    return next(iter(names), b"").decode(errors="replace")
