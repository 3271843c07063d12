# SPDX-License-Identifier: Apache-2.0
"""Ranks that share a host: they sum in shared memory, and one of them, the leader, is the host's worker in the job.

group_opening    the ranks of each host, and the connections between a leader and its members
group_leader     `LocalGroupLeader`: adds the vectors of its host, passes the sum to a communicator, returns the mean
group_member     `LocalGroupMember`: passes its vector to the leader, and takes the mean
member_messages  the messages of the two over a Unix socket: JSON, and shared memory
host_ranks       the ranks of a job by their hosts

The job has as many workers as hosts. The leader submits the sum of its host's vectors, not their mean, and the mean
of these sums becomes the mean of all ranks by one factor, hosts / ranks. So an error feedback is in the unit of one
rank's vector everywhere: the mean of all ranks' residuals is the undelivered part, and a member's residual is zero.
"""

from __future__ import annotations

from hopsum.local_group.group_opening import open_local_group

__all__ = ["open_local_group"]
