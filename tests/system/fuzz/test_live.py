# SPDX-License-Identifier: Apache-2.0
"""Broken datagrams at a running switch: it takes them all in, accounts for each, keeps its memory, and sums as before.

TEST_SCALE (make test SCALE=...) multiplies the number of datagrams.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hopsum_topologies import Namespace, TopologyError
from hopsum_wire import Drop, Kind

from ...support.memory import growth_kib
from ..soak.rig import WORKERS, Bench, bench, make_soak, next_job
from .live import Siege

DATAGRAMS = 4000 * int(os.environ.get("TEST_SCALE", "1"))
MEMORY_GROWTH_KIB = 16 << 10
SUMS = 4000
SMALL_MTU = 576
FROM_SOCKETS = {
    Drop.TRUNCATED, Drop.BAD_VERSION, Drop.BAD_KIND, Drop.BAD_FLAGS, Drop.BAD_OP, Drop.BAD_LENGTH,
    Drop.UNKNOWN_GENERATION,
    Drop.UNKNOWN_WORKER, Drop.WRONG_PORT, Drop.WRONG_SOURCE, Drop.BAD_SLOT, Drop.BAD_ROUND, Drop.BAD_VALUE,
    Drop.OP_MISMATCH,
}  # fmt: skip
"""The drop reasons that datagrams can have. A UDP port makes right IPv4 headers, the job has tables and no observer."""


@pytest.fixture(params=["whole", "fragments"])
def stage(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A switch on loopback; with `fragments` in a namespace where loopback cuts what is longer than 576 bytes."""
    with ExitStack() as stack:
        if request.param == "fragments":
            try:
                namespace = stack.enter_context(Namespace())
            except TopologyError as error:
                pytest.skip(f"network namespaces cannot be made here: {error}")
            namespace.ip("link", "set", "dev", "lo", "mtu", str(SMALL_MTU))
            stack.enter_context(namespace.inside())
        yield stack.enter_context(bench(WORKERS, 0.0, seed=1))


def test_a_switch_under_fire(stage: Bench) -> None:
    siege = Siege(stage, random.Random(8))
    siege.run(DATAGRAMS)
    unaccounted, possible = siege.unaccounted()
    assert 0 <= unaccounted <= possible
    dropped = {name for name, count in stage.controller.drop_counters().items() if count}
    assert dropped == {reason.name.lower() for reason in FROM_SOCKETS}
    assert growth_kib(siege.memory_kib)[0] < MEMORY_GROWTH_KIB
    assert [siege.probe(member).kind for member in stage.members] == [Kind.STATE] * WORKERS
    make_soak(next_job(stage), seed=8).run(SUMS)
    assert stage.switch.process.running()
    assert "Traceback" not in stage.switch.process.log_text()
