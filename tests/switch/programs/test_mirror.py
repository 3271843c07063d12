# SPDX-License-Identifier: Apache-2.0
"""The tap program: clones of the packet as it came and as it leaves, with the metadata they keep, and random()."""

from __future__ import annotations

import random
from collections.abc import Callable

from hopsum_switch.engine import Engine
from hopsum_switch.state.copies import PortCopy

SAMPLES, AUDITS = 5, 6
NOISE = 2  # its byte in an item
NOISES = range(10, 18)


def item(sample: int, audit: int, noise: int, hops: int, tag: int) -> bytes:
    return bytes([sample, audit, noise, hops]) + tag.to_bytes(2, "big")


def report(replica: PortCopy, kind: int, port: int, tag: int) -> tuple[int, bytes]:
    return replica.port, bytes([replica.instance, kind]) + port.to_bytes(2, "big") + (tag % 2**16).to_bytes(2, "big")


def answer(
    port: int, fields: tuple[int, int, int, int, int], rest: bytes, noise: int, sessions: dict[int, list[PortCopy]]
) -> list[tuple[int, bytes]]:
    """What the program does for a given random number, written from its description."""
    sample, audit, _, hops, tag = fields
    left = item(sample, audit, noise, (hops + 2) % 256, tag) + rest
    outputs = []
    if sample:
        for replica in sessions.get(SAMPLES, []):
            to, front = report(replica, 1, port, tag + 1)
            outputs.append((to, front + item(*fields) + rest))
    outputs.append((port ^ 3, left))
    if audit:
        for replica in sessions.get(AUDITS, []):
            to, front = report(replica, 2, port, tag + 2)
            outputs.append((to, front + left))
    return outputs


def random_case(rng: random.Random) -> tuple[int, tuple[int, int, int, int, int], bytes]:
    fields = (rng.randrange(2), rng.randrange(2), 0, rng.randrange(256), rng.choice([0, 1, 65534, 65535]))
    return rng.choice([1, 2]), fields, rng.randbytes(rng.randrange(30))


def test_random_frames_equal_the_model(engine_of: Callable[[str], Engine]) -> None:
    engine, rng = engine_of("mirror"), random.Random(6)
    sessions = {SAMPLES: [PortCopy(7, 1), PortCopy(8, 2)], AUDITS: [PortCopy(9, 3)]}
    engine.clones.insert(SAMPLES, sessions[SAMPLES])
    noises = []
    for step in range(400):
        if step == 200:
            engine.clones.insert(AUDITS, sessions[AUDITS])
        known = sessions if step >= 200 else {SAMPLES: sessions[SAMPLES]}
        port, fields, rest = random_case(rng)
        outputs = engine.process(port, item(*fields) + rest)
        noise = next(output.frame[NOISE] for output in outputs if output.port == port ^ 3)
        assert outputs == answer(port, fields, rest, noise, known)
        noises.append(noise)
    assert set(noises) == set(NOISES)


def test_frames_without_an_item_are_dropped(engine_of: Callable[[str], Engine]) -> None:
    assert engine_of("mirror").process(1, b"short") == []
