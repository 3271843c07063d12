# SPDX-License-Identifier: Apache-2.0
"""The values of the page: what `hopsum top` shows, less what needs the administrator's token to be seen.

Nobody is asked who reads this, so there is no address of a worker or a switch in it, and no generation, by which a
worker's messages are known. Texts that may name one have a mark in its place. Tokens are in no view
at all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from hopsum_controlplane.cluster.cluster_controller import ClusterController
from hopsum_wire.control.values import message_to_dict
from hopsum_wire.watch.rates import document
from hopsum_wire.watch.snapshots import ControllerSnapshot, Values, snapshots_apart_s

WINDOW_S: Final = 15.0
"""The window of rates, if nothing needs a longer one. A job without progress shows after half a lease."""
LONGEST_S: Final = 60.0
KEPT: Final = 10
"""Parts of a window: no more than two snapshots are kept of each."""

SWITCH: Final = (
    *("name", "driver", "reachable", "condition", "condition_reason", "slots", "slots_used", "slots_largest_free"),
    *("jobs", "drops", "audits", "entries_repaired", "sessions", "rates"),
)
JOB: Final = (
    *("name", "state", "health", "health_reason", "reason", "condition", "switches", "shards", "parts", "slot_base"),
    *("slots", "workers", "quorum", "lease_s", "missing_ranks"),
    *("generations_begun", "joins_refused", "ended_age_s"),
    *("rates", "codes", "latency_s", "nmse", "ratio_up", "ratio_down", "wait_share", "ring_share", "behind", "late"),
)
MEMBER: Final = ("rank", "phase", "reason", "silent_s", "rates", "latency_s", "nmse")
_ADDRESS: Final = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}(?:[:/]\d+)?|\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b|\[[0-9a-f:.]+\](?::\d+)?", re.IGNORECASE
)
_GENERATION: Final = re.compile(r"\bgeneration \d+")


class PageState:
    """Activity of a controller's switches and jobs: a snapshot at each call, with rates since an earlier snapshot.

    Args:
        clock: seconds that never go back. notices: returns the troubles of the controller itself.

    Not thread-safe.
    """

    def __init__(
        self,
        controller: ClusterController,
        clock: Callable[[], float] = time.monotonic,
        notices: Callable[[], list[str]] = list,
    ) -> None:
        self._controller, self._clock, self._notices = controller, clock, notices
        self._snapshots: list[ControllerSnapshot] = []

    def read_values(self) -> dict[str, Any]:
        """Read switches and jobs with their counters now, and return the values of the page, fit for JSON.

        The call is remembered as a snapshot for the rates of later calls. A first call, or one long after another, has
        no rates. Addresses and generations in texts are masked.
        """
        snapshot = ControllerSnapshot(
            self._clock(),
            [message_to_dict(switch) for switch in self._controller.switches()],
            [message_to_dict(job) for job in self._controller.jobs(counters=True)],
            self._notices(),
        )
        self._remember(snapshot)
        found = document(self._snapshots[0], snapshot)
        return {
            "seconds": found["seconds"],
            "notices": [_masked(each) for each in found["notices"]],
            "switches": [_public(switch, SWITCH) for switch in found["switches"]],
            "jobs": [
                {**_public(job, JOB), "members": [_public(member, MEMBER) for member in job["members"]]}
                for job in found["jobs"]
            ],
        }

    def _remember(self, snapshot: ControllerSnapshot) -> None:
        window_s = _window_s(snapshot.jobs)
        snapshots = self._snapshots
        if snapshots and snapshot.at_s - snapshots[-1].at_s > window_s:
            snapshots.clear()
        # Many readers make many snapshots: those that are closer than a part of the window replace each other.
        if len(snapshots) > 1 and snapshot.at_s - snapshots[-2].at_s < window_s / KEPT:
            snapshots.pop()
        snapshots.append(snapshot)
        # The oldest one that is kept is just older than the window, so that rates span all of it.
        while len(snapshots) > 2 and snapshot.at_s - snapshots[1].at_s >= window_s:
            del snapshots[0]


def _window_s(jobs: Iterable[Values]) -> float:
    return max(WINDOW_S, min(LONGEST_S, max((snapshots_apart_s(job) for job in jobs), default=0.0)))


def _public(values: Values, names: Iterable[str]) -> dict[str, Any]:
    return {name: _masked(values[name]) for name in names}


def _masked(value: Any) -> Any:
    # Whoever knows a generation can forge a worker's packets (threat model): the page is for everybody.
    return _GENERATION.sub("a generation", _ADDRESS.sub("(address)", value)) if isinstance(value, str) else value
