# SPDX-License-Identifier: Apache-2.0
"""All drills by name."""

from __future__ import annotations

from typing import Final

from hopsum_evaluation.drill import (
    churn,
    connections,
    controller,
    crowd,
    hosts,
    jobs,
    network,
    programs,
    switch,
    workers,
)
from hopsum_evaluation.drill.base import Drill, needs_namespaces, needs_nothing
from hopsum_evaluation.drill.controller_drills import CONTROLLER_DRILLS

_ALL: Final = (
    Drill(
        "worker-killed",
        "a worker dies that the quorum can do without: the others go on",
        needs_nothing,
        workers.killed,
    ),
    Drill(
        "worker-missing",
        "a worker dies, all are needed: the others fail in time, naming it",
        needs_nothing,
        workers.missing,
    ),
    Drill(
        "worker-rejoins",
        "a worker dies, another process takes its rank: it has the others' state, training continues",
        needs_nothing,
        workers.rejoins,
    ),
    Drill(
        "worker-paused",
        "a worker is stopped for longer than its lease: it is refused, and joins anew",
        needs_nothing,
        workers.paused,
    ),
    Drill(
        "worker-raises",
        "a worker's program ends by an exception: the others know at once, its rank can be taken",
        needs_nothing,
        programs.raises,
    ),
    Drill(
        "worker-forks",
        "a forked child of a worker exits: the worker keeps its place",
        needs_nothing,
        programs.forks,
    ),
    Drill(
        "switch-restarted",
        "the switch dies and comes back empty: sums take longer, and have the same bits",
        needs_nothing,
        switch.restarted,
    ),
    Drill(
        "switch-gone",
        "the switch dies for good: every rank says so, and fails at its own limit",
        needs_nothing,
        switch.gone,
    ),
    Drill(
        "host-lost",
        "a host dies with a worker and a shard's switch: both come back, training continues",
        needs_nothing,
        hosts.lost,
    ),
    Drill(
        "shard-moved",
        "a shard moves to another switch while the job runs, and from one that died: no step is lost",
        needs_nothing,
        hosts.moved,
    ),
    Drill(
        "controller-down",
        "the controller dies and comes back: the job continues, and is adopted",
        needs_nothing,
        controller.down,
    ),
    Drill(
        "controller-paused",
        "the controller is stopped for longer than a lease: no member is evicted",
        needs_nothing,
        controller.paused,
    ),
    Drill(
        "connections-dead",
        "TCP connections die in silence, to the switch and to a worker: all go on over new ones",
        needs_nothing,
        connections.dead,
    ),
    Drill(
        "route-flaps",
        "a worker's own interfaces and routes go away and come back: sums wait, and lose nothing",
        needs_namespaces,
        network.flaps,
    ),
    Drill(
        "split",
        "a worker is cut off, for less than its lease and for longer",
        needs_namespaces,
        network.split,
    ),
    Drill(
        "two-jobs",
        "a job is killed and made again all the time: the other stays bit-exact",
        needs_namespaces,
        jobs.two,
    ),
    Drill(
        "job-churn",
        "a job is joined again and again: another one starts in time",
        needs_nothing,
        churn.job_churn,
    ),
    Drill(
        "crowd",
        "a crowd without a token keeps the controller busy: whoever has one is served",
        needs_nothing,
        crowd.crowded,
    ),
    *CONTROLLER_DRILLS,
)
DRILLS: Final = {drill.name: drill for drill in _ALL}
