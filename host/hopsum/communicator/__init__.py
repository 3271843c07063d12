# SPDX-License-Identifier: Apache-2.0
"""The handle by which a program sums vectors over the ranks of a job, whatever adds them.

communicator       `Communicator`: submit, allreduce, close, and the states of a communicator
serial             `SerialCommunicator`: one all-reduce after the other; a subclass has only to agree, sum and leave
vector             a submitted vector where it lies: in numpy's memory, or elsewhere
task               its way from submission to the end of its future
signature          the facts about a call that all ranks need to have in common
allreduce_results  results, counts and spans of time; why a program ended before its work was done

Three kinds exist: `hopsum.agent.Agent` at a switch, `hopsum.memory` in one process,
`hopsum.connection.collective` over a process group of torch.
"""

from __future__ import annotations

from hopsum.communicator.allreduce_results import (
    AllReduceResult,
    CommunicatorClosedError,
    CommunicatorStatistics,
    SocketTraffic,
    Span,
)
from hopsum.communicator.communicator import Communicator
from hopsum.communicator.serial import JoinError, SerialCommunicator, Summed, require_agreement
from hopsum.communicator.signature import MismatchError
from hopsum.communicator.vector import HostVector, Vector

__all__ = [
    "AllReduceResult",
    "Communicator",
    "CommunicatorClosedError",
    "CommunicatorStatistics",
    "HostVector",
    "JoinError",
    "MismatchError",
    "SerialCommunicator",
    "SocketTraffic",
    "Span",
    "Summed",
    "Vector",
    "require_agreement",
]
