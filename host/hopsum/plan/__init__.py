# SPDX-License-Identifier: Apache-2.0
"""The predicted time of a step of a data-parallel job, from sizes, rates and measured costs. No I/O, no clock.

    setting   what is asked: the job, its workers and their links
    traffic   bytes of whole frames that every method sends and receives
    costs     seconds that processors need, each with where it was measured
    step      from these to the time of a step, and what binds it
    choices   the options of codec thc: bits against error
    paper     the synchronous-SGD model of Jang, Na and Yoon (arXiv 1711.10123), which needs none of the above

numpy and the codecs' sizes are all it needs. `hopsum plan` is the command.
"""

from __future__ import annotations

from hopsum.plan.choices import CodecChoice, codec_choices
from hopsum.plan.costs import Cost, Costs, shipped_costs
from hopsum.plan.paper import Repeated, SynchronousSgd
from hopsum.plan.setting import PlanError, PlannedJob
from hopsum.plan.step import Prediction, predict_ring, predict_summed, predict_two_shot, winning_rates
from hopsum.plan.traffic import SLOTS_LEAST, StepTraffic, ring_traffic, slots_for, summed_traffic, two_shot_traffic

__all__ = [
    "SLOTS_LEAST",
    "CodecChoice",
    "Cost",
    "Costs",
    "PlanError",
    "PlannedJob",
    "Prediction",
    "Repeated",
    "StepTraffic",
    "SynchronousSgd",
    "codec_choices",
    "predict_ring",
    "predict_summed",
    "predict_two_shot",
    "ring_traffic",
    "shipped_costs",
    "slots_for",
    "summed_traffic",
    "two_shot_traffic",
    "winning_rates",
]
