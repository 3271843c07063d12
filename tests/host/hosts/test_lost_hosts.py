# SPDX-License-Identifier: Apache-2.0
"""`hosts://?min_workers=N`: hosts are lost, the others continue without a restart, and a host comes back."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hopsum.config import Config, ConfigError
from hopsum.connection.hosts_url import open_over_hosts
from hopsum.connection.open_agent import Hooks
from hopsum.connection.url import split_url
from hopsum.hosts import lost_hosts
from hopsum.hosts.lost_hosts import spare_switches
from hopsum_topologies.star import Star
from hopsum_wire.control import control_pb2 as pb

from ...support.processes import await_that
from ...support.targets import require_namespaces
from .host_process import JOB, HostProcess, kill

HOSTS = 4


@pytest.mark.parametrize(
    ("fewest", "ranks", "words"),
    [
        ("5", 4, r"URL 'hosts://\?min_workers=5': min_workers is 5, not 1 to 4"),
        ("0", 4, r"URL 'hosts://\?min_workers=0': min_workers is 0, not 1 to 4"),
        ("two", 4, r"min_workers is 'two', no int"),
        ("1", 16, r"hosts://\?min_workers=1: any 1 of 16 hosts need 256 switches in all, there are 254 at most"),
    ],
)
def test_a_number_of_hosts_that_cannot_be_is_refused(fewest: str, ranks: int, words: str) -> None:
    config = Config(url=f"hosts://?min_workers={fewest}", codec="fixed")
    meeting: Any = SimpleNamespace(rank=0, workers=ranks)
    with pytest.raises(ConfigError, match=words):
        open_over_hosts(config, split_url(config), Hooks(meeting=meeting))


def test_any_hosts_that_are_left_have_a_switch_for_each_shard() -> None:
    for hosts in range(1, 65):
        for fewest in range(1, hosts + 1):
            spare = spare_switches(hosts, fewest)
            assert fewest * (1 + spare) >= hosts > fewest * spare


def test_shards_move_also_where_the_controller_has_other_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator may make jobs at the hosts' controller, and delete the hosts' own."""
    moved = threading.Event()
    switches, lost = ["hosts-0", "hosts-1"], pb.Member(rank=1, phase=pb.MEMBER_PHASE_LOST)
    answers = iter([[], [pb.Job(name="other"), pb.Job(name="hosts", switches=switches, members=[lost])]])

    class Jobs:
        def __init__(self, *_: object) -> None: ...

        def jobs(self) -> list[pb.Job]:
            return next(answers, [])

        def move(self, job: str, source: str, target: str) -> pb.MoveJobResponse:
            assert (job, source, target) == ("hosts", "hosts-1", "hosts-2")
            moved.set()
            return pb.MoveJobResponse(to_switch=target)

    monkeypatch.setattr(lost_hosts, "JobsClient", Jobs)
    monkeypatch.setattr(lost_hosts, "_LOOK_S", 0.01)
    meeting: Any = SimpleNamespace(absent=frozenset(), admit=lambda ranks: None)
    stop = lost_hosts.watch_hosts(meeting, "127.0.0.1:1", "", "hosts", {"hosts-0": 0, "hosts-1": 1, "hosts-2": 0})
    try:
        assert moved.wait(60)
    finally:
        stop()


def sums(rank: HostProcess) -> list[tuple[float, str, str]]:
    """Return time, workers and digest of all sums of a rank so far."""
    return [(line.at_s, *line.text.split()) for line in rank.lines("step")]  # type: ignore[misc]


def await_workers(rank: HostProcess, workers: int) -> float:
    """Wait for some sums of so many workers. Return the time of the first one."""
    before = len(sums(rank))

    def found() -> list[float]:
        assert not rank.has_ended, rank.tail
        time.sleep(0.1)
        return [at_s for at_s, those, _ in sums(rank)[before:] if those == str(workers)]

    await_that(lambda: len(found()) >= 10, f"sums of {workers} workers")
    return found()[0]


@pytest.mark.system
@pytest.mark.long
@pytest.mark.parametrize("way", ["allreduce", "diloco"])
def test_plain_processes_continue_without_lost_hosts_and_with_one_that_comes_back(tmp_path: Path, way: str) -> None:
    """One of four hosts is lost, comes back, and is lost again with another one, which had taken its shard.

    Where one more is lost, fewer than `min_workers` are left.
    """
    require_namespaces()
    with Star(HOSTS) as star, ExitStack() as stack:

        def start(number: int) -> HostProcess:
            log = tmp_path / f"{number}-{time.monotonic()}.log"
            return HostProcess(stack, star, number, log, JOB, str(tmp_path), way)

        ranks = [start(number) for number in range(HOSTS)]
        first = ranks[0]
        await_workers(first, 4)
        for lost in ((3,), (2, 3)):
            killed_s = time.monotonic()
            for host in lost:
                kill(star, host)
            took_s = await_workers(first, HOSTS - len(lost)) - killed_s
            print(f"{took_s:.1f} s from SIGKILL of hosts {lost} to the first all-reduce without them; lease 10 s")
            if len(lost) == 1:
                again = start(3)
                await_workers(first, HOSTS)
                assert again.lines("newcomer")
                alike(first, again)
        if way == "diloco":
            kill(star, 1)
            assert first.process.wait(300) == 1
            assert "the connection of rank 1 ended" in first.text
            assert "MembershipError: no other worker is waited for (replacement_wait_s is 0)" in first.text, first.text
            return
        (tmp_path / "goal").touch()
        assert [each.process.wait(300) for each in ranks[:2]] == [0, 0], first.tail
        assert sums(first)[-1][1:] == sums(ranks[1])[-1][1:]
        assert "Error" not in first.text + ranks[1].text


def alike(one: HostProcess, other: HostProcess) -> None:
    """Compare the parameters of two replicas after the same sums."""
    digests = {digest for _, _, digest in sums(one)} & {digest for _, _, digest in sums(other)}
    assert len(digests) >= len(sums(other)) - 2, "sums that are not on the other's log yet"
