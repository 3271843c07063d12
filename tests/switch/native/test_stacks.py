# SPDX-License-Identifier: Apache-2.0
"""Header stacks and unions: machine code against the interpreter, on random calls and frames."""

from __future__ import annotations

import random

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.state.multicast import Replica

from ..core import test_unions
from ..core.builder import Json, assign, expression, field, hexstr, primitive
from ..core.test_stacks import COUNT, OTHER, SIZE, calls_of, frame, random_calls, stacking
from .agreement import Pair, mutate


def multicast_if(value: Json) -> Json:
    """Send frames with an odd value to a group: what egress does to one copy must not show in the next."""
    return assign(field("standard_metadata", "mcast_grp"), expression("&", value, hexstr(1)))


def replicate(engine: Engine) -> None:
    engine.multicast.insert(1, [Replica(port, port) for port in range(4)])


@pytest.mark.parametrize("seed", range(6))
def test_stacks_agree(seed: int) -> None:
    rng = random.Random(seed)
    builder = stacking()
    last = {"type": "stack_field", "value": ["s", "value"]}
    builder.primitives += [
        *calls_of(random_calls(rng)),
        assign(field("scalars", "m"), expression("size_stack", None, COUNT)),
        assign(field("standard_metadata", "egress_spec"), field("scalars", "m")),
        multicast_if(field("scalars", "m")),
    ]
    builder.egress_primitives += [
        assign(field("h", "b"), last),
        *calls_of(random_calls(rng)),
        primitive("assign_header_stack", COUNT, OTHER),
        *calls_of(random_calls(rng)),
    ]
    pair = Pair(builder.load())
    pair.both(replicate)
    starts = [frame(*(rng.randrange(128) for _ in range(n)), rest=b"rest") for n in range(1, SIZE + 3)]
    sent = sum(len(pair.process(0, mutate(rng.choice(starts), rng))) for _ in range(300))
    assert sent > 100
    pair.process_batch([(0, mutate(rng.choice(starts), rng)) for _ in range(300)])


@pytest.mark.parametrize("seed", range(4))
def test_unions_agree(seed: int) -> None:
    rng = random.Random(seed)
    builder = test_unions.uniting()
    builder.primitives += [*test_unions.calls_of(test_unions.random_calls(rng)), multicast_if(field("h", "b"))]
    builder.egress_primitives += test_unions.calls_of(test_unions.random_calls(rng))
    pair = Pair(builder.load())
    pair.both(replicate)
    sent = sum(len(pair.process(0, mutate(b"\0\0\x55rest", rng))) for _ in range(200))
    assert sent > 100
