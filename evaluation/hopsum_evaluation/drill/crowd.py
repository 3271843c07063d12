# SPDX-License-Identifier: Apache-2.0
"""The drill in which a crowd without a token keeps the controller busy: open calls, idle connections, slow readers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

import grpc

from hopsum_evaluation.drill.base import PATIENCE_S, DrillContext, DrillError, DrillReport
from hopsum_evaluation.drill.controller_probe import Probe
from hopsum_evaluation.drill.news import MARGIN_S, keeps_places, require_no_break, require_within
from hopsum_evaluation.drill.reference import same_bits
from hopsum_evaluation.drill.testbed import DrillTestbed, drill_testbed
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import judge, seats_for
from hopsum_wire.control.services import MEMBERSHIP_SERVICE, methods

CALLS: Final = 200
"""Open calls whose message never comes."""
CONNECTIONS: Final = 1500
"""Idle ones to the service, and as many slow readers of the page: both at scale 1. A smaller run has its share."""
_LEASE_S: Final = 6.0
_PACE_S: Final = 0.05
_BEAT_S: Final = 1.0
"""The time between two bytes of a slow reader, and between two calls of one that is refused."""


def crowded(context: DrillContext) -> DrillReport:
    """Let strangers take what they can of the controller, for longer than a lease: whoever has a token is served."""
    share = min(1.0, context.scale)
    with drill_testbed(context, "crowd", seats=seats_for(context, 3), lease_s=_LEASE_S, page=True) as testbed:
        training = TrainingJob(testbed, "train", 3, pace_s=_PACE_S)
        training.train(10)
        before = training.steps(0)
        later = Probe(testbed, "later", PATIENCE_S)
        with ExitStack() as crowd:
            crowd.enter_context(_calls(testbed.network.controller_address, round(share * CALLS)))
            crowd.enter_context(_connections(testbed.network.controller_address, round(share * CONNECTIONS)))
            crowd.enter_context(_connections(testbed.page, round(share * CONNECTIONS), b"GET / HTTP/1.1\\r\\nX-Slow: "))
            came_s = testbed.happened("a crowd without a token comes")
            listed_s, joined_s = _served(testbed, later, came_s + _LEASE_S + MARGIN_S)
            keeps_places(testbed, training)
        testbed.happened("the crowd goes")
        during = training.steps(0) - before
        time.sleep(_LEASE_S)  # a place that was lost meanwhile shows by then
        keeps_places(testbed, training)
        training.train(10)
        training.finish()
        require_no_break(training)
        bound_s = _LEASE_S + MARGIN_S
        require_within("the list of jobs came", listed_s, bound_s)
        require_within("a generation of another job came", joined_s, bound_s)
        report = testbed.report
        report.detected_ms = 1e3 * max(listed_s, joined_s)
        report.detected = "the slowest answer to who has a token"
        report.recovered = (
            f"{during} steps beside the crowd; the list of jobs came after {listed_s:.2f} s at most, a generation of "
            f"another job after {joined_s:.2f} s"
        )
        report.numbers = {"listed_s": round(listed_s, 3), "joined_s": round(joined_s, 3), "steps_meanwhile": during}
        with testbed.operator() as operator:
            operator.delete(later.name)
        judge(testbed, training)
        if report.checks["replicas_equal"].ok:
            report.checks["replicas_equal"] = same_bits(training, report.steps)
    return report


def _served(testbed: DrillTestbed, later: Probe, until_s: float) -> tuple[float, float]:
    """Ask for jobs and begin generations until a time. Return the seconds that the slowest of each took."""
    listed_s = joined_s = 0.0
    while True:
        began_s = testbed.now()
        with testbed.operator() as operator:
            operator.jobs()
        listed_s = max(listed_s, testbed.now() - began_s)
        began_s = testbed.now()
        later.generation()
        joined_s = max(joined_s, testbed.now() - began_s)
        if testbed.now() >= until_s:
            return listed_s, joined_s
        time.sleep(_BEAT_S)


@contextmanager
def _calls(address: str, count: int) -> Iterator[None]:
    """Hold calls open, without a token and without a message, for the block. Those that are refused come again."""
    ending = threading.Event()
    path = methods(MEMBERSHIP_SERVICE)["Heartbeat"].path

    def opened(send: Any) -> Any:
        over = threading.Event()

        def never() -> Iterator[bytes]:
            over.wait()
            yield from ()

        call = send.future(never())
        call.add_done_callback(lambda _: over.set())
        return call

    def keep() -> None:
        with grpc.insecure_channel(address, (("grpc.enable_http_proxy", 0),)) as channel:
            send: Any = channel.stream_unary(path)
            calls: list[Any] = []
            while not ending.wait(_BEAT_S):
                calls = [call for call in calls if not call.done()]
                calls += [opened(send) for _ in range(count - len(calls))]
            for call in calls:
                call.cancel()

    with _in_thread(keep, ending):
        yield


@contextmanager
def _in_thread(keep: Callable[[], None], ending: threading.Event) -> Iterator[None]:
    """Run a function in a thread of its own for the block. Its end sets the event and waits for the thread."""
    thread = threading.Thread(target=keep, name="drill-crowd", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@contextmanager
def _connections(address: str, count: int, first: bytes = b"") -> Iterator[None]:
    """Hold connections open for the block, silent, or with `first` and then a byte now and then.

    Those that the other side closes come again. Raises DrillError where none can be made at all.
    """
    host, _, port = address.rpartition(":")
    ending = threading.Event()
    held: list[socket.socket] = []
    most = [0]

    def keep() -> None:
        while not ending.wait(_BEAT_S):
            held[:] = [each for each in held if _goes_on(each, first)]
            for _ in range(count - len(held)):
                with suppress(OSError):
                    held.append(_connected(host, int(port), first))
                if ending.is_set():
                    break
            most[0] = max(most[0], len(held))

    try:
        with _in_thread(keep, ending):
            yield
    finally:
        for each in held:
            each.close()
    if not most[0]:
        raise DrillError(f"{address}: not one of {count} connections came about")


def _connected(host: str, port: int, first: bytes) -> socket.socket:
    made = socket.create_connection((host, port), timeout=_BEAT_S)
    made.sendall(first)
    made.setblocking(False)
    return made


def _goes_on(each: socket.socket, first: bytes) -> bool:
    """Say whether a connection is open. A slow reader sends its next byte. Close it otherwise."""
    try:
        if first:
            each.send(b"a")
        while each.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    each.close()
    return False
