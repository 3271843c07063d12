# SPDX-License-Identifier: Apache-2.0
"""Statistics of an agent's all-reduces: durations, codes by op, and its own quantisation error."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

from hopsum.agent.allreduce_results import heartbeat_counts
from hopsum.agent.vector import RUN_ELEMENTS, RUNS, sample
from hopsum.codec import ErrorFeedback, make_codec
from hopsum.codec.lookup_table import truncation_error
from hopsum.codec.thc import Thc
from hopsum_wire import Op
from hopsum_wire.watch.heartbeat import LATENCY_BOUNDS_S, NAMES, latency_name, nmse

from .cluster import PATIENT, Cluster

WAIT_S = 90.0
SMALL, LARGE = 1000, RUNS * RUN_ELEMENTS * 3 + 5


def test_samples_have_the_elements_of_every_part_and_move() -> None:
    vector = np.arange(LARGE, dtype=np.float32)
    taken = [sample(vector, number) for number in range(400)]
    part = LARGE // RUNS
    for each in taken:
        assert each.shape == (RUNS, RUN_ELEMENTS)
        assert (each // part == np.arange(RUNS)[:, None]).all()
        assert (np.diff(each) == 1).all()
    assert np.array_equal(np.unique(taken), np.arange(RUNS * part)), "every element has its turn"
    assert sample(vector[: RUNS * RUN_ELEMENTS], 7).size == RUNS * RUN_ELEMENTS
    assert sample(vector[:1], 7).size == 1


@pytest.mark.parametrize("elements", [SMALL, LARGE])
def test_the_error_is_what_the_feedback_keeps(stack: ExitStack, elements: int) -> None:
    workers, steps = 2, 6
    agents = Cluster(stack, workers).agents("thc", timing=PATIENT)
    feedback = [ErrorFeedback(elements) for _ in agents]
    rng = np.random.default_rng(3)
    error, vector = np.zeros(workers), np.zeros(workers)
    for number in range(steps):
        given = [rng.standard_normal(elements).astype(np.float32) for _ in agents]
        whole = [x + kept.residual for x, kept in zip(given, feedback, strict=True)]
        futures = [agent.submit(x, feedback=kept) for agent, x, kept in zip(agents, given, feedback, strict=True)]
        for future in futures:
            future.result(timeout=WAIT_S)
        for rank in range(workers):
            error[rank] += np.square(sample(feedback[rank].residual, number).astype(float)).sum()
            vector[rank] += np.square(sample(whole[rank], number).astype(float)).sum()
    for rank, agent in enumerate(agents):
        counted = agent.statistics
        np.testing.assert_allclose([counted.error_squares, counted.vector_squares], [error[rank], vector[rank]], 1e-6)
        found = nmse(heartbeat_counts(counted))
        assert found is not None
        codec = agent.codec
        assert isinstance(codec, Thc)
        promised = (2 * codec.bound / codec.granularity) ** 2 / 12 + truncation_error(codec.bound)
        assert 0.8 < found / promised < 1.25, "as the levels promise"


def test_codes_and_times_of_what_was_summed(stack: ExitStack) -> None:
    cluster = Cluster(stack, 2)
    agents = cluster.agents("fixed", timing=PATIENT)
    for elements in (1000, 24):
        for future in [agent.submit(np.ones(elements, np.float32)) for agent in agents]:
            future.result(timeout=WAIT_S)
    counted = agents[0].statistics
    assert counted.codes[Op.ADD32] == 1024
    assert set(counted.codes) <= {Op.ADD32, Op.MAX32}
    assert len(counted.within) == len(LATENCY_BOUNDS_S)
    assert list(counted.within) == sorted(counted.within)
    assert counted.within[-1] == counted.allreduces == 2, "neither took half a minute"
    told = heartbeat_counts(counted)
    assert set(told) <= set(NAMES)
    assert told[latency_name(LATENCY_BOUNDS_S[-1])] == 2
    assert told["codes_add32"] == 1024
    assert nmse(told) is None, "without error feedback nobody knows"


def test_what_was_skipped_is_no_error(stack: ExitStack) -> None:
    agents = Cluster(stack, 1).agents(make_codec("fixed", workers=1), timing=PATIENT)
    feedback = ErrorFeedback(8)
    bad = np.full(8, np.inf, np.float32)
    result = agents[0].submit(bad, feedback=feedback, on_nonfinite="skip").result(timeout=WAIT_S)
    assert result.skipped
    agents[0].submit(np.ones(8, np.float32), feedback=feedback).result(timeout=WAIT_S)
    counted = agents[0].statistics
    assert (counted.skipped, counted.allreduces) == (1, 2)
    assert counted.vector_squares == 8
    assert counted.error_squares < 1e-6
