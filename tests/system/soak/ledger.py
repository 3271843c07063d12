# SPDX-License-Identifier: Apache-2.0
"""The account of a soak: every datagram that was sent is found again, as delivered or as lost, and where.

of every port       sent by its member = received + dropped by the kernel (socket buffer full)
                    sent by the port   = received by its member + dropped by the kernel
of the way in       received by ports  = SIMULATED + added + duplicate + answered + stale;  no other drop
of the way out      RESULTs and STALEs = sent by ports + lost by the simulator
of the losses       as far from the set probability as chance allows (Hoeffding)
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...support.memory import growth_kib
from .rig import CHUNKS, WORKERS, Soak

QUIET_S = 60.0
POLL_S = 0.02


@dataclass(frozen=True)
class Ledger:
    """The figures of a soak that ended."""

    rounds: int
    sent: int
    again: int
    """Of `sent`: retransmissions."""
    received: int
    kernel_drops: int
    lost_in: int
    lost_out: int
    replies: int
    """Frames that the program wanted to send."""
    asked: int
    """Results that came from peers."""
    events: dict[str, int]
    contributors: dict[int, int]
    memory_kib: list[int]

    def lines(self) -> list[str]:
        """Return the figures in words."""
        groups = ", ".join(f"{ranks:04b}: {rounds:,}" for ranks, rounds in sorted(self.contributors.items()))
        grown, at_tenth = growth_kib(self.memory_kib)
        return [
            f"rounds             {self.rounds:,}, compared on {WORKERS} workers",
            f"sent by workers    {self.sent:,}, of these {self.again:,} again",
            f"received by them   {self.received:,}",
            f"lost on the way in {self.lost_in:,} of {self.sent - self.kernel_drops:,}, on the way out "
            f"{self.lost_out:,} of {self.replies:,}; in full socket buffers {self.kernel_drops:,}",
            f"events             {', '.join(f'{name} {count:,}' for name, count in self.events.items())}",
            f"contributors       {groups}",
            f"results from peers {self.asked:,}",
            f"switch memory      {at_tenth:,} KiB after a tenth, from then on at most {grown:+,} KiB",
        ]


def bound(draws: int, probability_of_alarm: float = 1e-9) -> float:
    """Return how far from its mean the count of `draws` draws may be, by Hoeffding."""
    return math.sqrt(draws * math.log(2 / probability_of_alarm) / 2)


def close(soak: Soak, loss: float) -> Ledger:
    """Wait until nothing is under way, and balance the account; AssertionError says what does not fit."""
    bench = soak.bench
    ports = _quiet(soak)
    drops, lost = bench.controller.drop_counters(), bench.controller.loss_counters()
    events = bench.controller.job_counters(bench.job)
    received = {port: shown["received"] for port, shown in ports.items()}
    lost_in, lost_out = (sum(way) for way in zip(*lost.values(), strict=True)) if lost else (0, 0)
    replies = WORKERS * events["completed"] + events["answered"] + events["stale"]
    assert {name for name, count in drops.items() if count} <= {"simulated"}, drops
    assert drops["simulated"] == lost_in
    arrived = sum(events[name] for name in ("added", "duplicate", "answered", "stale"))
    assert sum(received.values()) == lost_in + arrived, (received, lost, events)
    assert (events["fault"], events["probed"]) == (0, 0), events
    assert events["completed"] == soak.settled * CHUNKS, (events, soak.settled)
    sent_by_ports = {port: shown["sent"] for port, shown in ports.items()}
    assert replies == sum(sent_by_ports.values()) + lost_out, (ports, lost, events)
    for port, (in_, out) in lost.items():
        assert abs(in_ - loss * received[port]) <= bound(received[port]), (port, in_, received[port])
        wanted = sent_by_ports[port] + out
        assert abs(out - loss * wanted) <= bound(wanted), (port, out, wanted)
    statistics = [member.worker.statistics for member in bench.members]
    assert not any(each.ignored or each.probes for each in statistics), statistics
    return Ledger(
        rounds=soak.settled * CHUNKS,
        sent=sum(member.sent for member in bench.members),
        again=sum(each.retransmits for each in statistics),
        received=sum(member.received for member in bench.members),
        kernel_drops=sum(member.sent for member in bench.members) - sum(received.values()),
        lost_in=lost_in,
        lost_out=lost_out,
        replies=replies,
        asked=sum(member.asked for member in bench.members),
        events=events,
        contributors=soak.contributors,
        memory_kib=soak.memory_kib,
    )


def _quiet(soak: Soak) -> dict[int, dict[str, Any]]:
    """Wait until every datagram has arrived or is known as dropped; return the switch's ports."""
    give_up = time.monotonic() + QUIET_S
    while True:
        for member in soak.bench.members:
            while member.receive():
                pass
        ports = soak.bench.management.list_ports()
        dropped = kernel_drops()
        missing = []
        for member in soak.bench.members:
            port = ports[member.rank + 1]
            switch_udp = int(port["address"].rpartition(":")[2])
            missing.append(member.sent - port["received"] - dropped.get(switch_udp, 0))
            missing.append(port["sent"] - member.received - dropped.get(member.address[1], 0))
            assert not port["dropped"], port
        if not any(missing):
            return ports
        assert time.monotonic() < give_up, f"datagrams unaccounted for, by rank and direction: {missing}"
        time.sleep(POLL_S)


def kernel_drops() -> dict[int, int]:
    """Return what the kernel dropped for want of buffer, by local UDP port, where this thread is."""
    rows = [line.split() for line in Path("/proc/thread-self/net/udp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16): int(row[-1]) for row in rows}
