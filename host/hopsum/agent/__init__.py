# SPDX-License-Identifier: Apache-2.0
"""The handles by which a program sums float32 vectors over the ranks of a job, and the agent that does so at a switch.

communicator         `Communicator`: submit, allreduce, close, and the states of a communicator
agent                `Agent`, the communicator at a switch
agent_generations    an agent's view of the generations: newcomers, and replaced ranks
allreduce_engine     the schedule of codec and network, and the ends after a failure; one thread at a time
phase_codec          the payloads of the next phases, and the sums that reductions take
task_ends            futures, and error feedback of all-reduces that end
agent_failure        the error that ends an agent, and the error of all-reduces after it
driver               the thread that runs the engine, and its waits
phase_order          the next phase in the stream, and its failure
phases_in_flight     the phases in the stream, and the meaning of their events
progress             log lines about missing results
shards               an agent's transports to several switches
vector               a submitted vector, in numpy's memory or on a device
task                 the state of a vector from submission to the end of its future
signature            the facts about a call that all ranks need in common
allreduce_results    results, spans of time, and counts: times, codes by op, quantisation error; heartbeats carry them

Communicators without a switch are in `hopsum.serial`.
"""

from __future__ import annotations

from hopsum.agent.agent import MEMBERSHIP_WAIT_S, TIMING, Agent
from hopsum.agent.allreduce_results import (
    AllReduceResult,
    CommunicatorClosedError,
    CommunicatorStatistics,
    SocketTraffic,
    Span,
)
from hopsum.agent.communicator import Communicator
from hopsum.agent.signature import MismatchError
from hopsum.agent.vector import HostVector, Vector

__all__ = [
    "MEMBERSHIP_WAIT_S",
    "TIMING",
    "Agent",
    "AllReduceResult",
    "Communicator",
    "CommunicatorClosedError",
    "CommunicatorStatistics",
    "HostVector",
    "MismatchError",
    "SocketTraffic",
    "Span",
    "Vector",
]
