# SPDX-License-Identifier: Apache-2.0
"""Parts of the drills of lost connections and lost ranks, with faults that they have to see."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from hopsum_evaluation.drill.base import DrillError
from hopsum_evaluation.drill.crowd import _connections
from hopsum_evaluation.drill.journal import Journal
from hopsum_evaluation.drill.news import others_know, require_no_break
from hopsum_evaluation.drill.proxy import Proxy
from hopsum_evaluation.drill.training import DrillPlan, WorkerOrder
from hopsum_evaluation.drill.training_job import TrainingJob

PATIENCE_S = 30.0


@pytest.fixture
def training(tmp_path: Path) -> TrainingJob:
    """A crew of three that was never started: only its journals are there, as far as a test writes them."""
    made = TrainingJob.__new__(TrainingJob)
    made.workers = 3
    made.plan = DrillPlan("hopsum://127.0.0.1:1/train", "", str(tmp_path), 3)
    return made


def write(training: TrainingJob, rank: int, kind: str, **fields: object) -> None:
    Journal(training.plan.journal(rank)).write(kind, **fields)


@pytest.mark.parametrize("text", ["rank 2: generation 7 is over: rank 1 left", "ranks 1 have not joined", "ranks 0, 1"])
def test_others_know_by_their_log_or_an_error(training: TrainingJob, text: str) -> None:
    write(training, 0, "log", text=text, logger="hopsum.agent.progress")
    write(training, 0, "log", text=text, logger="hopsum.rpc.change")
    write(training, 2, "failed", text=text)
    took_s = others_know(training, 1, 0.0, 1e12)
    assert took_s == max(training.journal(rank)[-1]["at"] for rank in (0, 2))


def test_news_that_came_late_or_of_another_rank_is_no_news(
    training: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 2):
        write(training, rank, "log", text="rank 1 left", logger="hopsum.rpc.change")
    (entry,) = training.journal(2)
    with pytest.raises(DrillError, match=r"all other ranks knew of it after 5\.0 s, 4 s are allowed"):
        others_know(training, 1, entry["at"] - 5.0, 4.0)
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
    require_no_break(training)
    write(training, 2, kind, **fields)
    with pytest.raises(DrillError, match=told):
        require_no_break(training)


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
    with closing(Proxy("127.0.0.1", echo)) as proxy, connected(proxy.address) as old:
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


def test_the_end_of_a_connection_passes_through(echo: str) -> None:
    with closing(Proxy("127.0.0.1", echo)) as proxy, connected(proxy.address) as peer:
        assert answer(peer, b"one") == b"one"
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1) == b""


def test_nobody_behind_a_proxy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"127.0.0.1:{server.getsockname()[1]}"
    with (
        closing(Proxy("127.0.0.1", nobody)) as proxy,
        connected(proxy.address) as peer,
        suppress(ConnectionResetError),
    ):
        assert peer.recv(1) == b""


def test_a_crowd_that_nobody_lets_in_is_no_crowd() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"127.0.0.1:{server.getsockname()[1]}"
    tried = threading.Event()
    with pytest.raises(DrillError, match="not one of 3 connections came about"), _connections(nobody, 3):
        tried.wait(0)
