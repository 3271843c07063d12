# SPDX-License-Identifier: Apache-2.0
"""Signatures: whatever differs between ranks is noticed by all of them, and nothing else is."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.agent import Agent
from hopsum.agent.signature import LANES, MOST, MismatchError, Signer, without_signature
from hopsum.agent.task import Task
from hopsum.codec import Codec, CollectivePhase, ReductionContext, job_tables, make_codec
from hopsum.codec.simulate import simulate_switch
from hopsum.errors import GenerationEndedError
from hopsum_wire import Op

from .cluster import Cluster

CODECS = ("fixed", "lossless", "thc")
WAIT_S = 600.0

CALLS = st.fixed_dictionaries(
    {
        "elements": st.sampled_from([1, 5000, 5001, MOST, MOST + 1, MOST + 7]),
        "step": st.sampled_from([0, 1]),
        "on_nonfinite": st.sampled_from(["raise", "skip"]),
        "more": st.booleans(),
        "tensors": st.sampled_from([(), (("a", 1),), (("b", 1),)]),
    }
)
SEEDS = st.sampled_from([0, 1, 1 << 31, (1 << 62) + 1])
RANKS = st.tuples(CALLS, st.sampled_from(CODECS), SEEDS, st.booleans())


@cache
def codec_of(name: str) -> Codec:
    return make_codec(name, workers=3, backend="numpy")


def signer(rank: int, codec: str, seed: int, overlap: bool) -> Signer:
    return Signer(codec_of(codec), ReductionContext(seed, 0, rank), overlap=overlap)


def call(elements: int, **options: Any) -> Task:
    """Return a task of a vector that has no memory."""
    vector: Any = SimpleNamespace(elements=elements, feedback=None)
    return Task(vector, **{"tensors": (), "on_nonfinite": "raise", "more": False, **options})


def phase(lanes: int, seed: int = 0) -> CollectivePhase:
    words = np.zeros(-(-lanes // 256) * 256, ">u4")
    words[:lanes] = np.random.default_rng(seed).integers(0, MOST, lanes, endpoint=True)
    return CollectivePhase(Op.MAX32, words.view(np.uint8).reshape(-1, 1024), lanes)


def first_chunks(*parts: tuple[CollectivePhase, ...]) -> Any:
    """Return what a switch makes of the first chunks."""
    return simulate_switch(Op.MAX32, [each[0].payloads for each in parts], None)[0]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(ranks=st.lists(RANKS, min_size=3, max_size=3), same=st.booleans())
def test_all_ranks_notice_what_differs_and_nothing_else(ranks: list[Any], same: bool) -> None:
    """Also where the vectors have different numbers of chunks."""
    ranks = [ranks[0]] * 3 if same else ranks
    signers = [signer(rank, *each[1:]) for rank, each in enumerate(ranks)]
    lanes = [1, 1, 1] if same else [1, 601, 1201]
    calls = [call(**each[0]) for each in ranks]
    parts = [signers[rank].sign(each, phase(lanes[rank])) for rank, each in enumerate(calls)]
    results = first_chunks(*parts)
    agree = ranks.count(ranks[0]) == 3
    for rank, each in enumerate(calls):
        if agree:
            signers[rank].compare(each, results)
        else:
            with pytest.raises(MismatchError, match=f"rank {rank} has .*another rank has"):
                signers[rank].compare(each, results)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(lanes=st.integers(1, 1100), ranks=st.integers(1, 4))
def test_the_codec_takes_what_it_would_without_a_signature(lanes: int, ranks: int) -> None:
    own = [phase(lanes, rank) for rank in range(ranks)]
    expected, _ = simulate_switch(Op.MAX32, [each.payloads for each in own], None)
    parts = [signer(0, "thc", 7, True).sign(call(lanes), each) for each in own]
    assert len(parts[0]) == (1 if lanes + LANES <= 256 else 2)
    assert sum(int(part.counts().sum()) for part in parts[0]) == lanes + LANES
    summed = [simulate_switch(Op.MAX32, [each[n].payloads for each in parts], None)[0] for n in range(len(parts[0]))]
    results = np.concatenate(summed)
    found, who = without_signature(own[0], results, np.full(len(results), 3, np.uint64))
    assert found.tobytes() == expected.tobytes()
    assert who.tolist() == [3] * len(expected)


def test_who_is_in_a_chunk_is_in_all_of_its_lanes() -> None:
    own = phase(300)
    results = np.zeros((2, 1024), np.uint8)
    _, who = without_signature(own, results, np.array([3, 2], np.uint64))
    assert who.tolist() == [2, 2]


def test_numbers_that_differ_are_both_told() -> None:
    calls = [call(elements) for elements in (5000, 5001, 5000)]
    made = [("thc", 0), ("fixed", 1), ("thc", 0)]
    signers = [signer(rank, codec, seed, True) for rank, (codec, seed) in enumerate(made)]
    results = first_chunks(*(s.sign(c, phase(5)) for s, c in zip(signers, calls, strict=True)))
    words = (
        r"rank 0 has a vector of 5000 elements, another rank has a vector of 5001 elements; "
        r"rank 0 has codec thc, another rank has codec fixed; rank 0 has seed 0, another rank has seed 1\. "
    )
    with pytest.raises(MismatchError, match=words):
        signers[0].compare(calls[0], results)


DIFFERENT: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], str]] = {
    "chunks": ([{}, {}], [{"elements": 5000}, {"elements": 600_000}], "5000 elements.*600000|600000 el.*5000"),
    "feedback": ([{"codec": "thc"}, {"codec": "thc:error_feedback=false"}], [{}, {}], "error_feedback (True|False)"),
    "results": ([{"codec": "thc"}, {"codec": "thc:result_bits=8"}], [{}, {}], r"dither of 16 levels.* table \("),
    "codec": ([{"codec": "fixed"}, {"codec": "lossless"}], [{}, {}], "codec fixed.*codec lossless|lossless.*fixed"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_through_a_switch_all_ranks_have_the_error(stack: ExitStack, what: str) -> None:
    """The ranks are at a switch with a file: no controller has compared anything."""
    made, submitted, words = DIFFERENT[what]
    cluster = Cluster(stack, 2, tables=job_tables(make_codec("thc:result_bits=8", workers=2, backend="numpy")))
    agents = [
        stack.enter_context(Agent(cluster.membership, rank, link=cluster.links[rank], **{"codec": "fixed", **options}))
        for rank, options in enumerate(made)
    ]
    futures = []
    for agent, options in zip(agents, submitted, strict=True):
        values = {**options}
        futures.append(agent.submit(np.ones(values.pop("elements", 5000), np.float32), **values))
    for future in futures:
        error = future.exception(WAIT_S)
        assert isinstance(error, MismatchError)
        with pytest.raises(MismatchError, match=words):
            raise error
    for agent in agents:
        with pytest.raises(GenerationEndedError, match="the ranks are not at the same all-reduce"):
            agent.submit(np.ones(2, np.float32))


def test_a_signature_depends_on_what_the_codec_is_made_with() -> None:
    kinds = [make_codec("thc", workers=3, backend="numpy", bits=bits) for bits in (4, 2)]
    kinds += [make_codec("thc:bits=3", workers=3, backend="numpy", error_feedback=kept) for kept in (True, False)]
    kinds += [make_codec("thc:bits=2,error_feedback=true", workers=3, backend="numpy")]
    kinds += [make_codec("thc:result_bits=8", workers=3, backend="numpy")]
    kinds += [make_codec("thc:rounding=stochastic", workers=3, backend="numpy")]
    kinds += [make_codec("lossless", workers=3, backend="numpy", **options) for options in ({}, {"gamma": 2.0})]
    calls = [call(10) for _ in kinds]
    for each, codec in zip(calls, kinds, strict=True):
        Signer(codec, ReductionContext(0, 0, 0), overlap=True).sign(each, phase(1))
    assert len({each.signature for each in calls}) == len(kinds)
