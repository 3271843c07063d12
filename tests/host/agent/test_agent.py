# SPDX-License-Identifier: Apache-2.0
"""Sums of agents on loopback: right, the same everywhere, and accounted for, also over lossy links."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.agent import Agent, AllReduceResult, SocketTraffic
from hopsum.codec import CodecError, ErrorFeedback, NonFiniteError, job_tables, make_codec
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_wire import Op
from hopsum_wire.payload import up_bytes

from ..transport.lossy import Mishaps
from .cluster import PATIENT, Cluster

pytestmark = pytest.mark.system
WAIT_S = 90
SEEDS = int(os.environ.get("SEEDS", 3))
LOSSY = Mishaps(drop=0.1, duplicate=0.1, reorder=0.1)


def reduce_all(
    agents: list[Agent], vectors: list[NDArray[np.float32]], feedback: list[ErrorFeedback] | None = None
) -> list[AllReduceResult]:
    """Sum one vector per agent; all must have the same bytes."""
    futures = [
        agent.submit(vector, feedback=feedback and feedback[rank])
        for rank, (agent, vector) in enumerate(zip(agents, vectors, strict=True))
    ]
    results = [future.result(timeout=WAIT_S) for future in futures]
    for result in results[1:]:
        assert result.mean.tobytes() == results[0].mean.tobytes()
        np.testing.assert_array_equal(result.contributors, results[0].contributors)
    return results


def normal(workers: int, elements: int, seed: int) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(elements).astype(np.float32) for _ in range(workers)]


def test_codes_go_in_groups_as_the_switch_takes_them(stack: ExitStack) -> None:
    """The mean does not depend on the group; a switch of another group would add lanes of different elements."""
    vectors, means, codec = normal(2, 5000, seed=7), [], make_codec("thc:result_bits=8", workers=2)
    for group in (512, 64):
        cluster = Cluster(stack, 2, code_group=group, tables=job_tables(codec))
        means.append(reduce_all(cluster.agents("thc:result_bits=8"), vectors)[0].mean.tobytes())
    assert means[0] == means[1]
    with pytest.raises(CodecError, match="in groups of 512, but the switch of job 'test' takes groups of 64"):
        cluster.agent(0, codec)
    assert Cluster(stack, 1, code_group=64).agents("fixed")[0].codec.lookup is None, "no codes, no groups"


def test_a_switch_without_the_operation_is_told_before_anything_is_sent(stack: ExitStack) -> None:
    cluster = Cluster(stack, 1, ops=frozenset(Op) - {Op.ADD16, Op.LOOKUP_ADD16})
    with pytest.raises(CodecError, match="uhc sums by ADD16, and the switch of job 'test' only by LOOKUP_ADD8, ADD8"):
        cluster.agent(0, make_codec("uhc", workers=1, bits=8, lane_bits=16))
    assert cluster.agent(0, make_codec("uhc", workers=1, bits=8)).codec.op == Op.ADD8
    assert not cluster.links[0].headers


@pytest.mark.parametrize(
    ("spelled", "message"),
    [
        ("thc:result_bits=8", r"for codec thc with these options: its table is None, the codec's \(0, 1, .*, 15\)"),
        ("thc:bits=3", r"for codec thc with these options: its table3 is None, the codec's \(-7, -5, "),
        ("thc:bits=2", r"for codec thc with these options: its table2 is None, the codec's \(-3, -1, 1, 3, "),
    ],
)
def test_a_rank_with_other_bits_is_refused_with_the_numbers(stack: ExitStack, spelled: str, message: str) -> None:
    cluster = Cluster(stack, 3)
    with pytest.raises(CodecError, match=message):
        cluster.agent(0, spelled)
    assert not cluster.links[0].headers


@pytest.mark.parametrize(
    ("spelled", "op", "chunk_elements"),
    [
        ("thc", Op.LOOKUP_ADD_LOOKUP4, 1024),
        ("thc:bits=3", Op.LOOKUP_ADD_LOOKUP3, 1024),
        ("thc:bits=2", Op.LOOKUP_ADD_LOOKUP2, 1024),
        ("thc:result_bits=8", Op.LOOKUP_ADD8, 1024),
    ],
)
def test_forms_of_thc_end_with_the_mean_of_a_simulated_switch(
    stack: ExitStack, spelled: str, op: Op, chunk_elements: int
) -> None:
    """Over sockets that lose and repeat datagrams; the last chunk is not full, and neither is its last block."""
    codec = make_codec(spelled, workers=3, backend="numpy")
    cluster = Cluster(stack, 3, mishaps=LOSSY, tables=job_tables(codec))
    vectors = normal(3, 40_000, seed=8)
    futures = [agent.submit(x, step=5) for agent, x in zip(cluster.agents(spelled), vectors, strict=True)]
    found = {future.result(WAIT_S).mean.tobytes() for future in futures}
    wanted = simulate_allreduce(codec, vectors, seed=0, step=5)
    assert wanted is not None
    assert found == {wanted[0].tobytes()}
    headers = [header for header in cluster.links[0].headers if header.op == op]
    assert len({(header.slot, header.round) for header in headers}) == -(-40_000 // chunk_elements)
    assert {header.length for header in headers} == {up_bytes(op)}


def test_ranks_round_apart_and_steps_too(stack: ExitStack) -> None:
    agents = Cluster(stack, 2).agents("thc")
    x = normal(1, 4096, seed=6)[0]
    feedback = [ErrorFeedback(x.size), ErrorFeedback(x.size)]
    first = reduce_all(agents, [x, x], feedback)[0].mean
    assert not np.array_equal(feedback[0].residual, feedback[1].residual)
    assert not np.array_equal(reduce_all(agents, [x, x])[0].mean, first)
    futures = [agent.submit(x, step=0) for agent in agents]
    assert futures[0].result(WAIT_S).mean.tobytes() == futures[1].result(WAIT_S).mean.tobytes() == first.tobytes()


@pytest.mark.parametrize("looped", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("codec", ["thc", "fixed"])
def test_a_vector_that_is_not_finite_is_skipped_by_all(stack: ExitStack, codec: str, looped: tuple[int, ...]) -> None:
    """A rank with the compiled loop has put the codes into the stream with the ranges, others have not."""
    agents, vectors = Cluster(stack, 2, looped=looped).agents(codec), normal(2, 3000, seed=9)
    feedback = [ErrorFeedback(3000), ErrorFeedback(3000)]
    reduce_all(agents, vectors, feedback)
    before = [each.residual.copy() for each in feedback]
    broken = vectors[1].copy()
    broken[2999] = np.inf
    futures = [
        agent.submit(x, feedback=each, on_nonfinite="skip")
        for agent, x, each in zip(agents, [vectors[0], broken], feedback, strict=True)
    ]
    for future in futures:
        assert future.result(WAIT_S).skipped
        assert np.isnan(future.result().mean).all()
    raising = [agent.submit(x, feedback=e) for agent, x, e in zip(agents, [vectors[0], broken], feedback, strict=True)]
    for future, text in zip(raising, ["another rank's vector", "rank 1: 1 of 3000 elements"], strict=True):
        with pytest.raises(NonFiniteError, match=text):
            future.result(WAIT_S)
    for each, residual in zip(feedback, before, strict=True):
        np.testing.assert_array_equal(each.residual, residual)
    assert not reduce_all(agents, vectors, feedback)[0].skipped
    assert (agents[0].statistics.allreduces, agents[0].statistics.skipped) == (4, 2)


class Submitted(NamedTuple):
    """One vector of each rank."""

    vectors: list[NDArray[np.float32]]
    step: int
    feedback: int | None
    """Which of a rank's feedbacks it has."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_bursts_and_groups_have_one_stream_whichever_rank_foresees_the_codes(stack: ExitStack, seed: int) -> None:
    """Ranks 0 and 1 put codes into the stream before their ranges are summed where they can; rank 2 never does."""
    spelled, rng, lengths = ["thc", "thc:bits=2", "uhc"][seed % 3], np.random.default_rng(seed), (700, 300_000)
    codec = make_codec(spelled, workers=3, backend="numpy")
    agents = Cluster(stack, 3, looped=(0, 1), tables=job_tables(codec)).agents(spelled)
    feedback, expected = ([[ErrorFeedback(n) for n in lengths] for _ in agents] for _ in range(2))
    bursts: list[list[Submitted]] = []
    means: list[bytes | None] = []
    for _ in range(12):
        bursts.append([])
        for kind in rng.permutation([0, 1, *[-1] * 6])[: rng.integers(1, 9)]:
            n = int(rng.choice([1, 1024, 5000, 70_000, 300_000])) if kind < 0 else lengths[kind]
            each = Submitted(normal(3, n, seed=1000 * seed + len(means)), len(means), None if kind < 0 else int(kind))
            if rng.random() < 0.25:
                each.vectors[rng.integers(3)][rng.integers(n)] = rng.choice([np.nan, np.inf])
            bursts[-1].append(each)
            residuals = None if each.feedback is None else [own[each.feedback] for own in expected]
            mean = simulate_allreduce(codec, each.vectors, seed=0, step=each.step, feedback=residuals)
            means.append(None if mean is None else mean[0].tobytes())
    grouped = rng.random(len(bursts)) < 0.7

    def play(rank: int) -> list[bytes | None]:
        chance, found = random.Random(f"{seed} {rank}"), []
        for burst, is_group in zip(bursts, grouped, strict=True):
            futures = []
            with agents[rank].group() if is_group else nullcontext():
                for each in burst:
                    time.sleep(chance.choice([0, 0, 0.02]) * chance.random())
                    own = None if each.feedback is None else feedback[rank][each.feedback]
                    x = each.vectors[rank]
                    futures.append(agents[rank].submit(x, feedback=own, step=each.step, on_nonfinite="skip"))
                time.sleep(chance.choice([0, 0, 0.02]) * chance.random())
            results = [future.result(WAIT_S) for future in futures]
            found += [None if result.skipped else result.mean.tobytes() for result in results]
        return found

    with ThreadPoolExecutor(3) as pool:
        for rank, found in enumerate(pool.map(play, range(3))):
            assert found == means
            for own, other in zip(feedback[rank], expected[rank], strict=True):
                np.testing.assert_array_equal(own.residual, other.residual)


def test_statistics_are_what_passed(stack: ExitStack) -> None:
    agents = Cluster(stack, 2).agents("thc", PATIENT)
    results = reduce_all(agents, normal(2, 5 * 1024, seed=2))
    for result in results:
        up = down = (32 + 1024) + 5 * (32 + 512)
        assert result.traffic == SocketTraffic(6, 6, 0, up, down)
        assert result.traffic.interface_bytes_sent == up + 6 * 42
        assert result.traffic.interface_bytes_received == down + 6 * 42
        assert result.seconds > 0
    reduce_all(agents, normal(2, 5 * 1024, seed=3))
    for agent in agents:
        assert agent.statistics.traffic == SocketTraffic(12, 12, 0, 2 * up, 2 * down)
        assert (agent.statistics.allreduces, agent.statistics.elements) == (2, 10 * 1024)


def test_a_codec_must_fit_the_job(stack: ExitStack) -> None:
    cluster = Cluster(stack, 2)
    with pytest.raises(CodecError, match="codec fixed for 3 workers in a job of 2"):
        cluster.agent(0, make_codec("fixed", workers=3))
    cluster.membership = replace(cluster.membership, tables={})
    with pytest.raises(CodecError, match=r"its table4 is None, the codec's .*hopsum job create NAME --codec thc"):
        cluster.agent(0, "thc")
