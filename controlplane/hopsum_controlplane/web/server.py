# SPDX-License-Identifier: Apache-2.0
"""A ClusterController over HTTP, to be read only.

/ has the page, /api/state its values, and /metrics those for Prometheus. /healthz and /readyz say whether the
controller works: 200 and "ok", or 503 and why not.

There is no access control: who gets here may read. On loopback that is who is on this machine: a page of somebody else,
in a browser here, is kept out, since the browser names that page's host in its request. A bounded number of clients are
served at a time, each for a bounded time, so that who may only read takes nothing that others need.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.prometheus_metrics import content_type, expose
from hopsum_controlplane.web.clients import REQUEST_S, Clients
from hopsum_controlplane.web.page import Page
from hopsum_controlplane.web.page_state import PageState

if TYPE_CHECKING:
    from hopsum_controlplane.cluster.cluster_controller import ClusterController

PAGE, STATE, METRICS, HEALTH, READINESS = "/", "/api/state", "/metrics", "/healthz", "/readyz"
OPEN_METRICS: Final = "application/openmetrics-text"
"""The words in the header Accept of a scrape that takes the metrics in this form."""
FRESH_S: Final = 0.5
"""The age below which somebody else's answer is given again: switches are read no more often."""
_MAX_PORT: Final = 65535
_log: Final = logging.getLogger(__name__)


class HealthCheck(Protocol):
    """A function that answers /healthz or /readyz: the reason why not, or an empty string."""

    @property
    def certificate_ends_at_s(self) -> float | None:
        """Return when the service's certificate ends, in unix seconds, or None without TLS."""

    def why_not_healthy(self) -> str:
        """Return why the process should be started again."""

    def why_not_ready(self) -> str:
        """Return why calls should not come to it."""


class WebServer:
    """Serves what a ClusterController knows in threads of its own, from `start` until `close`.

    `address` is HOST:PORT, port 0 for any that is free. `clock` has seconds that never go back, of rates. Raises
    ControlPlaneError when the address is none.
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
        page, state = Page.load(), PageState(controller, clock)
        self._answers: Mapping[str, _Answer] = {
            PAGE: _Answer("text/html; charset=utf-8", lambda: page.body, {"Content-Security-Policy": page.policy}),
            STATE: _Answer("application/json", _kept(lambda: json.dumps(state.document()), fresh_s)),
            METRICS: _metrics(controller, vitals, fresh_s, ""),
            OPEN_METRICS: _metrics(controller, vitals, fresh_s, OPEN_METRICS),
            **_health_answers(vitals),
        }
        self._at = _host_and_port(address)
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
            self._server = _Server(self._at, self._answers)
        except (OSError, OverflowError) as error:
            raise ControlPlaneError(
                f"metrics cannot be served at {self.address}: {error}", hint="choose another metrics_listen"
            ) from error
        self._at = (self._at[0], int(self._server.server_address[1]))
        self._thread = threading.Thread(target=self._server.serve_forever, name="hopsum-web", daemon=True)
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
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _MAX_PORT:
        raise ControlPlaneError(f"metrics address {address!r}", hint="write HOST:PORT, such as 127.0.0.1:4701")
    return host, int(port)


@dataclass(frozen=True)
class _Answer:
    """What is at a path."""

    content_type: str
    body: Callable[[], bytes]
    headers: Mapping[str, str] = field(default_factory=dict)


def _metrics(controller: ClusterController, vitals: HealthCheck | None, fresh_s: float, accept: str) -> _Answer:
    def text() -> str:
        ends_at_s = None if vitals is None else vitals.certificate_ends_at_s
        return expose(controller, accept=accept, certificate_ends_at_s=ends_at_s)

    return _Answer(content_type(accept), _kept(text, fresh_s))


def _health_answers(vitals: HealthCheck | None) -> Mapping[str, _Answer]:
    if vitals is None:
        return {}
    checks = {HEALTH: vitals.why_not_healthy, READINESS: vitals.why_not_ready}
    return {path: _Answer("text/plain; charset=utf-8", _checked(check)) for path, check in checks.items()}


def _checked(check: Callable[[], str]) -> Callable[[], bytes]:
    def give() -> bytes:
        if why := check():
            raise _NotWellError(why)
        return b"ok\n"

    return give


class _NotWellError(Exception):
    """A health check that does not hold. The message says why."""


def _kept(make: Callable[[], str], fresh_s: float) -> Callable[[], bytes]:
    """Return what makes a text anew when the last one is older. One thread at a time."""
    lock = threading.Lock()
    until_s, body = 0.0, b""

    def give() -> bytes:
        nonlocal until_s, body
        with lock:
            if time.monotonic() >= until_s:
                body = make().encode()
                until_s = time.monotonic() + fresh_s
            return body

    return give


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], answers: Mapping[str, _Answer]) -> None:
        self.answers = answers
        self.clients = Clients()
        super().__init__(address, _Handler)
        self.local_only = ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Say whether there is a place for a connection. A connection without a place is closed."""
        return self.clients.admit(request)

    def service_actions(self) -> None:
        """Cut off who takes too long.

        It is called by `serve_forever` every half second, and after each new connection.
        """
        self.clients.cut_late()

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that is served, or has no place."""
        self.clients.forget(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep a client that went away out of the log's errors."""
        _log.debug("a request by %s broke off", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_S
    server: _Server
    server_version, sys_version = "hopsum", ""

    def do_GET(self) -> None:
        """Answer one request."""
        self.server.clients.answer(self.connection)
        path = self.path.partition("?")[0]
        if path == METRICS and OPEN_METRICS in self.headers.get("Accept", ""):
            path = OPEN_METRICS
        answer = self.server.answers.get(path)
        if self.server.local_only and not _is_local(self.headers.get("Host", "localhost")):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "this is 127.0.0.1 or localhost, and has no other name")
        elif answer is None:
            self.send_error(HTTPStatus.NOT_FOUND, f"the page is at {PAGE}, its values at {STATE}, metrics at {METRICS}")
        else:
            self._give(answer)

    def _give(self, answer: _Answer) -> None:
        try:
            body = answer.body()
        except _NotWellError as why:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, answer, f"{why}\n".encode())
            return
        except Exception:
            _log.exception("%s cannot be made", self.path.partition("?")[0])
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the controller's log has the reason")
            return
        self._send(HTTPStatus.OK, answer, body)

    def _send(self, status: HTTPStatus, answer: _Answer, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "only GET: nothing can be changed here")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def end_headers(self) -> None:
        """Add what goes with every answer, refusals among them."""
        self.send_header("Allow", "GET")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep requests out of the log."""


def _is_local(host: str) -> bool:
    """Say whether a Host header names this machine's loopback."""
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
