# SPDX-License-Identifier: Apache-2.0
"""Programs and frames for the tests of observers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from hopsum_controlplane.artifacts import compiled_program
from hopsum_switch.engine import Engine
from hopsum_switch.interp.observer import Observer
from hopsum_switch.program import load_program
from hopsum_switch.program.ir import ProgramIR
from hopsum_switch.state.copies import PortCopy
from hopsum_switch.state.entry_lookup import Exact, Lpm

SWITCH_TESTS = Path(__file__).resolve().parents[1]
STATION_PATH = SWITCH_TESTS / "server" / "program" / "station.json"
STATION = load_program(STATION_PATH.read_text())
PROGRAMS = ("firewall", "mirror", "rounds", "router")
PATHS = [
    STATION_PATH,
    *(SWITCH_TESTS / "programs" / name / f"{name}.json" for name in PROGRAMS),
    compiled_program()[0],
]


def station(observer: Observer | None = None, program: ProgramIR = STATION) -> Engine:
    """Return a station: address 5 is at port 2, address 6 is flooded to ports 1 and 3, 10.0.0.0/8 is at port 3."""
    engine = Engine(program, observer=observer)
    engine.tables["StationIngress.l2"].insert([Exact(5)], "StationIngress.forward", [2])
    engine.tables["StationIngress.l2"].insert([Exact(6)], "StationIngress.flood", [9])
    engine.tables["StationIngress.routes"].insert([Lpm(10 << 24, 8)], "StationIngress.forward", [3])
    engine.multicast.insert(9, [PortCopy(1, 7), PortCopy(3, 8)])
    return engine


def frame(destination: int, kind: int = 0x1234, payload: bytes = b"") -> bytes:
    """Return an Ethernet frame from address 1."""
    return destination.to_bytes(6, "big") + (1).to_bytes(6, "big") + kind.to_bytes(2, "big") + payload


def ipv4(destination: int, address: str) -> bytes:
    """Return an Ethernet frame with an IPv4 header."""
    return frame(destination, 0x0800, bytes(16) + bytes(map(int, address.split("."))))


def frames(seed: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield ports and frames, some of them meant for the station, some cut."""
    rng = random.Random(seed)
    for _ in range(count):
        kind = rng.choice((0x0800, 0x0806, 0x88CC, 0x1234))
        whole = frame(rng.randrange(4, 9), kind, rng.randbytes(rng.choice((0, 20, 200))))
        yield rng.choice((0, 1, 2, 510)), whole[: rng.choice((5, 16, len(whole), len(whole)))]
