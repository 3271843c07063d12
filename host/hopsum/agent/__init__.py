# SPDX-License-Identifier: Apache-2.0
"""Sums float32 vectors over all workers of a job, through its switch.

agent             `Agent`, the communicator at a switch
allreduce_engine  codecs, futures, failures, and the order of phases, the same on all ranks; one thread at a time
network           the transport from one generation to the next, and the watch over what does not come
shards            an agent's transports to several switches
stats_recorder    counts of all-reduces: times, codes by op, quantisation error; heartbeats carry them
"""

from __future__ import annotations

from hopsum.agent.agent import MEMBERSHIP_WAIT_S, TIMING, Agent

__all__ = ["MEMBERSHIP_WAIT_S", "TIMING", "Agent"]
