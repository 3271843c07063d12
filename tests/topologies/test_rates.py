# SPDX-License-Identifier: Apache-2.0
"""A link carries no more than its rate, each way: a fixed amount takes as long as that, by the interfaces' counters.

How long it takes at most is up to the machine, how long at least is not. So only the least is tested: what has passed
after t seconds is at most burst + rate * t, within 1 %.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from hopsum_topologies.description import HOST_INTERFACE, Link, Topology
from hopsum_topologies.mininet_network import bring_up
from hopsum_topologies.netns import Namespace
from hopsum_topologies.running_network import LinkTraffic, RunningNetwork, traffic
from hopsum_topologies.shaping import BURST_BYTES

pytestmark = pytest.mark.system
RATE_BPS, TOLERANCE = 2e7, 0.01
FRAME_BYTES, FRAMES = 1500, 1000
FRAME = b"\xff" * 6 + b"\x02" + bytes(5) + b"\x88\xb5" + bytes(FRAME_BYTES - 14)  # of no protocol that anybody speaks
BURSTS_BYTES = {"native": BURST_BYTES, "mininet": (15 << 10) + FRAME_BYTES}
"""Of tbf as we set it; of Mininet's htb, which may owe a frame."""
DEADLINE_S = 60.0
LINK = Link(("h1", "s1"), RATE_BPS)
ONE = Topology("one", summary="one link with a rate", hosts=("h1",), switches=("s1",), links=(LINK,))


def send(namespace: Namespace, interface: str) -> None:
    """Send all frames through an interface, as fast as its queue takes them."""
    with namespace.inside():
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with sender:
        sender.settimeout(DEADLINE_S)
        sender.bind((interface, 0))
        for _ in range(FRAMES):
            sender.send(FRAME)


def carried(network: RunningNetwork, there: bool) -> tuple[int, float]:
    """Send all frames one way over the link; return the bytes that it carried that way, and in how many seconds."""
    sender = (network.hosts["h1"], HOST_INTERFACE) if there else (network.home, ONE.interface("s1", LINK))
    before, start = traffic(network)[LINK], time.monotonic()
    send(*sender)
    while True:
        passed: LinkTraffic = traffic(network)[LINK].since(before)
        frames, size = passed[:2] if there else passed[2:]
        if frames >= FRAMES:
            return size, time.monotonic() - start
        assert time.monotonic() < start + DEADLINE_S, f"{frames} of {FRAMES} frames have passed"


@pytest.mark.parametrize("target", ["native", "mininet"], indirect=True)
def test_more_than_its_rate_does_not_pass_a_link(target: str, tmp_path: Path) -> None:
    least_s = (FRAMES * FRAME_BYTES - BURSTS_BYTES[target]) * 8 / RATE_BPS * (1 - TOLERANCE)
    with bring_up(ONE, target, tmp_path) as network:
        for there in (True, False):
            size, elapsed_s = carried(network, there)
            print(f"{target}: {size} bytes in {elapsed_s:.3f} s, {size * 8 / elapsed_s / 1e6:.2f} Mbit/s")
            assert size >= FRAMES * FRAME_BYTES
            assert elapsed_s >= least_s
