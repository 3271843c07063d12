# SPDX-License-Identifier: Apache-2.0
"""A ClusterController over HTTP, to be read only, by the server of `hopsum_base.web_server`.

/ has the page, /api/state its values, and /metrics those for Prometheus. /healthz and /readyz say whether the
controller works: 200 and "ok", or 503 and why not.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, Final, Protocol, Self

from hopsum_base.web_server import HttpAnswer, ReadOnlyServer, health_answer
from hopsum_controlplane.cluster.cluster_controller import ClusterController
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.web.page_state import PageState
from hopsum_controlplane.web.prometheus_metrics import CONTENT_TYPE, render_metrics

PAGE, STATE, METRICS, HEALTH, READINESS = "/", "/api/state", "/metrics", "/healthz", "/readyz"
FRESH_S: Final = 0.5
"""Age in seconds below which an answer is given to the next client too: switches are read no more often."""
_MAX_PORT: Final = 65535
_log: Final = logging.getLogger(__name__)


class HealthCheck(Protocol):
    """The source of /healthz and /readyz, which the web server asks. `ControllerHealth` implements it."""

    @property
    def certificate_ends_at_s(self) -> float | None:
        """Return when the service's certificate ends, in unix seconds, or None without TLS."""

    def notices(self) -> list[str]:
        """Return the troubles of the controller itself, in words for the page."""

    def why_not_healthy(self) -> str:
        """Return why the controller process should be started again, empty while it works."""

    def why_not_ready(self) -> str:
        """Return why the service should get no calls now, empty while it can answer."""


class WebServer:
    """The HTTP server of the page, the metrics and the health checks: threads that run from `start` until `close`.

    address: HOST:PORT, port 0 for any that is free. ControlPlaneError when it is none.
    fresh_s: seconds for which an answer is kept for the next client.
    clock: seconds that never go back, of rates.
    health: answers /healthz and /readyz, which are not there without it.
    """

    def __init__(
        self,
        controller: ClusterController,
        address: str,
        *,
        fresh_s: float = FRESH_S,
        clock: Callable[[], float] = time.monotonic,
        health: HealthCheck | None = None,
    ) -> None:
        # Read once: the page is as old as the process, and so is its policy.
        page, state = load_page(), PageState(controller, clock, health.notices if health else list)
        policy = (("Content-Security-Policy", page_policy(page)),)
        self._answers = {
            PAGE: HttpAnswer("text/html; charset=utf-8", lambda: page, policy),
            STATE: HttpAnswer("application/json", _kept(lambda: json.dumps(state.read_values()), fresh_s)),
            METRICS: _metrics(controller, health, fresh_s),
        }
        if health is not None:
            for path, check in ((HEALTH, health.why_not_healthy), (READINESS, health.why_not_ready)):
                self._answers[path] = health_answer(check)
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > _MAX_PORT:
            raise ControlPlaneError(f"metrics address {address!r}", hint="write HOST:PORT, such as 127.0.0.1:4701")
        self._at = host, int(port)
        self._server: ReadOnlyServer | None = None

    @property
    def address(self) -> str:
        """Return HOST:PORT, with the port that it got when it was started."""
        host, port = self._at
        return f"{host}:{port}"

    @property
    def url(self) -> str:
        """Return the URL of the page, with the port that it got when it was started."""
        return f"http://{self.address}{PAGE}"

    @property
    def metrics_url(self) -> str:
        """Return the URL of the metrics, with the port that it got when it was started."""
        return f"http://{self.address}{METRICS}"

    def start(self) -> None:
        """Listen, and serve on threads. Logs the URLs. Raises ControlPlaneError when the address cannot be had."""
        places = f"the page is at {PAGE}, its values at {STATE}, metrics at {METRICS}"
        try:
            self._server = ReadOnlyServer(self._at, self._answer, places)
        except (OSError, OverflowError) as error:
            raise ControlPlaneError(
                f"metrics cannot be served at {self.address}: {error}", hint="choose another metrics_listen"
            ) from error
        self._at = self._at[0], self._server.port
        _log.info("page at %s, metrics at %s", self.url, self.metrics_url)

    def close(self) -> None:
        """Stop serving, and free the address. Does nothing when it does not serve."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, environ: Mapping[str, Any]) -> HttpAnswer | None:
        return self._answers.get(environ["PATH_INFO"])


# ---- answers ------------------------------------------------------------------------------------------


def _metrics(controller: ClusterController, health: HealthCheck | None, fresh_s: float) -> HttpAnswer:
    def text() -> str:
        ends_at_s = None if health is None else health.certificate_ends_at_s
        return render_metrics(controller, certificate_ends_at_s=ends_at_s)

    return HttpAnswer(CONTENT_TYPE, _kept(text, fresh_s))


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


def load_page() -> bytes:
    """Read the controller's status page (HTML) from the package, and return its bytes."""
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
