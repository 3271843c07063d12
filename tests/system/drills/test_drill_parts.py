# SPDX-License-Identifier: Apache-2.0
"""Checks and waits of the drills, with faults that they have to see."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hopsum.rpc.channel import ControllerError

from .controller_probe import edit, refusal
from .drill import DrillError
from .drill_training import DrillPlan, WorkerOrder
from .journal import Journal
from .silent_proxy import SilentProxy
from .training_job import TrainingJob

PATIENCE_S = 30.0


@pytest.fixture
def training(tmp_path: Path) -> TrainingJob:
    """A job of three workers without processes. Tests write the journals."""
    made = TrainingJob.__new__(TrainingJob)
    made.workers = 3
    made.plan = DrillPlan("hopsum://127.0.0.1:1/train", "", str(tmp_path), 3)
    return made


def write(training: TrainingJob, rank: int, kind: str, **fields: object) -> None:
    Journal(training.plan.journal(rank)).write(kind, **fields)


@pytest.mark.parametrize("text", ["rank 2: generation 7 is over: rank 1 left", "ranks 1 have not joined", "ranks 0, 1"])
def test_others_know_by_their_log_or_an_error(training: TrainingJob, text: str) -> None:
    write(training, 0, "log", text=text, logger="hopsum.agent.network_thread")
    write(training, 0, "log", text=text, logger="hopsum.rpc.change")
    write(training, 2, "failed", text=text)
    took_s = training.others_know(1, 0.0, 1e12)
    assert took_s == max(training.journal(rank)[-1]["at"] for rank in (0, 2))


def test_news_that_came_late_or_of_another_rank_is_no_news(
    training: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 2):
        write(training, rank, "log", text="rank 1 left", logger="hopsum.rpc.change")
    (entry,) = training.journal(2)
    with pytest.raises(DrillError, match=r"all other ranks knew of it after 5\.0 s, 4 s are allowed"):
        training.others_know(1, entry["at"] - 5.0, 4.0)
    assert training.since(0.0, 2, "log", words=r"\branks? (\d+, )*12\b") is None
    assert training.since(entry["at"] + 1, 2, "log") is None
    assert training.since(0.0, 2, "log", logger="hopsum.agent") is None
    assert training.since(0.0, 2, "void") is None


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        ("void", {"error": "WorkersReplacedError", "text": "ranks 1 were replaced"}, "WorkersReplacedError: ranks 1"),
        ("step", {"generation": 8, "step": 1}, "2 generations"),
    ],
)
def test_a_break_is_seen(training: TrainingJob, kind: str, fields: dict[str, object], told: str) -> None:
    for rank in range(3):
        write(training, rank, "step", generation=7, step=0)
    training.require_results(generations=1)
    write(training, 2, kind, **fields)
    with pytest.raises(DrillError, match=told):
        training.require_results(generations=1)


def test_an_order_is_taken_once(training: TrainingJob) -> None:
    assert training.plan.take_order(1) is None
    training.plan.order(1).write_text(WorkerOrder.RAISE_IN_FLIGHT)
    assert training.plan.take_order(0) is None
    assert training.plan.take_order(1) is WorkerOrder.RAISE_IN_FLIGHT
    assert training.plan.take_order(1) is None


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back what it gets."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(peer: socket.socket) -> None:
        with peer:
            while data := peer.recv(1024):
                peer.sendall(data)

    def accept() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def answer(peer: socket.socket, data: bytes) -> bytes:
    peer.sendall(data)
    return peer.recv(1024)


def test_connections_die_in_silence_and_new_ones_work(echo: str) -> None:
    with closing(SilentProxy("127.0.0.1", echo)) as proxy, connected(proxy.address) as old:
        assert answer(old, b"one") == b"one"
        assert proxy.kill_connections() == 1
        old.sendall(b"two")
        with connected(proxy.address) as new:
            assert answer(new, b"three") == b"three"
            assert answer(new, b"four") == b"four"
            assert proxy.kill_connections() == 1, "those that are dead are not counted again"
        old.setblocking(False)
        with pytest.raises(BlockingIOError):  # no answer, and no end
            old.recv(1)


def test_a_refusal_needs_the_right_words() -> None:
    def refuse() -> None:
        raise ControllerError("the database is full", "INTERNAL")

    assert refusal(refuse, "full") == "the database is full"
    with pytest.raises(DrillError, match="but not for 'primary'"):
        refusal(refuse, "primary")
    with pytest.raises(DrillError, match="not refused"):
        refusal(lambda: None, "full")


def test_a_configuration_without_the_text_is_not_edited(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("one two")
    edit(path, tmp_path / "b.toml", ("one", "1"), ("two", "2"))
    assert (tmp_path / "b.toml").read_text() == "1 2"
    with pytest.raises(DrillError, match="has no 'three'"):
        edit(path, path, ("three", "3"))
    assert path.read_text() == "one two"
