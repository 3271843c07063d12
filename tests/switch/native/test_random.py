# SPDX-License-Identifier: Apache-2.0
"""random(): the published stream, the same numbers in both back ends, every value equally often."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.program import ProgramIR
from hopsum_switch.state.randomness import RandomStream

from ..core.builder import assign, build, expression, field, hexstr, primitive
from .agreement import Pair

pytestmark = pytest.mark.system
TOP = 2**64 - 1
SPEC = field("standard_metadata", "egress_spec")


def test_the_stream_is_splitmix64() -> None:
    stream = RandomStream(1234567)  # test vector of the generator's public reference implementation
    assert [stream.draw(0, TOP) for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize("span", [0, 1, 2, 5, 6, 99, 255])
def test_every_value_is_equally_likely(span: int) -> None:
    stream, draws = RandomStream(7), 2000 * (span + 1)
    counts = Counter(stream.draw(1000, 1000 + span) for _ in range(draws))
    assert set(counts) == set(range(1000, 1001 + span))
    # Six standard deviations of a binomial with mean 2000.
    assert all(abs(count - 2000) < 6 * 2000**0.5 for count in counts.values())


def loss_program() -> ProgramIR:
    """The frame's words are the bounds of two draws; a third draw drops a quarter of the frames."""
    builder = build(("low", 64), ("high", 64), ("small", 8), ("wide", 72), ("signed", 16, True))
    draw = "modify_field_rng_uniform"
    builder.primitives += [
        primitive(draw, field("h", "small"), field("h", "low"), field("h", "high")),
        primitive(draw, field("h", "wide"), field("h", "low"), field("h", "high")),
        primitive(draw, field("h", "signed"), hexstr(2**14), hexstr(2**15 + 9)),
        primitive(draw, field("scalars", "m"), hexstr(1), hexstr(4)),
        primitive(draw, field("scalars", "n"), hexstr(0), hexstr(2**80)),
        assign(SPEC, hexstr(511)),
        primitive("_jump_if_zero", expression("-", field("scalars", "m"), hexstr(4)), hexstr(8)),
        assign(SPEC, hexstr(1)),
    ]
    builder.egress_primitives.append(primitive(draw, field("h", "low"), hexstr(0), hexstr(TOP)))
    return builder.load()


def test_both_back_ends_draw_the_same_numbers() -> None:
    rng = random.Random(5)
    bounds = [0, 1, 2, 3, 5, 127, 128, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**63 + 1, TOP - 1, TOP]

    def frame() -> bytes:
        low, high = rng.choice(bounds), rng.choice(bounds)
        return low.to_bytes(8, "big") + high.to_bytes(8, "big") + rng.randbytes(12)

    program = loss_program()
    for seed in (0, 1, TOP):
        pair = Pair(program, seed=seed)
        sent = sum(len(pair.process(0, frame())) for _ in range(600))
        assert 0 < sent < 600
        pair.process_batch([(0, frame()) for _ in range(600)])
        first = [pair.process(0, frame) for frame in [bytes(28)] * 3]
        pair.reset()
        pair.process_batch([(0, frame()) for _ in range(50)])
        pair.reset()
        assert [pair.process(0, frame) for frame in [bytes(28)] * 3] != first


@pytest.mark.parametrize("backend", list(Backend))
def test_the_seed_reaches_the_engine(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = loss_program()
    frame = bytes(8) + TOP.to_bytes(8, "big") + bytes(12)
    runs = []
    for seed in (3, 3, 4):
        engine = engine_maker(backend, seed=seed)(program)
        runs.append([engine.process(0, frame) for _ in range(10)])
    assert runs[0] == runs[1] != runs[2]
