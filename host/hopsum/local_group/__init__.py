# SPDX-License-Identifier: Apache-2.0
"""Ranks that share a host: they sum in shared memory, and one of them, the leader, is the host's worker in the job.

opening      which ranks share a host, and the connections between a leader and its members
leader       `LocalGroupLeader`: adds the vectors of its host, hands the sum to a communicator, gives the mean back
member       `LocalGroupMember`: hands its vector to the leader, and takes the mean
messages     what the two say to each other over a Unix socket: JSON, with memory attached
segments     memory that two processes share, for one vector and then its mean

The job has as many workers as hosts. The leader hands over the sum of its host's vectors, not their mean, and the mean
of these sums becomes the mean of all ranks by one factor, hosts / ranks. So an error feedback is in the unit of one
rank's vector everywhere: the mean of all ranks' residuals is what has not been delivered yet, and a member's is zero.
"""

from __future__ import annotations

from hopsum.local_group.opening import open_local_group

__all__ = ["open_local_group"]
