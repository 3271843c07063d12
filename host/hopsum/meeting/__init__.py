# SPDX-License-Identifier: Apache-2.0
"""A meeting of ranks: they find each other, compare their settings, and all raise the same error if one fails.

meeting     exchange of values by topic; the error of different settings names the ranks
rank_store  torch's store, in which the ranks of one call first agree on a name

hosts://, collective://, `local_group` and `register_comm_hook` use it. The ranks of memory:// are in one process, and
the ranks of hopsum:// meet at the controller; their errors have the same text
(`hopsum_base.shown.describe_differences`).
"""

from __future__ import annotations

from hopsum.meeting.meeting import Arrival, Meeting, MeetingError, WaitLimit

__all__ = ["Arrival", "Meeting", "MeetingError", "WaitLimit"]
