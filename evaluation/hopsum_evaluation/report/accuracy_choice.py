# SPDX-License-Identifier: Apache-2.0
"""The setting of codec thc that the plan chooses for a training, before anything is measured.

The rule: of the options that `hopsum plan` shows for so many workers, those of which one worker's error is at most
MOST_WORKER_NMSE (error feedback makes up for it), the one with the shortest predicted all-reduce. Workers and switches
share one machine's cores, as they do in the trainings.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Final

from hopsum.codec import make_codec
from hopsum.plan import Costs, PlannedJob, codec_choices, predict_summed

MOST_WORKER_NMSE: Final = 0.2
"""Four values have 0.18, three 0.27: with fewer values than four no training of this project was tried."""
AGGREGATORS: Final = {"fabric": "embedded", "server": "server", "hosts": "hosts"}
"""The plan's names for a placement's switches."""
_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20
"""Bytes of DDP's buckets."""


@dataclass(frozen=True, slots=True)
class PlannedSetting:
    """One option of thc, as the plan sees it."""

    codec: str
    allreduce_s: float
    binds: str
    worker_nmse: float
    allowed: bool


def planned_settings(
    elements: int, workers: int, bits_per_s: float, placement: str, costs: Costs
) -> list[PlannedSetting]:
    """Return the options of thc, the chosen one first, then by predicted all-reduce.

    Options that are not allowed come last. Raises PlanError.
    """
    vectors = 1 + ceil(max(0, 4 * elements - _FIRST_BUCKET) / _BUCKET)
    cores = len(os.sched_getaffinity(0))
    job = PlannedJob(elements, workers, 0.0, bits_per_s, vectors=min(vectors, elements), shared_cores=cores)
    found = []
    for choice in codec_choices(workers)[0]:
        codec = make_codec(choice.codec, workers=workers, backend="numpy")
        predicted = predict_summed(job, costs, codec, AGGREGATORS[placement], choice.codec)
        allowed = choice.worker_nmse <= MOST_WORKER_NMSE
        found.append(
            PlannedSetting(choice.codec, predicted.allreduce_s, predicted.allreduce_binds, choice.worker_nmse, allowed)
        )
    return sorted(found, key=lambda each: (not each.allowed, each.allreduce_s))


def choice_document(settings: list[PlannedSetting], costs: Costs) -> dict[str, Any]:
    """Return what is written down of the choice before the first training."""
    return {
        "codec": settings[0].codec,
        "rule": f"least predicted all-reduce of the options with an error of one worker of {MOST_WORKER_NMSE} at most",
        "options": [asdict(each) for each in settings],
        "costs": costs.as_json(),
    }
