# SPDX-License-Identifier: Apache-2.0
"""`hopsum plan`: when does it pay? Step times of a job, method by method, and what binds each.

command     predict, print, plot
  arguments   the job, in flags or as a torch module; units: rates, times and sizes
  forecast    all methods of one job
  report      as JSON and tables; plot: as a figure
calibrate   measure the costs on this machine
validate    predictions beside `hopsum bench allreduce`
paper       the synchronous-SGD model of Homomorphic Parameter Compression
"""

from __future__ import annotations

from collections.abc import Sequence

from hopsum.cli.main import Command, load

_PAPER = Command("the model of Homomorphic Parameter Compression", "hopsum.cli.plan.paper", "cli")
_COMMAND = Command("predict the step time of a job", "hopsum.cli.plan.command", "cli")


def main(arguments: Sequence[str]) -> int:
    """Run the paper's model or the planner and return its exit status."""
    if arguments and arguments[0] == "paper":
        return load(_PAPER)(arguments[1:])
    return load(_COMMAND)(arguments)
