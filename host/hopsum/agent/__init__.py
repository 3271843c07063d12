# SPDX-License-Identifier: Apache-2.0
"""Sums float32 vectors over all workers of a job, through its switch.

agent        `Agent`, the communicator at a switch
engine       its thread: codecs, order, futures, failures
order        which phase is next in the stream, the same on all ranks
network      the thread that has the socket
generations       its view of newcomers
stats_recorder  counts of all-reduces: times, codes by op, quantisation error; what heartbeats carry
timeline     spans of time, drawn
"""

from __future__ import annotations

from hopsum.agent.agent import MEMBERSHIP_WAIT_S, TIMING, Agent

__all__ = ["MEMBERSHIP_WAIT_S", "TIMING", "Agent"]
