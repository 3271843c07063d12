# SPDX-License-Identifier: Apache-2.0
"""The threads that keep a worker's place: heartbeats until it stops or its place is lost.

    state     heartbeat                                        next      also
    FORMING   answered, or not                                 FORMING   no generation yet, so none can end
    FORMING   refused                                          OVER
    FORMING   `enter`                                          HELD
    HELD      RUNNING in this generation                       HELD      `on_without`, if it names evicted ranks
    HELD      no answer                                        HELD      again soon: sums need no controller
    HELD      another state or generation                      FORMING   `on_over` is called, once, in this thread
    HELD      refused                                          OVER      `on_lost` is called, once, in this thread
    any       `heartbeat_now`                                  same      a heartbeat now, one in HEARTBEAT_GAP_S at most
    any       news from the controller, or its stream broke    same      a heartbeat now
    any       an answer, over another connection               same      the stream moves there
    any       `abandon`                                        LEFT      LEAVE at once, as unfinished, with the reason
    any       `stop`                                           STOPPED   LEAVE, unless it was refused or has left

News comes over a stream (Attend), which the second thread reads and opens again: only heartbeats are believed, since
they name their generation. The stream also tells the controller that this process runs. While other code holds
Python's interpreter lock, no heartbeat is sent, but gRPC's own threads send pings over the stream's connection: then
the controller takes these for signs of life. When the stream ends without LEAVE, and no heartbeat follows, the place is
lost soon. So a stream ends only when the next one has a reply: a slow controller may have its connections given up, and
must not take that for the end of its members. A controller of an older release takes heartbeats only.

Without an answer the agent continues: if the controller is down, the switch keeps serving, and if the controller has
given this worker up, the switch's silence ends the all-reduce.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hopsum.rpc.channel import CALL_S, ControllerError, ControllerUnreachableError, Replies
from hopsum.rpc.member_client import MemberClient
from hopsum_base.own_random import OWN_RANDOM
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.values import enum_word

Statistics = Callable[[], Mapping[str, float]]
Told = Callable[[str], None]
Without = Callable[[Sequence[int]], None]
# A silent switch rouses the lease thread again and again. One heartbeat a second answers all of these.
HEARTBEAT_GAP_S: Final = 1.0
# Pauses between tries without an answer. A controller that restarts is back within seconds.
_FIRST_AGAIN_S: Final = 0.2
_LONGEST_AGAIN_S: Final = 2.0
_LEAVE_S: Final = 3.0
"""The least time in which LEAVE is tried: longer than a channel waits before it connects to a controller again."""
_HASTE_S: Final = 0.9
"""The time that a program which ends by an error waits for its LEAVE."""
_log: Final = logging.getLogger(__name__)


class Lease:
    """The heartbeats of a joined member, from the constructor on. `enter` and `stop` are for one thread at a time.

    The constructor starts two threads.
    """

    def __init__(self, member: MemberClient) -> None:
        self._member = member
        self._registration = member.registration
        self._stopping = threading.Event()
        self._roused = threading.Event()
        self._heartbeat_at = -HEARTBEAT_GAP_S
        self._lock = threading.Lock()
        self._generation = 0
        self._statistics: Statistics = dict
        self._told: tuple[Told, Told] | None = None
        """`on_over` and `on_lost` of `enter`. One of them is called, once."""
        self._on_without: Without | None = None
        self._refused = ""
        """The reason why this worker has no place any more, empty while it has one."""
        self._unfinished = ""
        """The reason why the program ends before its work is done, empty otherwise."""
        self._process = os.getpid()
        self._silent_since: float | None = None
        self._unreachable: tuple[str, float] | None = None
        """The reason why the controller cannot reach a switch, as it said last, and since when it says so."""
        self._no_tls: tuple[str, float] | None = None
        """The reason why the TLS handshake with the controller fails, and since when it fails without an answer."""
        self._news: Replies | None = None
        self._thread = threading.Thread(target=self._run, name=f"hopsum-lease-{self._registration.rank}", daemon=True)
        self._attending = threading.Thread(
            target=self._attend, name=f"hopsum-news-{self._registration.rank}", daemon=True
        )
        # The threads read all fields above, so they start last.
        self._thread.start()
        self._attending.start()

    def enter(
        self, generation: int, statistics: Statistics, on_over: Told, on_lost: Told, on_without: Without | None = None
    ) -> None:
        """Name a generation in every heartbeat from now on, and watch for its end. Replaces earlier callbacks.

        At most one of `on_over` and `on_lost` is called, once. All callbacks run in the lease's thread. Only
        `on_lost` for a place that was lost before is called by `enter` itself.

        Args:
            statistics: returns the counts that each heartbeat reports.
            on_over: called with the controller's reason when the generation has ended and the place is kept.
            on_lost: called with the reason when the place is lost.
            on_without: called with the ranks that were evicted from the running generation, after each heartbeat that
                names some.
        """
        with self._lock:
            self._generation, self._statistics, self._told = generation, statistics, (on_over, on_lost)
            self._on_without = on_without
            self._unreachable = None
            # The lease thread may have been refused before anybody entered a generation: then it told nobody.
            refused = self._refused
        if refused:
            self._end(refused, lost=True)

    def heartbeat_now(self) -> None:
        """Let the lease's thread send a heartbeat soon, at most one in HEARTBEAT_GAP_S. Returns at once. Any thread."""
        if time.monotonic() - self._heartbeat_at >= HEARTBEAT_GAP_S:
            self._roused.set()

    @property
    def switch_unreachable(self) -> tuple[str, float]:
        """The reason why the controller cannot reach a switch of the generation, and the seconds since it reports so.

        ("", about 0.0) if the controller reaches all switches. The last news stays until the next generation.
        """
        why, since = self._unreachable or ("", time.monotonic())
        return why, time.monotonic() - since

    @property
    def lease_s(self) -> float:
        """The seconds without a heartbeat after which the controller gives the place away."""
        return self._registration.lease_s

    @property
    def silent_s(self) -> float:
        """The seconds since the first heartbeat without an answer, 0.0 while the controller answers."""
        since = self._silent_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def lost_by_tls(self) -> str:
        """The reason why no TLS handshake with the controller was possible for a whole lease, empty otherwise.

        The controller may have given the place away meanwhile, without the worker's knowledge.
        """
        why, since = self._no_tls or ("", 0.0)
        return why if why and time.monotonic() - since >= self.lease_s else ""

    def abandon(self, why: str) -> None:
        """Leave the job soon, in the lease's thread, because the program ends before its work is done. Any thread.

        Heartbeats end. The controller passes the reason to the other workers. Only the first reason counts.
        """
        with self._lock:
            self._unfinished = self._unfinished or why
        self._roused.set()

    def stop(self) -> None:
        """End the heartbeats and leave the job. Blocks for some seconds at most if the controller is silent.

        May be called again. A LEAVE without an answer is logged, and the lease runs out. After `abandon` the call waits
        less than a second for the LEAVE. The channel stays open. Does nothing in a forked process.
        """
        # fork() copies this object but not its threads. Only the process that made it may leave the job.
        if os.getpid() != self._process:
            return
        other = threading.current_thread() is not self._thread
        if self._unfinished and other:
            # The thread itself sends LEAVE, so its call is waited for, but not longer than a user waits for Ctrl-C.
            self._thread.join(_HASTE_S)
        self._stopping.set()
        self._roused.set()
        if self._unfinished:
            if not self._refused:
                _log.warning("rank %d left without saying so, its lease runs out", self._registration.rank)
            return
        if other:
            self._thread.join()
        self._leave()
        self._end_news()

    def _leave(self) -> None:
        if not self._refused:
            try:
                self._member.leave(min(CALL_S, max(_LEAVE_S, self._registration.heartbeat_s)))
            except ControllerError as error:
                _log.warning("rank %d left without saying so, its lease runs out: %s", self._registration.rank, error)

    def _run(self) -> None:
        wait_s = 0.0
        while not self._refused:
            self._roused.wait(wait_s)
            if self._stopping.is_set():
                return
            # Cleared before the heartbeat is sent: news that comes during the call rouses the thread once more.
            self._roused.clear()
            self._heartbeat_at = time.monotonic()
            wait_s = self._leave_unfinished() if self._unfinished else self._heartbeat()

    def _leave_unfinished(self) -> float:
        """Leave as unfinished, once. Return the seconds until the next try."""
        try:
            self._member.leave(_LEAVE_S, unfinished=self._unfinished)
        except ControllerError as error:
            return self._note_silence(error)
        with self._lock:
            self._refused, self._told = f"it left: {self._unfinished}", None
        return 0.0

    def _attend(self, news: Replies | None = None, before: Replies | None = None) -> None:
        """Ask at once whenever the controller has news. Open the stream again whenever it breaks.

        `news` is a stream that was opened already, in the place of `before`, which ends when `news` is heard.
        """
        # At once: a worker that ends before it has a stream is missed after its lease only.
        pause_s = 0.0
        while True:
            try:
                if news is None and (news := self._opened_news(pause_s)) is None:
                    return
                for reply in news:
                    pause_s = _FIRST_AGAIN_S
                    # The old stream ends only now: without a stream the controller would shorten this lease.
                    if before is not None:
                        before.cancel()
                    # News is not believed here: the heartbeat that it causes names its generation.
                    if reply.generation != self._generation or reply.lost_ranks:
                        self._roused.set()
                return  # this worker has left
            except ControllerError as error:
                # A controller of an older release has no Attend, and needs none: heartbeats say everything.
                if error.code == "UNIMPLEMENTED" or threading.current_thread() is not self._attending:
                    return
                self._roused.set()
                if not isinstance(error, ControllerUnreachableError) and error.code != "RESOURCE_EXHAUSTED":
                    return  # no place any more, which the heartbeat hears as well
            news, pause_s = None, min(max(2 * pause_s, _FIRST_AGAIN_S), _LONGEST_AGAIN_S)

    def _take_over(self, news: Replies, before: Replies) -> None:
        try:
            self._attend(news, before)
        finally:
            before.cancel()

    def _opened_news(self, pause_s: float) -> Replies | None:
        """Open the stream after a pause. Return None where the place is given back or another thread reads one."""
        # Jitter: after a restart of the controller its members do not come all at once.
        if self._stopping.wait(pause_s * OWN_RANDOM.uniform(0.5, 1.0)):
            return None
        with self._lock:
            if self._refused or self._unfinished or threading.current_thread() is not self._attending:
                return None
            # Opened under the lock, so that `stop` either sees this stream or prevents it.
            self._news = news = self._member.attend(self._generation)
        if self._stopping.is_set():
            news.cancel()
        return news

    def _move_news(self) -> None:
        """Open another stream where calls go over another connection by now."""
        with self._lock:
            before = self._news
            if before is None or not before.is_given_up or not self._attending.is_alive():
                return
            try:
                self._news = news = self._member.attend(self._generation)
            except ControllerError:
                return
            self._attending = threading.Thread(
                target=self._take_over, args=(news, before), name=self._attending.name, daemon=True
            )
        self._attending.start()

    def _end_news(self) -> None:
        news = self._news
        if news is not None:
            news.cancel()
        if threading.current_thread() is not self._attending:
            self._attending.join()

    def _heartbeat(self) -> float:
        """Send one heartbeat. Return the seconds until the next one."""
        with self._lock:
            generation, statistics, on_without = self._generation, self._statistics, self._on_without
        # A call may last one interval at most, else the next heartbeat would come too late for the lease.
        interval_s = self._registration.heartbeat_s
        try:
            reply = self._member.heartbeat(generation, statistics(), min(CALL_S, max(0.5, interval_s)))
        except ControllerError as error:
            # Silence is no refusal: sums go through the switch, and continue without the controller.
            if isinstance(error, ControllerUnreachableError) or error.code == "RESOURCE_EXHAUSTED":
                return self._note_silence(error)
            with self._lock:
                self._refused = str(error)
            self._end(self._refused, lost=True)
            return 0.0
        self._note_answer()
        self._move_news()
        if generation and (reply.state != pb.JOB_STATE_RUNNING or reply.generation != generation):
            self._end(_reason(reply, generation), lost=False)
        elif generation:
            self._note_switch(reply.switch_unreachable)
            if reply.lost_ranks and on_without is not None:
                on_without(list(reply.lost_ranks))
        # Heartbeats of many workers spread over the interval, and none comes late.
        return interval_s * OWN_RANDOM.uniform(0.8, 1.0)

    def _note_switch(self, why: str) -> None:
        """Note why the controller cannot reach a switch of the generation, which it tells only until its end.

        What it said last is kept until the next generation: how long this worker waits for others in the places of
        ranks that are gone depends on it.
        """
        since = time.monotonic() if self._unreachable is None else self._unreachable[1]
        self._unreachable = (why, since) if why else None

    def _end(self, reason: str, *, lost: bool) -> None:
        with self._lock:
            # Taken under the lock, called without it: a callback may call `enter` of this object.
            told, self._told, self._generation = self._told, None, 0
        if told is not None:
            told[lost](reason)

    def _note_silence(self, error: ControllerError) -> float:
        if self._silent_since is None:
            self._silent_since = time.monotonic()
            _log.warning("rank %d: no answer to a heartbeat, trying again: %s", self._registration.rank, error)
        if not isinstance(error, ControllerUnreachableError) or not error.tls:
            # It is something else now: a controller that is away evicts nobody.
            self._no_tls = None
        elif self._no_tls is None:
            self._no_tls = error.tls, time.monotonic()
            # The error before may be the end of a connection only.
            _log.error("rank %d: no heartbeat reaches the controller: %s", self._registration.rank, error)
        silent_s = time.monotonic() - self._silent_since
        return min(self._registration.heartbeat_s, _FIRST_AGAIN_S + silent_s / 4) * OWN_RANDOM.uniform(0.5, 1.0)

    def _note_answer(self) -> None:
        if self._silent_since is not None:
            silent_s = time.monotonic() - self._silent_since
            _log.warning("rank %d: the controller answers again, after %.1f s", self._registration.rank, silent_s)
            self._silent_since = self._no_tls = None


def _reason(reply: Any, generation: int) -> str:
    told = (
        reply.reason or f"the job is {enum_word(pb.JobState.DESCRIPTOR, reply.state)} in generation {reply.generation}"
    )
    return f"{told} (the controller has ended generation {generation})"
