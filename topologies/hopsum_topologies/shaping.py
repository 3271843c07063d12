# SPDX-License-Identifier: Apache-2.0
"""Rate and delay of an interface: the kernel's tbf makes the rate, its netem the delay where there is netem."""

from __future__ import annotations

import subprocess
from typing import Final

from hopsum_topologies.description import Link, Topology
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.netns import Namespace

# A train of segments has 64 KiB at most.
BURST_BYTES: Final = 128 << 10
"""The size of the token bucket. The bucket must pass the largest train of segments that a kernel makes."""
# 17 ms at 1 Gbit/s.
QUEUE_BYTES: Final = 2 << 20
DELAYED_FRAMES: Final = 100_000
"""The number of frames that netem delays at a time. netem drops more frames. Its default of 1000 frames is 10 ms of
1 Gbit/s."""
_TC_TIMEOUT_S: Final = 20.0


def tc(namespace: Namespace, *arguments: str) -> str:
    """Run `tc -n NAMESPACE ARGUMENTS`. Return its output. Raises TopologyError: tc fails, is missing or takes 20 s."""
    try:
        command = ("tc", "-n", namespace.name, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TC_TIMEOUT_S, check=False)
    except OSError as error:
        raise TopologyError(f"the `tc` command cannot be run: {error}; install iproute2") from error
    except subprocess.TimeoutExpired as error:
        raise TopologyError(f"`tc {' '.join(arguments)}` did not end in {_TC_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        raise TopologyError(f"`tc {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout


def netem_unavailable() -> str | None:
    """Return the reason why this kernel cannot delay frames, None if it can. Tries it in a namespace."""
    try:
        with Namespace() as trial:
            tc(trial, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except TopologyError as error:
        return str(error)
    return None


def require_delay_support(topology: Topology) -> None:
    """Raise TopologyError, with the names of the links that have a delay, unless this kernel can make delays."""
    delayed = [link for link in topology.links if link.delay_s]
    if delayed and (reason := netem_unavailable()) is not None:
        shown = ", ".join(f"{link} (delay_s {link.delay_s:g})" for link in delayed)
        raise TopologyError(
            f"topology {topology.name!r}: delay of {shown} needs netem, which does not work here: {reason}; "
            "describe these links without a delay, or use a kernel with sch_netem"
        )


def shape_interface(namespace: Namespace, interface: str, link: Link) -> None:
    """Give an interface's outgoing frames the link's rate and delay, not its loss. Call it once for an interface.

    Raises TopologyError when the kernel refuses, as for an interface that has a rate or delay already.
    """
    parent = ["root"]
    if link.delay_s:
        delay = ("netem", "limit", str(DELAYED_FRAMES), "delay", f"{link.delay_s * 1e6:.0f}us")
        tc(namespace, "qdisc", "add", "dev", interface, *parent, "handle", "1:", *delay)
        # tbf becomes the child of netem, which hands a frame on after the delay.
        parent = ["parent", "1:1"]
    if link.rate_bps is not None:
        rate = ("tbf", "rate", f"{link.rate_bps:.0f}bit", "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES))
        tc(namespace, "qdisc", "add", "dev", interface, *parent, *rate)
