# SPDX-License-Identifier: Apache-2.0
"""Exact accounting through the whole stack: codec, error feedback, agents, side channels, the switch program.

Loss each way with duplicates and reordering, quorums of all and of all but one, and a worker that stalls for whole
all-reduces. Then workers that do one thing wrong: the same check must say so.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.codec import Codec, make_codec
from hopsum.codec.range_codec import RangeReduction
from hopsum_topologies.local_cluster import NATIVE_PORT, LocalCluster

from ..transport.lossy import Mishaps
from .mutants import DividesByAll, DropsExcluded, KeepsAll, Reencodes, SettlesOnStale, Sound
from .team import BRISK, WORKERS, Given, Setting, Team, own_things

pytestmark = pytest.mark.system
ELEMENTS = {"thc": 4000, "thc:result_bits=8": 4000, "uhc": 4000, "fixed": 2000, "lossless": 4000}
LOSSES = (0.0, 0.01, 0.05, 0.2)


def drawn(codec: str, seed: int = 0) -> Given:
    """Return vectors whose blocks and ranks differ by orders of magnitude; sparse ones for lossless."""

    def given(step: int, rank: int) -> NDArray[np.float32]:
        rng = np.random.default_rng((seed, step, rank))
        x = rng.standard_t(3, ELEMENTS[codec]) * 10.0 ** rng.integers(-3, 3)
        if codec == "lossless":  # in turn a sum of one chunk and of several, whose contributors may differ
            x *= rng.random(x.size) < (0.01, 0.1)[step % 2]
        return x.astype(np.float32)

    return given


def codec_named(name: str) -> Codec:
    return make_codec(name, workers=WORKERS, backend="numpy")


def check(team: Team) -> None:
    team.books.close()
    assert team.books.violations == []
    assert team.books.closest > 0.02, "of what rounding may do: the check is not blunt"
    assert team.unproved <= team.unproved_max


@pytest.mark.parametrize("quorum", [WORKERS, WORKERS - 1])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("codec", ELEMENTS)
def test_the_laws_hold(cluster: LocalCluster, codec: str, loss: float, quorum: int) -> None:
    mishaps = Mishaps(drop=loss, duplicate=0.05, reorder=0.05)
    before, given = own_things(), drawn(codec, seed=quorum)
    ahead = 1 if codec == "lossless" else 2  # three phases, or two: as many as may be unproved
    with ExitStack() as stack:
        setting = Setting(quorum=quorum, mishaps=mishaps, seed=int(100 * loss))
        team = Team(stack, cluster, [codec_named(codec)] * WORKERS, ELEMENTS[codec], setting)
        team.run(given, 2)
        for late in (2, 0) if quorum < WORKERS else ():
            team.run(given, ahead, late=late)
        team.run(given, 2)
        check(team)
        everybody = quorum == WORKERS
        assert (team.books.missed == 0) is everybody
        assert not (everybody and team.books.without_mean)
        assert team.books.without_mean < team.books.allreduces
    assert own_things() == before, "threads and files of closed agents are gone"


@pytest.mark.parametrize("quorum", [WORKERS, WORKERS - 1])
@pytest.mark.parametrize("codec", ["thc", "thc:result_bits=8", "uhc"])
def test_the_laws_hold_where_vectors_travel_in_parts(
    cluster: LocalCluster, stack: ExitStack, codec: str, quorum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk is a part: it is encoded while others are on their way, and decoded before the last one is here."""
    monkeypatch.setattr("hopsum.transport.sharded_allreduce.PART_CHUNKS", 1)
    parts: list[int] = []
    on_part = RangeReduction.on_part

    def counted(self: RangeReduction, first: int, *results: NDArray[Any]) -> None:
        parts.append(first)
        on_part(self, first, *results)

    monkeypatch.setattr(RangeReduction, "on_part", counted)
    setting = Setting(quorum=quorum, mishaps=Mishaps(drop=0.05, duplicate=0.05, reorder=0.05))
    team = Team(stack, cluster, [codec_named(codec)] * WORKERS, ELEMENTS[codec], setting)
    for late in (None, 1 if quorum < WORKERS else None, None):
        team.run(drawn(codec, seed=quorum), 2, late=late)
    check(team)
    assert len(parts) > 10


@pytest.mark.parametrize("loss", [0.05, 0.2])
@pytest.mark.parametrize("codec", ["thc", "thc:result_bits=8", "fixed"])
def test_the_laws_hold_on_plain_links(cluster: LocalCluster, stack: ExitStack, codec: str, loss: float) -> None:
    """Datagrams move by the batch, and are lost in the switch, each way."""
    setting = Setting(quorum=WORKERS - 1, switch_loss=loss, slots=8)
    team = Team(stack, cluster, [codec_named(codec)] * WORKERS, ELEMENTS[codec], setting)
    for late in (None, 1, None, 2):
        team.run(drawn(codec), 2, late=late)
    check(team)
    assert team.books.missed > 0
    lost = cluster.switch.controller.loss_counters()[NATIVE_PORT]
    assert min(lost) > 0, lost


@pytest.mark.parametrize("codec", ["thc", "thc:result_bits=8", "fixed"])
def test_the_laws_hold_where_sums_are_flushed(cluster: LocalCluster, stack: ExitStack, codec: str) -> None:
    """Quorum of all: a worker stalls for two all-reduces, which the others close by FLUSH."""
    timing = replace(BRISK, flush_after_s=0.05)
    mishaps, given = Mishaps(drop=0.05, duplicate=0.05, reorder=0.05), drawn(codec)
    setting = Setting(mishaps=mishaps, min_quorum=2, timing=timing)
    team = Team(stack, cluster, [codec_named(codec)] * WORKERS, ELEMENTS[codec], setting)
    for late in (None, 1, None, 0):
        team.run(given, 2, late=late)
    check(team)
    assert team.books.missed > 0


# ---- workers that do one thing wrong --------------------------------------------------------------------


def broken(team: Team, law: str) -> bool:
    team.books.close()
    return any(violation.startswith(law) for violation in team.books.violations)


def test_one_that_settles_on_stale_is_found(cluster: LocalCluster, stack: ExitStack) -> None:
    setting = Setting(quorum=WORKERS - 1)
    mutant = SettlesOnStale(WORKERS, setting.slots)
    wrapped = setting._replace(wrap=lambda rank, link: mutant.listen(link) if rank == 2 else link)
    team = Team(stack, cluster, [Sound(WORKERS), Sound(WORKERS), mutant], 4000, wrapped)
    team.run(drawn("thc:result_bits=8"), 1)
    team.run(drawn("thc:result_bits=8"), 2, late=2)
    assert mutant.settled > 0
    assert broken(team, "conservation in all-reduce 1")
    assert broken(team, "conservation over all")
    assert not broken(team, "replicas"), "nobody sees it in the means"


def test_one_that_divides_by_all_is_found(cluster: LocalCluster, stack: ExitStack) -> None:
    codecs = [Sound(WORKERS), Sound(WORKERS), DividesByAll(WORKERS)]
    team = Team(stack, cluster, codecs, 4000, Setting(quorum=WORKERS - 1))
    team.run(drawn("thc:result_bits=8"), 2)
    assert broken(team, "replicas: all-reduce 0 of ranks [2]")


def test_dividing_by_all_on_all_ranks_is_found(cluster: LocalCluster, stack: ExitStack) -> None:
    team = Team(stack, cluster, [DividesByAll(WORKERS)] * WORKERS, 4000, Setting(quorum=WORKERS - 1))
    team.run(drawn("thc:result_bits=8"), 2)
    assert not broken(team, "replicas")
    assert broken(team, "conservation in all-reduce 0")
    assert broken(team, "conservation over all")


@pytest.mark.parametrize("mutant", [DropsExcluded, KeepsAll])
def test_one_that_drops_or_doubles_is_found(
    cluster: LocalCluster, stack: ExitStack, mutant: type[DropsExcluded]
) -> None:
    codecs = [Sound(WORKERS), mutant(WORKERS), Sound(WORKERS)]
    team = Team(stack, cluster, codecs, 4000, Setting(quorum=WORKERS - 1))
    team.run(drawn("thc:result_bits=8"), 1, late=1 if mutant is DropsExcluded else None)
    team.run(drawn("thc:result_bits=8"), 1, late=0)
    assert broken(team, "conservation in all-reduce")
    assert broken(team, "conservation over all")
    assert not broken(team, "replicas")


@pytest.mark.parametrize("honest", [True, False])
def test_one_that_encodes_anew_is_found(cluster: LocalCluster, stack: ExitStack, honest: bool) -> None:
    """The first transmission of every chunk of rank 1 is lost. Of an honest one nothing is found."""
    mutant = Reencodes(WORKERS)
    setting = Setting(wrap=lambda rank, link: mutant.lose_first(link, honest=honest) if rank == 1 else link)
    team = Team(stack, cluster, [Sound(WORKERS), mutant, Sound(WORKERS)], 4000, setting)
    team.run(drawn("thc:result_bits=8"), 2)
    assert broken(team, "conservation in all-reduce 0") is not honest
    assert broken(team, "conservation over all") is not honest
    assert not broken(team, "replicas")
