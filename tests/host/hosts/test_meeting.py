# SPDX-License-Identifier: Apache-2.0
"""Ranks that meet over a store, the address that each takes, and the trial of the ways between them."""

from __future__ import annotations

import re
import secrets
import select
import socket
import sys
import threading
import tomllib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from hopsum import connection
from hopsum.agent import CommunicatorStatistics
from hopsum.agent.allreduce_results import SocketTraffic
from hopsum.codec import make_codec
from hopsum.config import Config, ConfigError, resolve
from hopsum.hosts import job_over_hosts
from hopsum.hosts.children import ChildError, Children, EmbeddedSwitch
from hopsum.hosts.host_address import choose_address
from hopsum.hosts.reach import ReachEcho, Responder, gso_arrives, require_reachable
from hopsum.meeting import Arrival, Meeting, MeetingError, WaitLimit
from hopsum.meeting import meeting as meeting_module
from hopsum.meeting.meeting import COMING
from hopsum.protocol.stream import slots_for
from hopsum.rpc.channel import ControllerError
from hopsum.transport.offload import mtu_towards, probe_offload, udp_socket
from hopsum_wire.payload import PACKET_BYTES

from ...support.processes import await_that
from ...support.trains import loses


class Store:
    """A store in memory."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def put(self, key: str, value: str) -> None:
        self.values[key] = value

    def find(self, key: str) -> str | None:
        return self.values.get(key)

    def has_all(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)

    def admit(self, ranks: Collection[int]) -> None:
        self.put("admitted", str([*ranks]))


def meet(workers: int, what: Any, wait_s: float = 60.0) -> list[Any]:
    """Return what each rank has of a meeting: values, or the error."""
    store = Store()

    def one(rank: int) -> Any:
        try:
            return what(Meeting(store, "1", rank, workers, WaitLimit(wait_s)))
        except MeetingError as error:
            return error

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, range(workers)))


def open_hosts(
    meeting: Meeting, slots: int | None = 16, least_hosts: int | None = None, host: str = "one", **settings: Any
) -> Any:
    """Open hosts:// on a rank of two, as far as a test lets it."""
    codec = make_codec("fixed", workers=2, backend="numpy")
    own = Config(codec="fixed", ip="127.0.0.1", **settings)
    with meeting.opening(Arrival({}, host)):
        return job_over_hosts.open_hosts(
            own, meeting, codec, slots=slots, least_hosts=least_hosts, open_job=lambda *_: None
        )


def test_all_ranks_hear_what_each_tells() -> None:
    assert meet(3, lambda each: each.exchange("x", lambda: each.rank * 2)) == [[0, 2, 4]] * 3
    assert meet(3, lambda each: each.exchange("x", lambda: each.rank, [1])) == [[1]] * 3


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        ("places", r"hosts://\?min_workers=1: 2 ranks on 1 hosts; start one rank on each host"),
        ("host", r"ranks 0 and 1 are on different hosts, and both have the address 127\.0\.0\.1"),
    ],
)
def test_ranks_that_do_not_fit_together_start_nothing(
    monkeypatch: pytest.MonkeyPatch, difference: str, words: str
) -> None:
    def nothing(*_: object, **__: object) -> Any:
        raise AssertionError("something was started")

    monkeypatch.setattr(job_over_hosts, "start_switch", nothing)

    def what(meeting: Meeting) -> Any:
        host = f"{meeting.rank}" if difference == "host" else "one"
        return open_hosts(meeting, least_hosts=1 if difference == "places" else None, host=host)

    first, second = meet(2, what)
    assert str(first) == str(second)
    assert re.search(words, str(first)), first


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (
            {"url": "hosts://?slots=16"},
            {"url": "hosts://?slots=17"},
            r"rank 0 has URL hosts://\?slots=16; rank 1 has URL hosts://\?slots=17",
        ),
        (
            {"url": "hosts://?slots=16&min_workers=1"},
            {"url": "hosts://?min_workers=2&slots=16", "seed": 3},
            r"rank 0 has URL .*\?min_workers=1&slots=16, seed 0; rank 1 has URL .*\?min_workers=2&slots=16, seed 3",
        ),
        (
            {"url": "hosts://"},
            {"url": "collective://gloo"},
            "rank 0 has URL hosts://; rank 1 has URL collective://gloo",
        ),
        (
            {"url": "file:///a.json", "local_group": "auto"},
            {"url": "file:///b.json", "local_group": "a"},
            "rank 0 has local_group auto; rank 1 has local_group by name",
        ),
    ],
)
def test_settings_that_differ_are_named_with_their_ranks_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, first: Any, second: Any, words: str
) -> None:
    def nothing(*_: object, **__: object) -> Any:
        raise AssertionError("something was made")

    monkeypatch.setattr(connection, "_open", nothing)
    store = Store()
    meetings = iter([Meeting(store, "1/all", rank, 2, WaitLimit(60), "x") for rank in range(2)])
    monkeypatch.setattr(connection, "_meeting", lambda *_: next(meetings))

    def connect(settings: Any) -> str:
        with pytest.raises(MeetingError) as told:
            connection.connect(**settings)
        return str(told.value)

    with ThreadPoolExecutor(2) as pool:
        # One after the other: the first to come is rank 0.
        came = pool.submit(connect, first)
        await_that(lambda: store.find("hopsum/1/all/here/0") is not None, "rank 0")
        found = {connect(second), came.result()}
    (text,) = found
    assert re.fullmatch(f"x: {words}: all ranks need the same", text), text


def test_equal_settings_are_no_difference() -> None:
    """The default codec is the one of that name, and the order of parameters means nothing."""
    made = [
        connection._arrival(config, connection.split_url(config))
        for config in (Config(url="hosts://?slots=4&min_workers=2"), Config(url="hosts://?min_workers=2&slots=4"))
    ]
    assert made[0] == made[1]


def test_errors_of_some_ranks_are_the_same_text_on_all() -> None:
    def what(meeting: Meeting) -> Any:
        def make() -> int:
            if meeting.rank:
                raise ConfigError(f"no way for {meeting.rank}")
            return 0

        return meeting.exchange("x", make)

    found = meet(3, what)
    assert {str(each) for each in found} == {"hosts://: rank 1: no way for 1; rank 2: no way for 2"}
    assert all(isinstance(each, MeetingError) for each in found)


def test_a_rank_that_does_not_come_is_named() -> None:
    with pytest.raises(MeetingError, match=r"rank 0 has not heard of ranks 1 within 0\.2 s \(x\)"):
        Meeting(Store(), "1", 0, 2, WaitLimit(0.2)).exchange("x", lambda: 1)


@pytest.mark.parametrize("method", ["put", "find"])
def test_a_store_that_went_with_its_process_is_named(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def gone(*_: object) -> None:
        raise RuntimeError("broken pipe")

    monkeypatch.setattr(Store, method, gone)
    (found,) = meet(1, lambda each: each.exchange("x", lambda: 1))
    assert str(found) == "hosts://: torch's store does not answer any more (x): broken pipe"


def opened(opens: list[str], fails: Exception | None = None) -> list[str]:
    """Return the errors of ranks that open something each. With `fails`, all but rank 0 fail before."""
    store = Store()

    def one(rank: int) -> str:
        meeting = Meeting(store, "0.1/all", rank, len(opens), WaitLimit(60), f"at {rank}")
        if fails is not None and rank:
            meeting.fail(fails)
            return "failed"
        try:
            with meeting.opening(Arrival({"URL": opens[rank]})):
                meeting.exchange(f"topic of {opens[rank]}", lambda: None)
        except MeetingError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(opens)) as pool:
        return list(pool.map(one, range(len(opens))))


def test_a_rank_that_fails_before_it_meets_the_others_is_no_wait() -> None:
    found = opened(["hosts://"] * 2, ConfigError("unknown setting codce"))
    assert found == ["at 0: rank 1: unknown setting codce", "failed"]
    assert opened(["hosts://"] * 2, ValueError("a bug")) == ["at 0: rank 1: ValueError: a bug", "failed"]


def test_ranks_that_open_something_else_are_told_of_each_other() -> None:
    assert opened(["hosts://"] * 3) == ["", "", ""]
    told = "rank 1 has URL collective://gloo: all ranks need the same"
    found = opened(["hosts://", "collective://gloo", "hosts://"])
    assert found == [f"at {rank}: ranks 0, 2 have URL hosts://; {told}" for rank in range(3)]


def test_an_error_in_the_middle_of_opening_reaches_the_leaders_of_other_hosts() -> None:
    """Leaders meet as hosts 0 and 1, and are ranks 0 and 4 for the store."""
    store = Store()
    Meeting(store, "0.1/all", 4, 8, WaitLimit(60)).fail(ConfigError("no such backend"))
    everybody = Meeting(store, "0.1/all", 0, 8, WaitLimit(60))
    everybody.arrivals = [Arrival({})] * 8
    with pytest.raises(MeetingError, match="rank 1: no such backend"):
        everybody.among([0, 4]).exchange("address", lambda: None)


def test_the_ranks_of_each_process_group_meet_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """HSDP: ranks 0 and 2 have shard 0, ranks 1 and 3 shard 1. A third group of one store never comes."""
    rank_store = pytest.importorskip("hopsum.meeting.rank_store", reason="torch is not installed")
    store, numbers = rank_store.dist.HashStore(), threading.local()
    monkeypatch.setattr(rank_store.dist, "get_process_group_ranks", lambda group: group)
    monkeypatch.setattr(rank_store, "_find", lambda *_: (numbers.rank, 6, store))

    def meet(rank: int) -> Any:
        numbers.rank = rank
        meeting = rank_store.meet_ranks("hosts://", WaitLimit(60), [rank % 2, rank % 2 + 2])
        return meeting, meeting.exchange("x", lambda: rank)

    with ThreadPoolExecutor(4) as pool:
        meetings, told = zip(*pool.map(meet, range(4)), strict=True)
    assert [(each.rank, each.workers) for each in meetings] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert list(told) == [[0, 2], [1, 3]] * 2
    meetings[3].fail(ConfigError("no way"))
    with pytest.raises(MeetingError, match="rank 1: no way"):
        meetings[1].exchange("y", lambda: None)


class CountingStore(Store):
    """A store that counts the questions it was asked, and has no more of them than a test allows."""

    def __init__(self) -> None:
        super().__init__()
        self.found = self.looked = 0

    def find(self, key: str) -> str | None:
        self.found += 1
        return super().find(key)

    def has_all(self, keys: Sequence[str]) -> bool:
        self.looked += 1
        return super().has_all(keys)


def test_a_wait_for_many_ranks_asks_the_store_as_often_as_one_for_few() -> None:
    store = CountingStore()
    with pytest.raises(MeetingError, match=r"ranks 1, 2, .* 62, 63 within"):
        Meeting(store, "1", 0, 64, WaitLimit(0.2)).exchange("x", lambda: 1)
    # One look at the failures each time, and at every rank once, for the message.
    assert store.found == store.looked + 64


def test_ranks_that_are_missing_are_named_every_minute_by_one_rank(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(meeting_module, "SAY_EVERY_S", 0.1)
    store = Store()
    for rank in (1, 0):
        with pytest.raises(MeetingError, match=r"within (0|1)\.5 s"):
            Meeting(store, "1", rank, 4, WaitLimit(0.5, "deadline_s")).exchange(COMING, lambda: 1)
    said = [record.getMessage() for record in caplog.records]
    assert said
    shown = r"hosts://: rank 0 has waited \d s for ranks 2, 3 \(here\), and waits \d s more at most \(deadline_s\)"
    assert all(re.fullmatch(shown, each) for each in said), said


def test_hosts_waits_for_ranks_that_have_not_come_as_gloo_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def meet_all(_: str, patience: Any, *__: Any) -> None:
        asked.append(patience)
        raise ConfigError("as far as it goes here")

    monkeypatch.setattr(connection, "_meeting", meet_all)
    for url, environment in (("hosts://", {}), ("hosts://", {"deadline_s": 7.0}), ("collective://gloo", {})):
        with pytest.raises(ConfigError, match="as far as it goes"):
            connection.connect(url, **environment)
    assert asked == [(1800, "deadline_s"), (7, "deadline_s"), (60, "membership_wait_s")]


def test_calls_do_not_hear_each_other() -> None:
    store = Store()
    Meeting(store, "0.1", 1, 2, WaitLimit(60)).exchange("x", lambda: 1, [1])
    with pytest.raises(MeetingError, match="ranks 1 "):
        Meeting(store, "0.2", 0, 2, WaitLimit(0.1)).exchange("x", lambda: 1, [1])


def test_rank_0_waits_for_those_that_have_not_left() -> None:
    store, over = Store(), threading.Event()

    def leave() -> None:
        Meeting(store, "1", 0, 2, WaitLimit(60)).leave(60, waits=True)
        over.set()

    thread = threading.Thread(target=leave)
    thread.start()
    assert not over.wait(0.2)
    Meeting(store, "1", 1, 2, WaitLimit(60)).leave(60, waits=False)
    thread.join(60)
    assert over.is_set()


@pytest.mark.parametrize(
    ("ip", "environment", "found"),
    [
        ("127.0.0.3", {"GLOO_SOCKET_IFNAME": "nowhere"}, "127.0.0.3"),
        ("", {"GLOO_SOCKET_IFNAME": "nowhere0,lo"}, "127.0.0.1"),
        ("", {"MASTER_ADDR": "127.0.0.1"}, "127.0.0.1"),
        ("", {}, "127.0.0.1"),
    ],
)
def test_the_address_is_the_explicit_one_or_gloos_or_the_one_of_the_way(
    ip: str, environment: dict[str, str], found: str
) -> None:
    assert choose_address(ip, environment) == found


@pytest.mark.parametrize(
    ("ip", "environment", "words"),
    [
        ("192.0.2.1", {}, r"ip '192\.0\.2\.1' is not this host's"),
        ("", {"GLOO_SOCKET_IFNAME": "nowhere0"}, "no interface with an IPv4 address on .*: nowhere0; there are .*lo"),
        (
            "",
            {"GLOO_SOCKET_IFNAME": "^docker0,lo"},
            r"a list that begins with \^ is for NCCL_SOCKET_IFNAME, gloo takes",
        ),
        ("", {"GLOO_SOCKET_IFNAME": "=lo"}, "a list that begins with = is for NCCL_SOCKET_IFNAME"),
        ("", {"MASTER_ADDR": "::1"}, r"MASTER_ADDR '::1' is an IPv6 address: .*IPv4 alone.*ip addr add .*HOPSUM_IP"),
        ("fd00::1", {}, r"ip 'fd00::1' is an IPv6 address: .*IPv4 alone"),
        ("", {"MASTER_ADDR": "no.such.host.invalid"}, "no way to MASTER_ADDR 'no.such.host.invalid'"),
    ],
)
def test_an_address_that_cannot_be_is_refused(ip: str, environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_address(ip, environment)


def test_ways_are_tried_both_by_datagram_and_by_connection() -> None:
    with ReachEcho("127.0.0.1") as one, ReachEcho("127.0.0.2") as other:
        assert require_reachable("127.0.0.1", {1: one.place, 2: other.place}, try_s=60) > 0
        with pytest.raises(ConfigError, match=r"rank 2 at 127\.0\.0\.2 does not answer datagrams"):
            require_reachable("127.0.0.1", {1: one.place, 2: other.place._replace(nonce="00" * 16)}, try_s=0.3)
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            deaf = one.place._replace(tcp_port=stranger.getsockname()[1])
            with pytest.raises(ConfigError, match=r"rank 1 at 127\.0\.0\.1 takes no connection \(timed out\)"):
                require_reachable("127.0.0.1", {1: deaf}, try_s=0.3)


@pytest.mark.skipif(not probe_offload().segment, reason="this kernel has no UDP_SEGMENT")
def test_a_way_for_short_datagrams_only_and_one_for_single_ones_only() -> None:
    with ReachEcho("127.0.0.1") as echo, ReachEcho("127.0.0.1") as well:
        with loses((echo.place.ip, echo.place.udp_port), lambda size, each: each > 900) as (near, _):
            narrow = {1: echo.place._replace(udp_port=near[1]), 2: well.place}
            with pytest.raises(
                ConfigError, match=r"rank 1 at 127\.0\.0\.1 answers short datagrams and none of 1056 bytes"
            ):
                require_reachable("127.0.0.1", narrow, try_s=0.3)
        turns = cycle((True, False))
        for lost in (lambda size, each: size > each, lambda size, each: size > each and next(turns)):
            with loses((echo.place.ip, echo.place.udp_port), lost) as (near, _):
                single = {1: echo.place._replace(udp_port=near[1]), 2: well.place}
                assert require_reachable("127.0.0.1", single, try_s=60) > 0
                assert not gso_arrives("127.0.0.1", single, try_s=0.5)
        assert gso_arrives("127.0.0.1", {2: well.place}, try_s=60)
        assert gso_arrives("127.0.0.1", {}, try_s=60)
        assert mtu_towards("127.0.0.1", (well.place.ip, well.place.udp_port)) >= PACKET_BYTES


@pytest.mark.skipif(not probe_offload().segment, reason="this kernel has no UDP_SEGMENT")
def test_datagrams_sent_together_go_to_a_few_ranks_at_one_time() -> None:
    # 63 ranks that ask the same one together fill its socket, and take that for datagrams which do not arrive.
    with ExitStack() as kept:
        silent = [kept.enter_context(udp_socket()) for _ in range(40)]
        for each in silent:
            each.bind(("127.0.0.1", 0))
        others = {rank: Responder(*each.getsockname(), 0, f"{rank:032x}") for rank, each in enumerate(silent)}
        assert not gso_arrives("127.0.0.1", others, try_s=0.5)
        assert 0 < len(select.select(silent, [], [], 0)[0]) <= 8


@pytest.mark.parametrize(
    ("setting", "arrive", "used"), [("auto", True, "auto"), ("auto", False, "off"), ("off", True, "off")]
)
def test_the_switch_of_a_host_has_the_setting_of_its_rank(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, setting: str, arrive: bool, used: str
) -> None:
    monkeypatch.setattr(job_over_hosts, "gso_arrives", lambda *_: arrive)
    monkeypatch.setattr(job_over_hosts, "mtu_towards", lambda *_: 900)

    def start(*_: object, gso: str) -> Any:
        raise ConfigError(f"started with gso={gso}")

    monkeypatch.setattr(job_over_hosts, "start_switch", start)
    found = meet(2, lambda meeting: open_hosts(meeting, gso=setting))
    assert {str(each) for each in found} == {f"hosts://: rank 0: started with gso={used}"}
    told = "do not arrive, since packets have 1084 bytes and the MTU of the way is 900" in caplog.text
    assert told is (setting == "auto" and not arrive)


def test_rank_0_waits_less_for_ranks_that_did_not_leave_where_its_program_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("last_exc", "last_value"):  # pytest sets them when a test fails
        monkeypatch.delattr(sys, name, raising=False)
    waits_s: list[float] = []
    made: Any = SimpleNamespace(rank=0, leave=lambda wait_s, waits: waits_s.append(wait_s))
    for ends_by in (None, ConfigError("another rank was killed"), SystemExit(0)):
        with suppress(ConfigError, SystemExit), ExitStack() as communicator:
            communicator.callback(job_over_hosts._leave, made)
            if ends_by is not None:
                raise ends_by
    assert waits_s == [15, 3, 15]


@contextmanager
def echo_from_afar(ip: str, delay_s: float) -> Iterator[Responder]:
    """Answer as ReachEcho does, datagrams so many seconds late."""
    nonce = secrets.token_bytes(16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.create_server((ip, 0)) as tcp:
        udp.bind((ip, 0))

        def answer_late() -> None:
            late = []
            while True:
                asked, peer = udp.recvfrom(64)
                if not asked:
                    break
                late.append(threading.Timer(delay_s, udp.sendto, (nonce + asked[len("hopsum?") :], peer)))
                late[-1].start()
            for each in late:
                each.join()

        def accept() -> None:
            with tcp.accept()[0] as connection:
                connection.sendall(nonce)

        threads = [threading.Thread(target=each, daemon=True) for each in (answer_late, accept)]
        for each in threads:
            each.start()
        yield Responder(ip, udp.getsockname()[1], tcp.getsockname()[1], nonce.hex())
        udp.sendto(b"", udp.getsockname())
        for each in threads:
            each.join()


@pytest.mark.parametrize("delay_s", [0.03, 0.25])
def test_the_round_trip_is_that_of_the_farthest_rank(delay_s: float) -> None:
    """0.25 s are longer than the pause between two questions: no answer is taken for that of a later one."""
    with ReachEcho("127.0.0.1") as near, echo_from_afar("127.0.0.2", delay_s) as far:
        assert require_reachable("127.0.0.1", {1: near.place, 2: far}, try_s=60) >= delay_s


def test_a_job_has_the_slots_that_the_longest_way_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = iter((0.001, 0.02))
    monkeypatch.setattr(job_over_hosts, "require_reachable", lambda *_: next(ways))
    monkeypatch.setattr(job_over_hosts, "start_switch", lambda *_, gso: EmbeddedSwitch("127.0.0.1", "127.0.0.1:1", 1))

    def start_job(*_: Any, slots: int, **__: Any) -> Any:
        raise ConfigError(f"made with {slots} slots")

    monkeypatch.setattr(job_over_hosts, "_start_job", start_job)
    found = meet(2, lambda meeting: open_hosts(meeting, None))
    assert {str(each) for each in found} == {f"hosts://: rank 0: made with {slots_for(1e9, 0.02)} slots"}


def test_the_ranks_controller_has_the_lease_of_the_setting_and_several_heartbeats_in_it() -> None:
    for lease_s, heartbeat_s in ((60, 2.0), (3, 1.0)):
        made = tomllib.loads(
            job_over_hosts._controller_config([EmbeddedSwitch("127.0.0.1", "g", 1)], "d", "t", lease_s)
        )
        assert (made["controller"]["lease_s"], made["controller"]["heartbeat_s"]) == (lease_s, heartbeat_s)


def test_nobody_waits_for_another_process_where_none_can_come() -> None:
    config, other = resolve(environment={}, url="hosts://"), resolve(environment={})
    assert (config.replacement_wait_s, config.unreachable_s, config.deadline_s) == (0, 30, 1800)
    assert (other.replacement_wait_s, other.unreachable_s, other.deadline_s) == (30, 10, 300)
    given = resolve({"url": "hosts://?slots=256", "deadline_s": 7.0}, environment={"HOPSUM_UNREACHABLE_S": "9"})
    assert (given.deadline_s, given.unreachable_s) == (7, 9)


def test_a_host_that_is_cut_off_before_the_controller_reaches_it_is_named() -> None:
    hosts_of = {"switch0": "rank 1 (127.0.0.2)"}
    with socket.create_server(("127.0.0.2", 0)) as silent:
        there = EmbeddedSwitch("127.0.0.2", f"127.0.0.2:{silent.getsockname()[1]}", 1)
        job_over_hosts._require_switches([there], hosts_of)
    words = r"the host of rank 1 \(127\.0\.0\.2\) does not answer: its switch takes no connection at port"
    with pytest.raises(ConfigError, match=words):
        job_over_hosts._require_switches([there], hosts_of)


class PausedJobs:
    """A controller, one of whose hosts is paused until it was looked at so often."""

    def __init__(self, looks: float, refuses: bool = False) -> None:
        self.looks, self.refuses, self.made = looks, refuses, 0

    def switches(self) -> list[Any]:
        self.looks -= 1
        paused = self.looks > 0
        return [
            SimpleNamespace(name=f"switch{number}", reachable=not (paused and number), condition="no answer in 3 s")
            for number in range(2)
        ]

    def create(self, *_: object, **fields: Any) -> Any:
        if self.refuses:
            self.refuses = False
            raise ControllerError("no place for job 'hosts' with 85 slots: switch1: no answer", "RESOURCE_EXHAUSTED")
        self.made += 1
        return fields


def test_a_host_that_is_paused_before_the_job_is_made_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_over_hosts, "_AGAIN_S", 0.0)
    hosts_of = {"switch0": "rank 0 (10.0.0.1)", "switch1": "rank 1 (10.0.0.2)"}
    for jobs in (PausedJobs(3), PausedJobs(0)):
        assert job_over_hosts._make_job(jobs, hosts_of, {"token": "t"}) == {"token": "t"}  # type: ignore[arg-type]
        assert jobs.made == 1
    # Only the call that makes the job may find out.
    late: Any = PausedJobs(0, refuses=True)
    states = iter((False, True, False))
    late.switches = lambda: [SimpleNamespace(name="switch1", reachable=not next(states), condition="no answer")]
    assert job_over_hosts._make_job(late, hosts_of, {}) == {}
    with pytest.raises(ControllerError, match="no place"):
        job_over_hosts._make_job(PausedJobs(0, refuses=True), hosts_of, {})  # type: ignore[arg-type]
    monkeypatch.setattr(job_over_hosts, "_SWITCH_S", 0.0)
    words = r"the host of rank 1 \(10\.0\.0\.2\) does not answer: its switch was silent for 0 s \(no answer in 3 s\)"
    with pytest.raises(ConfigError, match=words):
        job_over_hosts._make_job(PausedJobs(inf), hosts_of, {})  # type: ignore[arg-type]


def test_a_child_that_does_not_start_is_told_with_its_words() -> None:
    children = Children()
    try:
        with pytest.raises(ChildError, match="there is no file /nowhere"):
            children.start("switch", ["hopsum_switch", "--program", "/nowhere"], re.compile("ready"), 60)
    finally:
        children.close()
    assert not children.folder.exists()


def test_the_line_at_the_end_says_what_a_job_saved_and_waited() -> None:
    done = CommunicatorStatistics(allreduces=1200, elements=3_000_000)
    assert job_over_hosts.summary(CommunicatorStatistics()).endswith("summed 0 elements in 0 all-reduces")
    done.traffic = SocketTraffic(bytes_sent=1_500_000)
    done.steps, done.step_seconds, done.wait_seconds = 40, 10.0, 1.5
    assert job_over_hosts.summary(done) == (
        "hosts://: rank 0 summed 3,000,000 elements in 1,200 all-reduces: 1.5 MB sent, 0.12 of the 12.0 MB of fp32; "
        "15 % of 40 steps' time waited for sums"
    )
