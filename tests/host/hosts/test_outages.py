# SPDX-License-Identifier: Apache-2.0
"""A training by hosts:// survives what plain DDP survives. What ends it is an error on all ranks, with its cause.

`OUTAGE_S=20 pytest -s` on this file prints the times of outages at their full length, and with
`OUTAGE_WAY=plain` those of the same script in plain DDP.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hopsum_topologies.star import Star

from ...support.processes import await_that
from ...support.targets import require_namespaces
from .host_process import JOB, HostProcess, Line

pytestmark = [pytest.mark.system, pytest.mark.long]
WAY: Final = os.environ.get("OUTAGE_WAY", "raise")
OUTAGE_S: Final = float(os.environ.get("OUTAGE_S", "2"))
GOAL_STEPS: Final = 60
"""Steps from the moment at which the goal is written: ranks are never so far apart, nor wait so long to read it."""


class Training:
    """A training on the hosts of a star, a rank on each. Rank 1 may have settings of its own."""

    def __init__(self, stack: ExitStack, folder: Path, way: str = WAY, own: str = "", **settings: str) -> None:
        require_namespaces()
        folder.mkdir()
        self.star, self._folder = stack.enter_context(Star(3)), folder
        # Rules against datagrams come before that for addresses of the host itself, and apply to connected sockets too.
        for host in self.star.hosts:
            host.ip("rule", "add", "pref", "1", "lookup", "local")
            host.ip("rule", "del", "pref", "0")
            with host.inside():
                Path("/proc/sys/net/ipv4/udp_early_demux").write_text("0")
        self.ranks = []
        for rank in range(3):
            of_one = dict([own.split("=")]) if own and rank == 1 else {}
            variables = {"HOPSUM_URL": "hosts://", **settings, **of_one}
            log = folder / f"rank{rank}.log"
            self.ranks.append(HostProcess(stack, self.star, rank, log, JOB, str(folder), way, **variables))

    def continues(self, since_s: float = 0.0) -> float:
        """Wait until each rank has done a step after a time and five more. Return the seconds to the first step."""

        def steps(rank: HostProcess) -> list[Line]:
            return [line for line in rank.lines("step") if line.at_s > since_s]

        for rank in self.ranks:
            await_that(lambda rank=rank: len(steps(rank)) > 5 or rank.has_ended, f"steps of {rank.log}")
            assert not rank.has_ended, rank.tail
        return max(steps(rank)[0].at_s for rank in self.ranks) - since_s

    def fails(self, but: Sequence[int] = ()) -> list[Line]:
        """Wait for an error of all ranks but some. Return these errors."""
        for rank in self.ranks:
            await_that(lambda rank=rank: rank.has_ended, f"end of {rank.log}")
        found = [rank.lines()[-1] for number, rank in enumerate(self.ranks) if number not in but]
        assert all(line.word == "error" for line in found), [rank.tail for rank in self.ranks]
        return found

    def finish(self) -> None:
        """Let all ranks train to one step, and end. All have equal parameters after each step, and train them."""
        goal = max(len(rank.lines("step")) for rank in self.ranks) + GOAL_STEPS
        # Whole or not at all: ranks read it meanwhile.
        (self._folder / "new").write_text(str(goal))
        (self._folder / "new").rename(self._folder / "goal")
        for rank in self.ranks:
            assert rank.process.wait(300) == 0, rank.tail
        digests = [[line.text for line in rank.lines("step")] for rank in self.ranks]
        assert digests == [digests[0]] * 3
        assert len(set(digests[0])) == goal


def stop(rank: int, training: Training, seconds: float) -> None:
    training.ranks[rank].process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    training.ranks[rank].process.send_signal(signal.SIGCONT)


def cut_link(host: int, training: Training, seconds: float) -> None:
    training.star.hosts[host].ip("link", "set", "dev", "eth0", "down")
    time.sleep(seconds)
    training.star.hosts[host].ip("link", "set", "dev", "eth0", "up")


def rule_udp(verb: str, training: Training) -> None:
    """Let no datagram of host 2 reach host 1 ("add"), or let them ("del"). No sender is told."""
    rule = ("from", training.star.host_ip(2), "ipproto", "udp", "pref", "0", "blackhole")
    training.star.hosts[1].ip("rule", verb, *rule)


def lose_udp(training: Training, seconds: float) -> None:
    rule_udp("add", training)
    time.sleep(seconds)
    rule_udp("del", training)


def slow(training: Training, seconds: float) -> None:
    """Let host 2 compute a fifth of the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        stop(2, training, 0.4)
        time.sleep(0.1)


def narrow(training: Training, _: float) -> None:
    """Let the MTU of host 1 fall to 900, for good."""
    training.star.hosts[1].ip("link", "set", "dev", "eth0", "mtu", "900")


OUTAGES: Final[dict[str, Callable[[Training, float], None]]] = {
    "rank 1 is stopped": partial(stop, 1),
    "rank 0 is stopped": partial(stop, 0),
    "host 1 has no link": partial(cut_link, 1),
    "host 0 has no link": partial(cut_link, 0),
    "UDP is lost between hosts 1 and 2": lose_udp,
    "host 2 is slow": slow,
    "the MTU of host 1 falls to 900": narrow,
}


def test_a_training_continues_with_equal_parameters(stack: ExitStack, tmp_path: Path) -> None:
    training = Training(stack, tmp_path / "job")
    training.continues()
    for name, disturb in OUTAGES.items():
        began_s = time.monotonic()
        disturb(training, OUTAGE_S)
        over_s = time.monotonic()
        print(f"{WAY}: {name}: continues after {training.continues(over_s) + over_s - began_s:.1f} s")
    training.finish()


@pytest.mark.parametrize(
    ("rank", "number", "words"),
    [
        (0, signal.SIGKILL, r"rank 0 has ended"),
        (1, signal.SIGUSR1, r"rank 1\b.*ValueError: a bad batch"),
        (1, signal.SIGINT, r"rank 1\b.*KeyboardInterrupt"),
    ],
)
def test_the_end_of_a_rank_is_an_error_on_all_others_with_its_cause(
    stack: ExitStack, tmp_path: Path, rank: int, number: int, words: str
) -> None:
    training = Training(stack, tmp_path / "job")
    training.continues()
    began_s = time.monotonic()
    training.ranks[rank].process.send_signal(number)
    for line in training.fails(but=[rank]):
        print(f"{WAY}: error after {line.at_s - began_s:.1f} s: {line.text}")
        assert WAY == "plain" or re.search(words, line.text), line.text


def test_datagrams_that_are_lost_for_ever_are_an_error_or_the_end_of_hopsum(stack: ExitStack, tmp_path: Path) -> None:
    """Both names of the way are in the error. The bound is a setting, here 5 s."""
    for way in ("raise", "fall_back"):
        training = Training(stack, tmp_path / way, way, HOPSUM_UNREACHABLE_S="5")
        training.continues()
        rule_udp("add", training)
        if way == "fall_back":
            training.finish()
        else:
            assert any("10.0.0.2" in line.text and "10.0.0.3" in line.text for line in training.fails())


@pytest.mark.parametrize(("own", "words"), [("HOPSUM_LOCAL_GROUP=auto", "local_group"), ("HOPSUM_CODEK=thc", "codek")])
def test_a_setting_of_one_rank_is_an_error_on_all(stack: ExitStack, tmp_path: Path, own: str, words: str) -> None:
    for line in Training(stack, tmp_path / "job", own=own).fails():
        assert words in line.text
