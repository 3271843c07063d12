# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server of values to be read only: a WSGI application, and the standard library's server around it.

The controller's page and metrics and the switch's metrics are served by it. There is no access control: everyone who
reaches the address may read. On loopback that is everyone on this machine. A page of another site in a browser here is
kept out, since the browser names that site's host in its request. A bounded number of clients is served at a time,
each for a bounded time, so that readers take nothing that others need.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final, NamedTuple, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

CLIENTS_MAX: Final = 32
REQUEST_S: Final = 10.0
"""Seconds from the connection to the last byte of its answer."""
_ALWAYS: Final = (
    ("Server", "hopsum"), ("Allow", "GET, HEAD"), ("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
)  # fmt: skip
"""Headers of every answer, refusals among them."""
_log: Final = logging.getLogger(__name__)


class HttpAnswer(NamedTuple):
    """The answer at a path: its type, a function that makes its body, and its headers besides those of every answer."""

    content_type: str
    body: Callable[[], bytes]
    headers: tuple[tuple[str, str], ...] = ()


class _NotWellError(Exception):
    """A health check that does not hold. The message says why."""


def health_answer(check: Callable[[], str]) -> HttpAnswer:
    """Return the answer of a health check: `ok` while `check` returns an empty text, else 503 and the text."""

    def give() -> bytes:
        if why := check():
            raise _NotWellError(why)
        return b"ok\n"

    return HttpAnswer("text/plain; charset=utf-8", give)


class ReadOnlyServer:
    """An HTTP server in threads of its own, from construction until `close`. The context manager closes it.

    at: host and port, port 0 for any that is free.
    answers: the answer to a request, from its WSGI environment, or None where there is none.
    places: the text of a refused path: where the answers are.

    Raises OSError or OverflowError: the address is not free, or not of this machine.
    """

    def __init__(
        self, at: tuple[str, int], answers: Callable[[Mapping[str, Any]], HttpAnswer | None], places: str
    ) -> None:
        self._server = _Server(at, _Handler)
        ip, self.port = self._server.server_name, self._server.server_port
        self.clients = self._server.clients
        self._server.set_app(_application(answers, places, ipaddress.ip_address(ip).is_loopback))
        self._thread = threading.Thread(target=self._server.serve_forever, name="hopsum-web", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and end the thread. Requests in progress are not waited for."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _application(
    answers: Callable[[Mapping[str, Any]], HttpAnswer | None], places: str, local_only: bool
) -> Callable[..., Iterable[bytes]]:
    """Make the WSGI application. `local_only` refuses requests by another name than loopback's."""

    def respond(environ: Mapping[str, Any]) -> tuple[HTTPStatus, HttpAnswer | None, bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, None, b"only GET and HEAD: nothing can be changed here\n"
        if local_only and not _is_local(environ.get("HTTP_HOST", "localhost")):
            told = b"this is 127.0.0.1 or localhost, and has no other name\n"
            return HTTPStatus.MISDIRECTED_REQUEST, None, told
        answer = answers(environ)
        if answer is None:
            return HTTPStatus.NOT_FOUND, None, f"{places}\n".encode()
        try:
            return HTTPStatus.OK, answer, answer.body()
        except _NotWellError as why:
            return HTTPStatus.SERVICE_UNAVAILABLE, answer, f"{why}\n".encode()
        except Exception:
            _log.exception("%s cannot be made", environ["PATH_INFO"])
            return HTTPStatus.INTERNAL_SERVER_ERROR, None, b"the log of this process has the reason\n"

    def serve(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, answer, body = respond(environ)
        kind, _, headers = answer or HttpAnswer("text/plain; charset=utf-8", bytes)
        length = ("Content-Length", str(len(body)))
        start_response(f"{status.value} {status.phrase}", [("Content-Type", kind), length, *_ALWAYS, *headers])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return serve


def _is_local(host: str) -> bool:
    """Say whether a Host header names this machine's loopback."""
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass
class _Client:
    began_s: float
    asks: bool = True
    """True while its request, or a part of it, is still to come."""


@dataclass
class Clients:
    """The connected clients. Thread-safe.

    most: number of clients at a time. A new one takes the place of the oldest whose request has not come yet; where
        all have asked, there is no place.
    request_s: seconds that a client may take for its request and its answer.
    clock: seconds that never go back.
    """

    most: int = CLIENTS_MAX
    request_s: float = REQUEST_S
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _clients: dict[socket.socket, _Client] = field(default_factory=dict, init=False)
    """In the order in which they came."""

    def __len__(self) -> int:
        return len(self._clients)

    def admit(self, connection: socket.socket) -> bool:
        """Give a new connection a place, and return whether there is one.

        Where `most` clients have places, the oldest whose request has not come is cut off for it.
        """
        with self._lock:
            if len(self._clients) >= self.most:
                oldest = next((each for each, client in self._clients.items() if client.asks), None)
                if oldest is None:
                    return False
                self._cut(oldest)
            self._clients[connection] = _Client(self.clock())
            return True

    def mark_requested(self, connection: socket.socket) -> None:
        """Note that the request of a connection has come, so that no new connection takes its place."""
        with self._lock:
            if connection in self._clients:
                self._clients[connection].asks = False

    def release(self, connection: socket.socket) -> None:
        """Free the place of a connection, which stays open. Harmless when it has none."""
        with self._lock:
            self._clients.pop(connection, None)

    def disconnect_late(self) -> None:
        """Cut the clients off that have been connected for more than `request_s` seconds."""
        with self._lock:
            now_s = self.clock()
            for each in [each for each, client in self._clients.items() if now_s - client.began_s > self.request_s]:
                self._cut(each)

    def _cut(self, connection: socket.socket) -> None:
        # The connection's own thread reads the end and closes the socket: a number that another connection may have
        # by then is never closed here.
        del self._clients[connection]
        # The connection has ended by itself.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.clients = Clients()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind, without the standard library's question to DNS for the name of the address, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Say whether there is a place for a connection. A connection without a place is closed."""
        return self.clients.admit(request)

    def service_actions(self) -> None:
        """Cut late clients off. `serve_forever` calls it every half second, and after each new connection."""
        self.clients.disconnect_late()

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that is served, or has no place."""
        self.clients.release(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep a client that went away out of the log's errors."""
        _log.debug("a request by %s broke off", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S
    server: _Server

    def get_environ(self) -> dict[str, Any]:
        """Note that the request has come, and describe it to the application."""
        self.server.clients.mark_requested(self.connection)
        return super().get_environ()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request that is none, or too long, before the application sees it, with the headers of all answers.

        The standard library's answer would name Python's version, and repeat the request.
        """
        status = HTTPStatus(code)
        body = f"{status.phrase}\n".encode()
        # The request may be none of HTTP at all: what it asked for is not looked at.
        self.request_version = "HTTP/1.0"
        self.send_response_only(status)
        for name, value in (
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            *_ALWAYS,
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep requests out of the log."""
