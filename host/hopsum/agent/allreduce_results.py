# SPDX-License-Identifier: Apache-2.0
"""The results of a communicator: all-reduce results, counts, spans of time, and its own error."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import add, attrgetter, sub
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hopsum.errors import HopsumError
from hopsum.transport.shard import TransportStatistics
from hopsum_wire import Op
from hopsum_wire._layout import ETHERNET_BYTES, IPV4_BYTES, UDP_BYTES
from hopsum_wire.watch.heartbeat import LATENCY_BOUNDS_S, WORKER_COUNTS, codes_name, latency_name


class CommunicatorClosedError(HopsumError):
    """The communicator was closed before this all-reduce had a result, or before its submission."""


class SocketTraffic(NamedTuple):
    """Datagrams at this worker's socket, in both directions."""

    datagrams_sent: int = 0
    datagrams_received: int = 0
    retransmits: int = 0
    """The repetitions among those sent."""
    bytes_sent: int = 0
    """UDP payload."""
    bytes_received: int = 0
    probes: int = 0
    """The PROBEs among the datagrams sent."""

    @property
    def interface_bytes_sent(self) -> int:
        """Return bytes sent with their Ethernet, IPv4 and UDP headers."""
        return self.bytes_sent + self.datagrams_sent * (ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES)

    @property
    def interface_bytes_received(self) -> int:
        """Return bytes received with their Ethernet, IPv4 and UDP headers."""
        return self.bytes_received + self.datagrams_received * (ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES)

    @classmethod
    def of(cls, *statistics: TransportStatistics) -> SocketTraffic:
        """Return the sum of the counts of transports or shards. All are 0 without arguments."""
        total = (0,) * len(cls._fields)
        for each in statistics:
            link = each.link
            sent, received = link.datagrams_sent, link.datagrams_received
            worker = each.worker
            counts = sent, received, worker.retransmits, link.bytes_sent, link.bytes_received, worker.probes
            total = tuple(map(add, total, counts))
        return cls._make(total)

    def __sub__(self, earlier: SocketTraffic) -> SocketTraffic:
        return SocketTraffic._make(map(sub, self, earlier))


@dataclass(slots=True)
class CommunicatorStatistics:
    """Counts of a communicator since it was made. `Communicator.statistics` returns a copy, which nothing changes."""

    allreduces: int = 0
    """The all-reduces that came to an end on all ranks alike, skipped ones included."""
    skipped: int = 0
    """The all-reduces without a mean: some rank's vector was not finite, or the codec could not recover it."""
    elements: int = 0
    seconds: float = 0.0
    """Summed over all-reduces, from the codec's first look at the vector to its mean. They may overlap."""
    traffic: SocketTraffic = field(default_factory=SocketTraffic)
    fetches: int = 0
    """Results that peers were asked for."""
    repaired: int = 0
    """The results among them that came from a peer."""
    failed_sends: Mapping[str, int] = field(default_factory=dict)
    """System calls that failed, by the errno's name. Their datagrams were lost, and sent again."""
    peers_refused: Mapping[str, int] = field(default_factory=dict)
    """Connections to the side channel that were closed for cause, by reason. "forged": the peer lacks the key."""
    within: tuple[int, ...] = (0,) * len(LATENCY_BOUNDS_S)
    """The numbers of all-reduces that took no longer than each of LATENCY_BOUNDS_S, in their order."""
    codes: dict[Op, int] = field(default_factory=dict)
    """Lanes of which the sums are here, by op, bits for OR."""
    steps: int = 0
    """The training steps that a hook noted (`Communicator.note_step`)."""
    step_seconds: float = 0.0
    """Summed over these steps."""
    wait_seconds: float = 0.0
    """The part of these in which steps waited for all-reduces and computed nothing."""
    error_squares: float = 0.0
    """The summed squares of a sample of the residuals that all-reduces left in error feedbacks (vector.py)."""
    vector_squares: float = 0.0
    """The summed squares of the same sample of the vectors to be sent: gradient and earlier residual."""
    local_ranks: int = 1
    """The ranks of this host that are one worker of the job (`local_group`). Only their leader has traffic."""

    def count(self, elements: int, seconds: float, *, skipped: bool) -> None:
        """Count an all-reduce that ended on all ranks alike: with a mean, or `skipped`."""
        self.allreduces += 1
        self.skipped += skipped
        self.elements += elements
        self.seconds += seconds
        late = bisect_left(LATENCY_BOUNDS_S, seconds)
        self.within = (*self.within[:late], *[count + 1 for count in self.within[late:]])

    def copy(self, **changed: Any) -> Self:
        """Return a copy with other values of some fields. Any thread."""
        return replace(self, codes=dict(self.codes), **changed)


def heartbeat_counts(counted: CommunicatorStatistics) -> Mapping[str, float]:
    """Return the counts that an agent's heartbeats carry, by the names of `hopsum_wire.watch.heartbeat`."""
    return {
        **{count.name: attrgetter(count.field)(counted) for count in WORKER_COUNTS},
        **{latency_name(bound_s): count for bound_s, count in zip(LATENCY_BOUNDS_S, counted.within, strict=True)},
        **{codes_name(op): lanes for op, lanes in counted.codes.items()},
    }


@dataclass(frozen=True, slots=True)
class AllReduceResult:
    """The mean of one vector over the workers that took part. It has the same bytes on all ranks."""

    mean: NDArray[np.float32]
    """float32[elements], the caller's: `out` if that was given, or a new array of NaN if skipped.

    A tensor on its device where such a vector was submitted (`hopsum.torch.device_reduction`).
    """
    contributors: NDArray[np.uint64]
    """[chunks of the codec's last phase], bitmap of the workers in each chunk's sum. It is empty if skipped."""
    skipped: bool
    """Some rank's vector was not finite: no rank has a mean, error feedback is as it was before."""
    traffic: SocketTraffic
    """The traffic at the socket since the end of the previous all-reduce. If all-reduces overlap, it includes phases of
    the next one."""
    seconds: float
    """The seconds from the codec's first look at the vector to its mean, on this rank."""


class Span(NamedTuple):
    """A span of time in one stage of an all-reduce. Times are those of `time.perf_counter`."""

    number: int
    """The number of the all-reduce in its agent, from 0."""
    stage: str
    """"prepare", "encode" or "decode" in the codec, "network " and the op from submission to the last result."""
    start_s: float
    stop_s: float
