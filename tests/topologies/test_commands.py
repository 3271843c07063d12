# SPDX-License-Identifier: Apache-2.0
"""Commands in network namespaces: their output and their ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hopsum_topologies import Namespace
from hopsum_topologies.commands import Ended, Event, HostTask, LineSplitter, OutputLine, run_in_namespaces
from hopsum_topologies.reachability import find_unreachable

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("namespaces")]
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def host() -> Iterator[Namespace]:
    with Namespace() as namespace:
        yield namespace


def heard(host: Namespace, *scripts: str) -> list[Event]:
    commands = [HostTask(str(at), "h", ("sh", "-c", script), os.environ) for at, script in enumerate(scripts)]
    return list(run_in_namespaces(commands, {"h": host}))


def test_lines_and_ends_are_heard(host: Namespace) -> None:
    events = heard(host, "echo one; printf two", "echo three >&2; exit 7", "kill -9 $$")
    assert [event for event in events if event.label == "0"] == [
        OutputLine("0", "stdout", "one"), OutputLine("0", "stdout", "two"), Ended("0", 0)
    ]  # fmt: skip
    assert [event for event in events if event.label == "1"] == [OutputLine("1", "stderr", "three"), Ended("1", 7)]
    assert [event for event in events if event.label == "2"] == [Ended("2", 137)]


def test_a_command_that_is_not_there_is_named(host: Namespace) -> None:
    said, ended = run_in_namespaces([HostTask("0", "h", ("no-such-program",), os.environ)], {"h": host})
    assert isinstance(said, OutputLine)
    assert "cannot run no-such-program" in said.text
    assert ended == Ended("0", 1)


def test_a_command_ends_though_what_it_left_behind_holds_its_output_and_that_is_ended_too(host: Namespace) -> None:
    *_, pid, ended = heard(host, "setsid sleep 600 & echo $!")
    assert ended == Ended("0", 0)
    assert isinstance(pid, OutputLine)
    assert host_is_empty(host)


def test_closing_ends_even_what_ignores_sigterm(host: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum_topologies.commands.END_S", 0.2)
    stubborn = HostTask("0", "h", ("sh", "-c", "trap '' TERM; setsid sleep 600 & echo up; wait; sleep 600"), os.environ)
    with closing(run_in_namespaces([stubborn], {"h": host})) as events:
        assert next(events) == OutputLine("0", "stdout", "up")
        assert processes_in(host)
    assert host_is_empty(host)


def host_is_empty(host: Namespace) -> bool:
    """Say whether nothing runs there, which the dying are given a moment for."""
    give_up = time.monotonic() + DEADLINE_S
    while processes_in(host):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True


def processes_in(host: Namespace) -> list[str]:
    inode = Path(f"/var/run/netns/{host.name}").stat().st_ino
    return [path.name for path in Path("/proc").glob("[0-9]*") if _namespace_of(path) == inode]


def _namespace_of(process: Path) -> int:
    try:
        return (process / "ns/net").stat().st_ino
    except OSError:
        return 0


def test_lines_come_whole_however_they_are_cut() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"on") == []
    assert splitter.feed(b"e\n\ntw") == ["one", ""]
    assert splitter.feed(b"o\xff\n") == ["two\ufffd"]
    assert splitter.finish() == []
    assert splitter.feed(b"rest") == []
    assert splitter.finish() == ["rest"]


def test_reach_tells_who_answers_from_who_does_not(host: Namespace) -> None:
    with host.inside():
        assert find_unreachable(["127.0.0.1", "127.0.0.2"], DEADLINE_S) == []
        assert find_unreachable(["127.0.0.1", "10.9.9.9"], 0.3) == ["10.9.9.9"]
