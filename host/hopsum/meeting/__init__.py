# SPDX-License-Identifier: Apache-2.0
"""Ranks find each other, compare their settings, and have one error where one of them cannot continue.

meeting     values that the ranks tell each other by topic; settings that differ name their ranks
rank_store  torch's store: the ranks of one call agree on a name there, before they meet under it

hosts://, collective://, `local_group` and `register_comm_hook` meet like this. The ranks of memory:// are in one
process, and those of hopsum:// meet at the controller. Both compare by the same words (`hopsum_base.shown.difference`).
"""

from __future__ import annotations

from hopsum.meeting.meeting import Arrival, Meeting, MeetingError, WaitLimit

__all__ = ["Arrival", "Meeting", "MeetingError", "WaitLimit"]
