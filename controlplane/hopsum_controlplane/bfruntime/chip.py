# SPDX-License-Identifier: Apache-2.0
"""Facts of the two chips, and the set-up in addition to a program: ports, queues and slots of loop ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hopsum_controlplane.bfruntime.bfrt_encoding import Value
from hopsum_controlplane.entries import TableEntry
from hopsum_controlplane.errors import ControlPlaneError

SLOT_GROUPS: Final = 64
"""Groups of slots that the program's table `loop` tells apart, by the low bits of a slot's number."""
QUEUE_DECIDED, QUEUE_UNDECIDED = 0, 1
"""Queues of a loop port (p4/tna/pass.p4). The first must be served first, and drop nothing."""
_PIPE_BITS: Final = 7
_TURN_S: Final = 1e-6
"""The time that a turn through a loop port is taken to need."""
_SMALLEST_BYTES, _LARGEST_BYTES = 77, 1069
"""Sizes of the program's frames inside the switch, once they are decided."""
_FRONT_BYTES: Final = 586 + 24
"""A contribution under LOOKUP_ADD8 on its link, with preamble, checksum and gap."""
_ADMITTED_BYTES, _PASS_BYTES = 599, 301
"""Bytes of a contribution through its loop port: once, and for each consuming pass (docs/tofino.md, rate)."""
_FEC: Final = {10: "BF_FEC_TYP_NONE", 40: "BF_FEC_TYP_NONE"}
"""Forward error correction by Gbit/s, as the optics of that speed mostly want. Reed-Solomon at all others."""


@dataclass(frozen=True)
class TofinoFacts:
    """One of the two chips.

    `loop_gbps` has the internal ports that the program can loop through (LOOP_PORTS of p4/tna/target.p4), the default
    one first. `recirculating` are those of them that need no set-up: the chip has them in loopback. `lane_gbps` is the
    most that one lane of a port takes. `passes` are the consuming passes of a packet with the program as it is built.
    """

    name: str
    loop_gbps: Mapping[int, int]
    recirculating: frozenset[int]
    speeds_gbps: tuple[int, ...]
    lane_gbps: int
    cell_bytes: int
    passes: int

    def check_ports(self, ports: Iterable[int]) -> None:
        """Raise ControlPlaneError for the first of these worker ports that is a loop port.

        The program takes a frame from a loop port for one that the program itself sent there.
        """
        loops = ", ".join(map(str, self.loop_gbps))
        for port in ports:
            if port in self.loop_gbps:
                hint = f"workers use front ports of any pipe; loop ports are {loops}"
                raise ControlPlaneError(f"port {port} is one that the program loops through", hint=hint)

    def check_loop_ports(self, ports: tuple[int, ...]) -> None:
        """Raise ControlPlaneError unless all ports are loop ports of the chip, each named once."""
        loops = ", ".join(map(str, self.loop_gbps))
        for port in ports:
            if port not in self.loop_gbps:
                raise ControlPlaneError(f"loop port {port}", hint=f"the program for {self.name} loops through {loops}")
        if len(set(ports)) < len(ports):
            raise ControlPlaneError(f"loop ports {', '.join(map(str, ports))}", hint="name each once")

    def check_speeds(self, speeds_gbps: Mapping[int, int]) -> None:
        """Raise ControlPlaneError for the first speed that a port of the chip does not have."""
        for port, speed in speeds_gbps.items():
            if speed not in self.speeds_gbps:
                known = ", ".join(map(str, self.speeds_gbps))
                raise ControlPlaneError(f"port {port} with {speed} Gbit/s", hint=f"{self.name} has {known}")

    def used_loop_ports(self, loop_ports: tuple[int, ...]) -> tuple[int, ...]:
        """Return `loop_ports`, or the chip's first loop port if it is empty."""
        return loop_ports or tuple(self.loop_gbps)[:1]

    def carried_gbps(self, loop_ports: tuple[int, ...]) -> float:
        """Return the highest total rate in Gbit/s of workers' contributions that the loop ports carry.

        The results that go back are not counted.
        """
        groups = Counter(spread_slot_groups(self, loop_ports))
        loops_gbps = min(self.loop_gbps[port] * SLOT_GROUPS / count for port, count in groups.items())
        return loops_gbps * _FRONT_BYTES / (_ADMITTED_BYTES + _PASS_BYTES * self.passes)

    def overload_warning(self, speeds_gbps: Mapping[int, int], loop_ports: tuple[int, ...]) -> str | None:
        """Return the text of a warning if front ports can bring more than loop ports carry, else None. Logs nothing.

        This is no error: packets beyond the rate are lost before they are decided, and workers send them again.
        """
        brought, carried = sum(speeds_gbps.values()), self.carried_gbps(loop_ports)
        if brought <= carried:
            return None
        used = self.used_loop_ports(loop_ports)
        unused = ", ".join(str(port) for port in self.loop_gbps if port not in used)
        advice = f"add loop_ports of pipes that the chip has: {unused}" if unused else "there are no more loop ports"
        return (
            f"front ports bring up to {brought} Gbit/s of contributions, loop ports {', '.join(map(str, used))} carry "
            f"{carried:.0f}: what is too much is lost, and sent again; {advice}"
        )


TOFINO: Final = TofinoFacts(
    "tofino",
    dict.fromkeys((68, 192, 196, 324, 448, 452), 100),
    frozenset({68, 196, 324, 452}),
    (10, 25, 40, 50, 100),
    25,
    80,
    passes=8,
)
TOFINO2: Final = TofinoFacts(
    "tofino2",
    {6: 100, 128: 400, 256: 400, 384: 400},
    frozenset({6}),
    (10, 25, 40, 50, 100, 200, 400),
    50,
    176,
    passes=4,
)
CHIPS: Final = {"tna": TOFINO, "t2na": TOFINO2}
"""Chips by the architecture that a P4Info names."""


@dataclass(frozen=True)
class ChipSetup:
    """The set-up in addition to the program: the ports that slots loop through, and the speeds of front ports.

    A front port without a speed is left to the operator. Without loop ports the chip's first one is used.
    """

    loop_ports: tuple[int, ...] = ()
    speeds_gbps: Mapping[int, int] = field(default_factory=dict)

    def text(self) -> str:
        """Return the set-up as text, a part of the program's cookie."""
        return repr((self.loop_ports, sorted(self.speeds_gbps.items())))


def pipe_of(port: int) -> int:
    """Return the pipe of a device port."""
    return port >> _PIPE_BITS


def spread_slot_groups(chip: TofinoFacts, loop_ports: tuple[int, ...]) -> list[int]:
    """Return the loop port of each of SLOT_GROUPS groups of slots, in proportion to the ports' speeds."""
    ports = chip.used_loop_ports(loop_ports)
    given = dict.fromkeys(ports, 0)
    chosen = []
    for _ in range(SLOT_GROUPS):
        port = min(ports, key=lambda each: ((given[each] + 1) / chip.loop_gbps[each], ports.index(each)))
        given[port] += 1
        chosen.append(port)
    return chosen


def loop_entries(chip: TofinoFacts, loop_ports: tuple[int, ...]) -> list[TableEntry]:
    """Build the entries of the table `loop`, in their order. The last one is the sign of a complete set-up."""
    ports = enumerate(spread_slot_groups(chip, loop_ports))
    return [TableEntry("loop", {"slot_bits": number}, "loop_through", {"port": port}) for number, port in ports]


def port_data(chip: TofinoFacts, speed_gbps: int, *, loop: bool = False) -> dict[str, Value]:
    """Build the data of an entry of `$PORT` that enables a front port, or with `loop` a port in loopback."""
    data: dict[str, Value] = {
        "$SPEED": f"BF_SPEED_{speed_gbps}G",
        "$FEC": "BF_FEC_TYP_NONE" if loop else _FEC.get(speed_gbps, "BF_FEC_TYP_RS"),
        "$N_LANES": max(1, -(-speed_gbps // chip.lane_gbps)) if speed_gbps != 40 else 4,
        "$PORT_ENABLE": True,
    }
    return data | ({"$LOOPBACK_MODE": "BF_LPBK_MAC_NEAR"} if loop else {})


def guaranteed_cells(chip: TofinoFacts, port: int) -> int:
    """Return the room of a loop port's queue of decided packets, in cells (docs/tofino.md).

    A turn's worth of the smallest frames may all grow to the largest. A frame begins a cell of its own.
    """
    frames = -(-int(chip.loop_gbps[port] * 1e9 / 8 * _TURN_S) // _SMALLEST_BYTES)
    return frames * -(-_LARGEST_BYTES // chip.cell_bytes)
