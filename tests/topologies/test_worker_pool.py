# SPDX-License-Identifier: Apache-2.0
"""Messages of worker processes to their parent, in whatever order the pipes are read."""

from __future__ import annotations

import multiprocessing

import pytest

from hopsum_topologies.worker_pool import WorkerPool

pytestmark = pytest.mark.system


def test_a_worker_that_goes_on_at_once_is_not_mistaken() -> None:
    """The first worker has sent two messages before the second one has sent any."""
    pool = WorkerPool([], lambda *_: None, None)
    ends = [multiprocessing.Pipe() for _ in range(2)]
    pool.pipes = [ours for ours, _ in ends]
    first, second = (theirs for _, theirs in ends)
    first.send(("ready", 1))
    first.send(("step", 2))
    first.send(("step", 3))
    assert pool.receive() == (0, ("ready", 1))
    first.send(("done", 4))
    pool._kept.append((0, ("ready", 0)))  # as another gathering may leave it
    second.send(("ready", 5))
    assert pool.gather("ready") == [(0,), (5,)]
    assert [pool.receive() for _ in range(3)] == [(0, ("step", 2)), (0, ("step", 3)), (0, ("done", 4))]
    for pipe in (*pool.pipes, first, second):
        pipe.close()
