# SPDX-License-Identifier: Apache-2.0
"""on_lost="zero", the published behaviour: replicas differ and gradients are lost, where repair keeps both laws."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import hopsum
from hopsum.agent import Agent
from hopsum.codec import Codec, CodecError, make_codec
from hopsum.config import ConfigError
from hopsum.errors import ResultLostError
from hopsum.transport.link import DatagramLink
from hopsum.transport.lossy import Mishaps
from hopsum_controlplane import write_membership
from hopsum_wire import Header, Op
from hopsum_wire.membership import MembershipError

from .laws import Entry
from .team import WORKERS, Bench, Setting, Tap, Team

ELEMENTS = 3000
QUORUM = WORKERS - 1


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def given(step: int, rank: int) -> NDArray[np.float32]:
    return np.random.default_rng((step, rank)).standard_normal(ELEMENTS, dtype=np.float32)


def codec_named(name: str) -> Codec:
    return make_codec(name, workers=WORKERS, backend="numpy")


def broken(team: Team, law: str) -> int:
    return sum(violation.startswith(law) for violation in team.books.violations)


@dataclass
class Order:
    """Ranges of all ranks, then codes of ranks 0 and 1, then those of rank 2, which lost what it was sent meanwhile."""

    last_has_codes: threading.Event = field(default_factory=threading.Event)
    others_are_done: threading.Event = field(default_factory=threading.Event)

    def wrap(self, rank: int, link: DatagramLink) -> DatagramLink:
        return Waits(link, self, last=rank == 2)


class Waits(Tap):
    """Holds its first codes back until it is their turn."""

    def __init__(self, link: DatagramLink, order: Order, *, last: bool) -> None:
        super().__init__(link)
        self._order, self._last, self._waits = order, last, True

    def send(self, datagram: bytes | memoryview) -> None:
        if self._waits and Header.unpack(datagram).op != Op.MAX32:
            self._waits = False
            if self._last:
                self._order.last_has_codes.set()
            turn = self._order.others_are_done if self._last else self._order.last_has_codes
            assert turn.wait(60)
            while self._last and self._link.receive(0.0):
                pass
        self._link.send(datagram)


@pytest.mark.parametrize(("codec", "slots"), [("thc", 1), ("uhc", 1), ("fixed", 4)])
def test_sums_that_are_lost_are_lost_gradients(bench: Bench, stack: ExitStack, codec: str, slots: int) -> None:
    """What was sent of them counts as delivered, and was not."""
    order = Order()
    setting = Setting(quorum=QUORUM, peers=False, on_lost="zero", slots=slots, wrap=order.wrap)
    team = Team(stack, bench, [codec_named(codec)] * WORKERS, ELEMENTS, setting)
    pairs = zip(team.agents, team.feedback, strict=True)
    futures = [agent.submit(given(0, rank), feedback=kept) for rank, (agent, kept) in enumerate(pairs)]
    early = [future.result(60) for future in futures[:2]]
    order.others_are_done.set()
    late, mine, left = futures[2].result(60), given(0, 2), team.feedback[2].residual
    gone = late.contributors == 0
    assert 0 < gone.sum() == team.statistics(2).lost < gone.size
    assert (late.contributors[~gone] == 0b011).all()
    elements = gone.repeat(256 if codec == "fixed" else 1024)[:ELEMENTS]
    assert not late.mean[elements].any()
    assert late.mean[~elements].tobytes() == early[0].mean[~elements].tobytes()
    np.testing.assert_array_equal(left[~elements], mine[~elements])
    assert np.linalg.norm(left[elements]) < 0.3 * np.linalg.norm(mine[elements])
    nothing = np.zeros(ELEMENTS, np.float32)
    ranks = enumerate(zip([*early, late], team.feedback, strict=True))
    team.books.record([Entry(given(0, rank), nothing, kept.residual, result) for rank, (result, kept) in ranks])
    assert broken(team, "replicas: all-reduce 0 of ranks [2]")
    assert broken(team, "conservation in all-reduce 0")


@pytest.mark.parametrize("codec", ["thc", "uhc", "fixed"])
def test_whose_ranges_are_lost_sends_nothing_and_keeps_all(bench: Bench, stack: ExitStack, codec: str) -> None:
    setting = Setting(quorum=QUORUM, peers=False, on_lost="zero")
    team = Team(stack, bench, [codec_named(codec)] * WORKERS, ELEMENTS, setting)
    team.run(given, 2, late=2)
    assert team.statistics(2).lost > 0
    assert broken(team, "replicas: all-reduce 0 of ranks [2]")
    assert not broken(team, "conservation in all-reduce 0")
    allreduces = team.books.allreduces
    team.run(given, 1)
    assert team.books.allreduces == allreduces + 1, "it goes on"


def test_without_zeros_it_ends(bench: Bench, stack: ExitStack) -> None:
    team = Team(stack, bench, [codec_named("fixed")] * WORKERS, ELEMENTS, Setting(quorum=QUORUM, peers=False))
    with pytest.raises(ResultLostError):
        team.run(given, 1, late=2)
    np.testing.assert_array_equal(team.feedback[2].residual, given(0, 2))


@pytest.mark.parametrize("peers", [False, True], ids=["zero", "repair"])
def test_at_loss(bench: Bench, stack: ExitStack, peers: bool) -> None:
    """The same losses, a worker that falls behind now and then: by zeros, and with peers to ask."""
    mishaps = Mishaps(drop=0.2, duplicate=0.05, reorder=0.05)
    setting = Setting(quorum=QUORUM, mishaps=mishaps, peers=peers, on_lost="fail" if peers else "zero")
    team = Team(stack, bench, [codec_named("thc")] * WORKERS, ELEMENTS, setting)
    for late in (None, 2, None, 0):
        team.run(given, 2, late=late)
    team.books.close()
    lost = sum(team.statistics(rank).lost for rank in range(WORKERS))
    if peers:
        assert team.books.violations == []
        assert lost == 0
    else:
        assert broken(team, "replicas") > 0
        assert broken(team, "conservation over all") == 1
        assert lost > 0


def test_it_is_refused_where_it_makes_no_sense(bench: Bench, stack: ExitStack, tmp_path: Path) -> None:
    team = Team(stack, bench, [codec_named("fixed")] * WORKERS, ELEMENTS)
    bare = replace(team.membership, workers=tuple(replace(each, side_port=None) for each in team.membership.workers))
    with pytest.raises(MembershipError, match=r'on_lost="zero" in job .laws., whose workers have side channels'):
        Agent(team.membership, 0, codec=codec_named("fixed"), on_lost="zero")
    with pytest.raises(CodecError, match='on_lost="zero" with codec lossless, which needs every result'):
        Agent(bare, 0, codec=codec_named("lossless"), on_lost="zero")
    with pytest.raises(CodecError, match="on_lost='skip': one of fail, zero"):
        Agent(bare, 0, codec=codec_named("fixed"), on_lost="skip")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="only a switch loses sums; leave it out"):
        hopsum.connect("memory://a?workers=1", on_lost="zero")
    with pytest.raises(ConfigError, match='on_lost is "fail" or "zero"'):
        hopsum.connect("memory://a?workers=1", on_lost="zeros")
    path = tmp_path / "job.json"
    write_membership(team.job, path, bench.ports, {rank: ("127.0.0.1", 9 + rank) for rank in range(WORKERS)})
    with pytest.raises(MembershipError, match="whose workers have side channels"):
        hopsum.connect(path.as_uri(), rank=0, codec="fixed", backend="numpy", on_lost="zero")


def test_it_is_a_setting(bench: Bench, stack: ExitStack, tmp_path: Path) -> None:
    team = Team(stack, bench, [codec_named("fixed")] * WORKERS, ELEMENTS, Setting(quorum=QUORUM, peers=False))
    path = tmp_path / "job.json"
    write_membership(team.job, path, bench.ports, False)
    team.close()
    jobs = [
        stack.enter_context(hopsum.connect(path.as_uri(), rank=rank, codec="fixed", backend="numpy", on_lost="zero"))
        for rank in range(WORKERS)
    ]
    early = [hopsum.allreduce(given(0, rank), jobs[rank], async_op=True) for rank in (0, 1)]
    means = [future.result(60) for future in early]
    late = hopsum.allreduce(given(0, 2), jobs[2])
    assert means[0].tobytes() == means[1].tobytes()
    assert np.isfinite(late).all()
