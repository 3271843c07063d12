# SPDX-License-Identifier: Apache-2.0
"""The controller's page over HTTP: its values, its readers, and its refusals."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from hopsum_base.web_server import CLIENTS_MAX, Clients
from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.web import WebServer
from hopsum_controlplane.web.http_server import load_page
from hopsum_controlplane.web.page_state import JOB, KEPT, MEMBER, SWITCH, WINDOW_S, PageState
from hopsum_wire import Drop, Event

from ...support.clock import FakeClock
from .conftest import MakeCluster
from .test_metrics import parse
from .world import LEASE_S, Cluster, device_of

pytestmark = pytest.mark.system
DEADLINE_S = 60.0


class Answer(NamedTuple):
    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


def ask(server: WebServer, path: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> Answer:
    host, port = server.address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=DEADLINE_S)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return Answer(response.status, response.reason, response.headers, response.read())
    finally:
        connection.close()


@pytest.fixture
def server(cluster: Cluster) -> Iterator[WebServer]:
    with WebServer(cluster.controller, "127.0.0.1:0", fresh_s=0, clock=cluster.clock) as found:
        yield found


def test_the_page_runs_nothing_but_its_own(server: WebServer) -> None:
    answer = ask(server, "/?x=1")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("script-src", "style-src"):
        assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='", policy[kind])
    text = answer.body.decode()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|//cdn|@import|\bsrc=|innerHTML|\bon\w+=|style=", text)
    assert re.findall(r"<link [^>]*>", text) == ['<link rel="icon" href="data:,">']
    assert load_page() == answer.body


def test_the_page_reads_the_values_that_there_are() -> None:
    text = load_page().decode()
    for name, values in (("job", {*JOB, "members"}), ("member", {*MEMBER}), ("each", {*SWITCH})):
        read = set(re.findall(rf"\b{name}\.(\w+)", text))
        assert read - values == set(), name
        assert len(read) > 5


def test_scrapes_and_refusals(cluster: Cluster, server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.run("train")
    scrape = ask(server, "/metrics?x=1")
    assert scrape.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert parse(scrape.body.decode())['switch_up{switch="s1"}'] == 1
    for path in ("/metric", "/api", "/api/state/", "/../page.html", "/api/state%00"):
        refused = ask(server, path)
        assert refused.status == 404
        assert "the page is at /, its values at /api/state, metrics at /metrics" in refused.body.decode()
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        refused = ask(server, "/api/state", method)
        assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")
    for answer in (scrape, ask(server, "/"), ask(server, "/api/state"), ask(server, "/none")):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert "Python" not in answer.headers["Server"]
    with monkeypatch.context() as broken:
        broken.setattr(cluster.controller, "jobs", lambda **_: 1 / 0)
        for path in ("/metrics", "/api/state"):
            answer = ask(server, path)
            assert (answer.status, answer.body) == (500, b"the log of this process has the reason\n")
    assert ask(server, "/metrics").status == 200


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/state", "/none"])
def test_head_is_get_without_a_body(server: WebServer, path: str) -> None:
    whole, head = ask(server, path), ask(server, path, "HEAD")
    assert head.body == b""
    assert (head.status, head.headers["Content-Type"]) == (whole.status, whole.headers["Content-Type"])
    assert int(head.headers["Content-Length"]) > 0
    if path == "/":
        assert int(head.headers["Content-Length"]) == len(whole.body)


LONG = b"x" * (1 << 16)
NO_REQUESTS = [
    (b"GET /" + LONG + b" HTTP/1.1\r\n\r\n", 414),
    (b"GET / HTTP/1.1\r\nX: " + LONG + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
    (b"<script> \x1b / HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/2.0\r\n\r\n", 505),
    (b"nothing\r\n\r\n", 400),
]


@pytest.mark.parametrize(("request_bytes", "status"), NO_REQUESTS)
def test_what_is_no_request_is_refused_as_others_are(server: WebServer, request_bytes: bytes, status: int) -> None:
    """These never reach the application. The standard library would name its version and repeat the request."""
    host, port = server.address.rsplit(":", 1)
    with ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=DEADLINE_S))
        # More than the server reads: it may close the connection before it has all of it.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request_bytes)
        answer = stack.enter_context(http.client.HTTPResponse(connection))
        answer.begin()
        assert (answer.status, answer.headers["Server"]) == (status, "hopsum")
        for name in ("Allow", "Cache-Control", "Referrer-Policy", "X-Content-Type-Options"):
            assert answer.headers[name] == ask(server, "/none").headers[name]
        assert answer.read() == f"{http.HTTPStatus(status).phrase}\n".encode()


HERE = ("127.0.0.1", "localhost:4701", "LOCALHOST", "[::1]:80", "127.0.0.2:1")
ELSEWHERE = ("elsewhere.example", "elsewhere.example:4701", "127.0.0.1.elsewhere.example", "10.0.0.1", "")


@pytest.mark.parametrize(("host", "status"), [*((here, 200) for here in HERE), *((other, 421) for other in ELSEWHERE)])
@pytest.mark.parametrize("path", ["/", "/api/state", "/metrics", "/none"])
def test_a_page_of_somebody_else_cannot_read_through_a_name_for_loopback(
    server: WebServer, host: str, status: int, path: str
) -> None:
    expected = 404 if (path, status) == ("/none", 200) else status
    assert ask(server, path, headers={"Host": host}).status == expected


def test_on_another_address_than_loopback_any_name_will_do(cluster: Cluster) -> None:
    with WebServer(cluster.controller, "0.0.0.0:0") as server:
        assert ask(server, "/metrics", headers={"Host": "controller.example:4701"}).status == 200


def test_who_is_silent_keeps_nobody_waiting(cluster: Cluster, server: WebServer) -> None:
    host, port = server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as silent:
        silent.send(b"GET /met")
        assert ask(server, "/metrics").status == 200
    with pytest.raises(ControlPlaneError, match=rf"metrics cannot be served at {server.address}: .* in use"):
        WebServer(cluster.controller, server.address).start()
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        ask(server, "/metrics")


def test_a_crowd_takes_a_bounded_number_of_places(server: WebServer) -> None:
    """Clients that send a part of a request and no more; a client that sends a whole one is still answered."""
    host, port = server.address.rsplit(":", 1)
    with ExitStack() as crowd:
        for _ in range(4 * CLIENTS_MAX):
            crowd.enter_context(socket.create_connection((host, int(port)))).send(b"GET / HTTP/1.1\r\nX-a")
        for path in ("/", "/api/state", "/metrics"):
            assert ask(server, path).status == 200
            assert server._server is not None
            assert len(server._server.clients) <= CLIENTS_MAX


class Pairs:
    """Connections, and the other ends of them."""

    def __init__(self) -> None:
        self.far: dict[socket.socket, socket.socket] = {}

    def __call__(self) -> socket.socket:
        near, far = socket.socketpair()
        self.far[near] = far
        return near

    def ended(self, near: socket.socket) -> bool:
        """Say whether the other end reads the end of the connection."""
        self.far[near].setblocking(False)
        try:
            return self.far[near].recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def connect() -> Iterator[Pairs]:
    made = Pairs()
    yield made
    for near, far in made.far.items():
        near.close()
        far.close()


def test_the_oldest_who_has_not_asked_makes_room(connect: Pairs) -> None:
    clients = Clients(most=2, clock=FakeClock())
    asked, silent, third, fourth = (connect() for _ in range(4))
    assert clients.admit(asked)
    assert clients.admit(silent)
    clients.mark_requested(asked)
    assert clients.admit(third)
    assert (connect.ended(asked), connect.ended(silent), len(clients)) == (False, True, 2)
    clients.mark_requested(third)
    clients.mark_requested(silent)  # its thread may come too late
    assert not clients.admit(fourth)
    clients.release(silent)
    clients.release(asked)
    assert clients.admit(fourth)
    assert not connect.ended(third)


def test_a_client_has_a_bounded_time_for_all_of_its_request(connect: Pairs) -> None:
    clock = FakeClock()
    clients = Clients(request_s=10.0, clock=clock)
    early, late = connect(), connect()
    clients.admit(early)
    clients.mark_requested(early)
    clock.sleep(6)
    clients.admit(late)
    clock.sleep(5)
    clients.disconnect_late()
    assert (connect.ended(early), connect.ended(late), len(clients)) == (True, False, 1)


@pytest.mark.parametrize("path", ["/metrics", "/api/state"])
def test_requests_in_quick_succession_read_the_switches_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    reads: list[int] = []
    switches: Callable[[], Any] = cluster.controller.switches
    monkeypatch.setattr(cluster.controller, "switches", lambda: (reads.append(1), switches())[1])
    with WebServer(cluster.controller, "127.0.0.1:0", fresh_s=DEADLINE_S) as server:
        assert ask(server, path).body == ask(server, path).body
    assert len(reads) == 1


@pytest.mark.parametrize("address", ["4701", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":1"])
def test_an_address_is_host_and_port(cluster: Cluster, address: str) -> None:
    with pytest.raises(ControlPlaneError, match="metrics address"):
        WebServer(cluster.controller, address)


def test_values_have_rates_and_who_comes_last(cluster: Cluster, server: WebServer) -> None:
    crew = cluster.run("train", 3)
    device = device_of(cluster)
    first = json.loads(ask(server, "/api/state").body)
    assert (first["seconds"], first["jobs"][0]["rates"]) == (0, {})
    cluster.clock.sleep(5)
    device.counters["job_events"] = {Event.COMPLETED: 50}
    device.counters["drops"] = {Drop.SIMULATED: 20}
    for worker in crew:
        worker.beat(allreduces=4, seconds=0.04 if worker.rank == 0 else 0.4)
    cluster.clock.sleep(1)
    (job,) = (found := json.loads(ask(server, "/api/state").body))["jobs"]
    assert (found["seconds"], job["rates"]["completed"]) == (6, 50 / 6)
    assert (job["late"], job["behind"], job["state"]) == ([0], [], "running")
    assert found["switches"][0]["drops"]["simulated"] == 20


def test_no_secret_and_no_address_is_in_the_values(make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make_cluster()
    crew = cluster.run("train")
    (waiting, *_) = cluster.make("next")
    with pytest.raises(ControlPlaneError):
        waiting.join(ip="192.0.2.7")
    condition = "no answer of [::1]:9559, 10.1.2.3:9559, 10.9.8.7/24 and 02:aa:00:00:00:01 at 12:30, version 1.2.3"
    monkeypatch.setattr(type(cluster.controller._reconcilers["s1"]), "condition", condition)
    cluster.clock.sleep(LEASE_S + 1)
    crew[0].join(report=crew[0].report())
    assert str(crew[1].generation) in cluster.controller.job("train").reason
    text = json.dumps(PageState(cluster.controller).read_values())
    assert "train" in text
    assert str(crew[1].generation) not in text
    said = "no answer of (address), (address), (address) and (address) at 12:30, version 1.2.3"
    assert json.loads(text)["switches"][0]["condition"] == said
    assert re.findall(r"\d+\.\d+\.\d+\.\d+|udp_port|token|secret|incarnation|endpoint", text) == []
    for worker in crew:
        for secret in (worker.token, repr(worker.secret)[2:-1], worker.secret.hex(), worker.request().ip):
            assert secret not in text


def test_a_window_is_kept_and_forgotten(cluster: Cluster) -> None:
    state = PageState(cluster.controller, cluster.clock)
    seconds = []
    for _ in range(60):
        seconds.append(state.read_values()["seconds"])
        cluster.clock.sleep(0.5)
    assert seconds[:4] == [0, 0.5, 1, 1.5]
    assert all(WINDOW_S <= each <= WINDOW_S + 2 for each in seconds[40:])
    assert len(state._snapshots) <= 2 * KEPT + 2
    cluster.clock.sleep(WINDOW_S)
    assert state.read_values()["seconds"] == 0, "a look of long ago says nothing of now"
    cluster.run("patient", lease_s=100.0)
    for _ in range(60):
        state.read_values()
        cluster.clock.sleep(1)
    assert state.read_values()["seconds"] >= 50, "half a lease"
