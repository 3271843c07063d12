# SPDX-License-Identifier: Apache-2.0
"""A ClusterController over HTTP, to be read only: a WSGI application, and the standard library's server around it.

/ has the page, /api/state its values, and /metrics those for Prometheus. /healthz and /readyz say whether the
controller works: 200 and "ok", or 503 and why not.

There is no access control: everyone who reaches the address may read. On loopback that is everyone on this machine. A
page of another site in a browser here is kept out, since the browser names that site's host in its request. A bounded
number of clients is served at a time, each for a bounded time, so that readers take nothing that others need.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import resources
from socketserver import ThreadingMixIn
from typing import Any, Final, NamedTuple, Protocol, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from hopsum_controlplane.cluster.cluster_controller import ClusterController
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.prometheus_metrics import content_type, expose
from hopsum_controlplane.web.page_state import PageState

PAGE, STATE, METRICS, HEALTH, READINESS = "/", "/api/state", "/metrics", "/healthz", "/readyz"
OPEN_METRICS: Final = "application/openmetrics-text"
"""The words in the header Accept of a scrape that takes the metrics in this form."""
FRESH_S: Final = 0.5
"""Age in seconds below which an answer is given to the next client too: switches are read no more often."""
CLIENTS_MAX: Final = 32
REQUEST_S: Final = 10.0
"""Seconds from the connection to the last byte of its answer."""
_MAX_PORT: Final = 65535
_ALWAYS: Final = (
    ("Server", "hopsum"), ("Allow", "GET"), ("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
)  # fmt: skip
"""Headers of every answer, refusals among them."""
_log: Final = logging.getLogger(__name__)


class HealthCheck(Protocol):
    """The source of /healthz and /readyz. The controller process implements it (`Vitals`), and the web server asks."""

    @property
    def certificate_ends_at_s(self) -> float | None:
        """Return when the service's certificate ends, in unix seconds, or None without TLS."""

    def why_not_healthy(self) -> str:
        """Return why the controller process should be started again, empty while it works."""

    def why_not_ready(self) -> str:
        """Return why the service should get no calls now, empty while it can answer."""


class WebServer:
    """The HTTP server of the page, the metrics and the health checks: threads that run from `start` until `close`.

    address: HOST:PORT, port 0 for any that is free. ControlPlaneError when it is none.
    fresh_s: seconds for which an answer is kept for the next client.
    clock: seconds that never go back, of rates.
    vitals: answers /healthz and /readyz, which are not there without it.
    """

    def __init__(
        self,
        controller: ClusterController,
        address: str,
        *,
        fresh_s: float = FRESH_S,
        clock: Callable[[], float] = time.monotonic,
        vitals: HealthCheck | None = None,
    ) -> None:
        # Read once: the page is as old as the process, and so is its policy.
        page, state = load_page(), PageState(controller, clock)
        policy = (("Content-Security-Policy", page_policy(page)),)
        self._answers = {
            PAGE: _Answer("text/html; charset=utf-8", lambda: page, policy),
            STATE: _Answer("application/json", _kept(lambda: json.dumps(state.document()), fresh_s)),
            METRICS: _metrics(controller, vitals, fresh_s, ""),
            OPEN_METRICS: _metrics(controller, vitals, fresh_s, OPEN_METRICS),
        }
        if vitals is not None:
            for path, check in ((HEALTH, vitals.why_not_healthy), (READINESS, vitals.why_not_ready)):
                self._answers[path] = _Answer("text/plain; charset=utf-8", _checked(check))
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > _MAX_PORT:
            raise ControlPlaneError(f"metrics address {address!r}", hint="write HOST:PORT, such as 127.0.0.1:4701")
        self._at = host, int(port)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Return HOST:PORT, with the port that it got when it was started."""
        host, port = self._at
        return f"{host}:{port}"

    @property
    def url(self) -> str:
        """Return where the page is."""
        return f"http://{self.address}{PAGE}"

    @property
    def metrics_url(self) -> str:
        """Return where the metrics are."""
        return f"http://{self.address}{METRICS}"

    def start(self) -> None:
        """Listen. Raises ControlPlaneError: the address is not free, or not of this machine."""
        try:
            server = _Server(self._at, _Handler)
        except (OSError, OverflowError) as error:
            raise ControlPlaneError(
                f"metrics cannot be served at {self.address}: {error}", hint="choose another metrics_listen"
            ) from error
        ip, port = server.server_address[:2]
        server.set_app(_application(self._answers, ipaddress.ip_address(str(ip)).is_loopback))
        self._at = self._at[0], int(port)
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="hopsum-web", daemon=True)
        self._thread.start()
        _log.info("page at %s, metrics at %s", self.url, self.metrics_url)

    def close(self) -> None:
        """Stop listening. Harmless when it does not listen."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            self._thread.join()
            server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- answers ------------------------------------------------------------------------------------------


class _Answer(NamedTuple):
    """The answer at a path."""

    content_type: str
    body: Callable[[], bytes]
    headers: tuple[tuple[str, str], ...] = ()


class _NotWellError(Exception):
    """A health check that does not hold. The message says why."""


def _application(answers: Mapping[str, _Answer], local_only: bool) -> Callable[..., Iterable[bytes]]:
    """Make the WSGI application. `local_only` refuses requests by another name than loopback's."""

    def respond(environ: Mapping[str, Any]) -> tuple[HTTPStatus, _Answer | None, bytes]:
        path = environ["PATH_INFO"]
        if path == METRICS and OPEN_METRICS in environ.get("HTTP_ACCEPT", ""):
            path = OPEN_METRICS
        answer = answers.get(path)
        if environ["REQUEST_METHOD"] != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, None, b"only GET: nothing can be changed here\n"
        if local_only and not _is_local(environ.get("HTTP_HOST", "localhost")):
            told = b"this is 127.0.0.1 or localhost, and has no other name\n"
            return HTTPStatus.MISDIRECTED_REQUEST, None, told
        if answer is None:
            told = f"the page is at {PAGE}, its values at {STATE}, metrics at {METRICS}\n".encode()
            return HTTPStatus.NOT_FOUND, None, told
        try:
            return HTTPStatus.OK, answer, answer.body()
        except _NotWellError as why:
            return HTTPStatus.SERVICE_UNAVAILABLE, answer, f"{why}\n".encode()
        except Exception:
            _log.exception("%s cannot be made", path)
            return HTTPStatus.INTERNAL_SERVER_ERROR, None, b"the controller's log has the reason\n"

    def serve(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, answer, body = respond(environ)
        kind, _, headers = answer or _Answer("text/plain; charset=utf-8", bytes)
        length = ("Content-Length", str(len(body)))
        start_response(f"{status.value} {status.phrase}", [("Content-Type", kind), length, *_ALWAYS, *headers])
        return [body]

    return serve


def _metrics(controller: ClusterController, vitals: HealthCheck | None, fresh_s: float, accept: str) -> _Answer:
    def text() -> str:
        ends_at_s = None if vitals is None else vitals.certificate_ends_at_s
        return expose(controller, accept=accept, certificate_ends_at_s=ends_at_s)

    return _Answer(content_type(accept), _kept(text, fresh_s))


def _checked(check: Callable[[], str]) -> Callable[[], bytes]:
    def give() -> bytes:
        if why := check():
            raise _NotWellError(why)
        return b"ok\n"

    return give


def _kept(make: Callable[[], str], fresh_s: float) -> Callable[[], bytes]:
    """Make a text anew where the last one is older than `fresh_s`. One thread at a time makes it, the others wait."""
    lock = threading.Lock()
    until_s, body = 0.0, b""

    def give() -> bytes:
        nonlocal until_s, body
        with lock:
            # All readers share one answer: a thousand browsers ask the switches no more often than one.
            if time.monotonic() >= until_s:
                body = make().encode()
                until_s = time.monotonic() + fresh_s
            return body

    return give


def _is_local(host: str) -> bool:
    """Say whether a Host header names this machine's loopback."""
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def load_page() -> bytes:
    """Read the page from the package: the same file in a wheel and in a source tree."""
    return (resources.files(__package__) / "page.html").read_bytes()


def page_policy(page: bytes) -> str:
    """Make the content security policy of the page: its own style and script by their digests, and nothing else."""
    digests = {}
    for tag in (b"style", b"script"):
        (text,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
        digests[tag] = f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
    # "data:" is for the page's icon, which is empty.
    return (
        f"default-src 'none'; style-src {digests[b'style']}; script-src {digests[b'script']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


# ---- connections --------------------------------------------------------------------------------------


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
        """Give a new connection a place. Return False where there is none."""
        with self._lock:
            if len(self._clients) >= self.most:
                oldest = next((each for each, client in self._clients.items() if client.asks), None)
                if oldest is None:
                    return False
                self._cut(oldest)
            self._clients[connection] = _Client(self.clock())
            return True

    def answer(self, connection: socket.socket) -> None:
        """Note that a request has come."""
        with self._lock:
            if connection in self._clients:
                self._clients[connection].asks = False

    def forget(self, connection: socket.socket) -> None:
        """Give the place of a connection back. Harmless when it has none."""
        with self._lock:
            self._clients.pop(connection, None)

    def cut_late(self) -> None:
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

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Say whether there is a place for a connection. A connection without a place is closed."""
        return self.clients.admit(request)

    def service_actions(self) -> None:
        """Cut late clients off. `serve_forever` calls it every half second, and after each new connection."""
        self.clients.cut_late()

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that is served, or has no place."""
        self.clients.forget(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep a client that went away out of the log's errors."""
        _log.debug("a request by %s broke off", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S
    server: _Server

    def get_environ(self) -> dict[str, Any]:
        """Note that the request has come, and describe it to the application."""
        self.server.clients.answer(self.connection)
        return super().get_environ()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep requests out of the log."""
