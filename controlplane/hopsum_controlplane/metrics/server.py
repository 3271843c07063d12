# SPDX-License-Identifier: Apache-2.0
"""The metrics of a manager over HTTP, at /metrics. There is no access control: who gets here may read them."""

from __future__ import annotations

import logging
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.metrics.collect import collect
from hopsum_controlplane.metrics.exposition import CONTENT_TYPE, expose

if TYPE_CHECKING:
    from hopsum_controlplane.cluster.manager import Manager

PATH: Final = "/metrics"
FRESH_S: Final = 0.5
"""Scrapes that come sooner after one another get the same text: switches are read no more often."""
_CLIENT_TIMEOUT_S: Final = 10.0
_MAX_PORT: Final = 65535
_log: Final = logging.getLogger(__name__)


class MetricsServer:
    """Serves the metrics of a manager in threads of its own, from `start` until `close`.

    `address` is HOST:PORT, port 0 for any that is free. Raises ControlPlaneError when it is none.
    """

    def __init__(self, manager: Manager, address: str, *, fresh_s: float = FRESH_S) -> None:
        self._page = _Page(manager, fresh_s)
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
        """Return where the metrics are."""
        return f"http://{self.address}{PATH}"

    def start(self) -> None:
        """Listen. Raises ControlPlaneError: the address is not free, or not of this machine."""
        try:
            self._server = _Server(self._at, self._page)
        except (OSError, OverflowError) as error:
            raise ControlPlaneError(
                f"metrics cannot be served at {self.address}: {error}", hint="choose another metrics_listen"
            ) from error
        self._at = (self._at[0], int(self._server.server_address[1]))
        self._thread = threading.Thread(target=self._server.serve_forever, name="hopsum-metrics", daemon=True)
        self._thread.start()
        _log.info("metrics at %s", self.url)

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


class _Page:
    """The text that scrapes get. One thread at a time collects it."""

    def __init__(self, manager: Manager, fresh_s: float) -> None:
        self._manager = manager
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._until_s = 0.0
        self._body = b""

    def body(self) -> bytes:
        with self._lock:
            if time.monotonic() >= self._until_s:
                self._body = expose(collect(self._manager)).encode()
                self._until_s = time.monotonic() + self._fresh_s
            return self._body


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], page: _Page) -> None:
        self.page = page
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep a client that went away out of the log's errors."""
        _log.debug("a scrape by %s broke off", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        """Answer one scrape."""
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}")
            return
        try:
            body = self.server.page.body()
        except Exception:
            _log.exception("the metrics cannot be collected")
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the controller's log has the reason")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep scrapes out of the log."""
