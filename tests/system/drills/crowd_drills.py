# SPDX-License-Identifier: Apache-2.0
"""Drills in which the controller is kept busy.

A crowd without a token holds open calls, idle connections and slow readers. The holder of one job's token joins that
job again and again.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

import grpc

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum_wire.control.services import MEMBERSHIP_SERVICE, methods

from .controller_probe import Probe
from .drill import PATIENCE_S, DrillContext, DrillError, DrillReport, await_that, require_within
from .drill_testbed import DrillTestbed, drill_testbed
from .training_job import MARGIN_S, TrainingJob

CALLS: Final = 200
"""Open calls whose message never comes."""
CONNECTIONS: Final = 1500
"""Idle ones to the service, and as many slow readers of the page: both at scale 1. A smaller run has its share."""
_CROWD_LEASE_S: Final = 6.0
_PACE_S: Final = 0.05
_BEAT_S: Final = 1.0
"""The time between two bytes of a slow reader, and between two calls of one that is refused."""
_CHURNS: Final = "aaa"
"""First of all jobs, by name."""
_LATER: Final = "zzz"
_LEASE_S: Final = 60.0
"""The lease of the jobs that do not train."""
_THREADS: Final = 4
"""The threads that join the first job."""
_JOINS: Final = 20
"""The joins of the first job before anything is asked of the controller."""


def crowded(context: DrillContext) -> DrillReport:
    """Let strangers use the controller as much as they can, for longer than a lease: token holders are served."""
    share = min(1.0, context.scale)
    with drill_testbed(context, seats=context.seats_for(3), lease_s=_CROWD_LEASE_S, page=True) as testbed:
        training = TrainingJob(testbed, "train", 3, pace_s=_PACE_S)
        training.train(10)
        before = training.steps(0)
        later = Probe(testbed, "later", PATIENCE_S)
        bound_s = _CROWD_LEASE_S + MARGIN_S
        with ExitStack() as crowd:
            crowd.enter_context(_calls(testbed.network.controller_address, round(share * CALLS)))
            crowd.enter_context(_connections(testbed.network.controller_address, round(share * CONNECTIONS)))
            crowd.enter_context(_connections(testbed.page, round(share * CONNECTIONS), b"GET / HTTP/1.1\r\nX-Slow: "))
            came_s = testbed.happened("a crowd without a token comes")
            listed_s, joined_s = _served(testbed, later, came_s + bound_s)
            training.keeps_places()
        testbed.happened("the crowd goes")
        during = training.steps(0) - before
        time.sleep(_CROWD_LEASE_S)  # a place that was lost meanwhile shows by then
        training.keeps_places()
        training.train(10)
        training.finish()
        training.require_results(generations=1)
        require_within("the list of jobs came", listed_s, bound_s)
        require_within("a generation of another job came", joined_s, bound_s)
        testbed.report.detect(max(listed_s, joined_s), "the slowest answer to a token holder")
        testbed.report.recovered = (
            f"{during} steps beside the crowd; the list of jobs came after {listed_s:.2f} s at most, a generation of "
            f"another job after {joined_s:.2f} s"
        )
        with testbed.operator() as operator:
            operator.delete(later.name)
        training.judge(bits=True)
    return testbed.report


def job_churn(context: DrillContext) -> DrillReport:
    """Join one job again and again: another one starts in time, and a third outlives its switch."""
    with drill_testbed(context, seats=context.seats_for(2)) as testbed:
        training = TrainingJob(testbed, "train", 2, pace_s=_PACE_S)
        training.train(10)
        (generation,) = training.generations()
        later = Probe(testbed, _LATER, _LEASE_S)
        with _churning(Probe(testbed, _CHURNS, _LEASE_S)) as joins:
            await_that(lambda: len(joins) >= _JOINS, f"{_JOINS} joins of job {_CHURNS}")
            began_s = testbed.happened(f"job {_LATER} is joined, while {_CHURNS} is all the time")
            later.generation()
            started_s = testbed.now() - began_s
            healed_s = _restart_switch(training, generation)
            asked_s = testbed.now() - began_s
            rate = sum(at_s >= began_s for at_s in joins) / asked_s
        training.train(10)
        training.finish()
        bound_s = testbed.lease_s + MARGIN_S
        require_within(f"job {_LATER} had started", started_s, bound_s)
        require_within("the other job went on on the restarted switch", healed_s, bound_s)
        testbed.report.detect(started_s, f"a generation of job {_LATER}, from when it was joined")
        testbed.report.recovered = (
            f"beside {rate:.0f} joins/s; the job that trains went on {healed_s:.1f} s after a new switch"
        )
        with testbed.operator() as operator:
            operator.delete(_CHURNS)
            operator.delete(_LATER)
        training.judge()
    return testbed.report


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
    thread = threading.Thread(target=keep, name="crowd", daemon=True)
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


def _restart_switch(training: TrainingJob, generation: int) -> float:
    """Start the switch again, empty. Return the seconds until the job that trains went on there."""
    training.testbed.signal("switch", signal.SIGKILL)
    training.testbed.start_switch()
    restarted_s = training.testbed.happened("switch started again, empty")
    return training.goes_on_after(generation) - restarted_s


@contextmanager
def _churning(probe: Probe) -> Iterator[list[float]]:
    """Join a job again and again for the block, and yield when it was joined. Raises DrillError."""
    joined: list[float] = []
    failed: list[BaseException] = []
    ending = threading.Event()

    def churn() -> None:
        try:
            with Channel(ControllerAddress.of(probe.address, tls=False)) as channel:
                while not ending.is_set():
                    with suppress(ControllerError):  # too many at a time, or told to wait
                        probe.join(channel)
                        joined.append(time.monotonic())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=churn, name="churn", daemon=True) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield joined
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    if failed:
        raise DrillError(f"joining again and again failed: {failed[0]}")
