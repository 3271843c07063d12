# SPDX-License-Identifier: Apache-2.0
"""`hopsum plan` without a word behind it: predict, print, plot, or measure costs, or how far predictions are off."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from rich.console import Console

from hopsum.plan import PlanError
from hopsum.plan.step import AGGREGATORS
from hopsum_cli.main import COMMANDS, Command, load
from hopsum_evaluation.plan.arguments import build_parser, costs_of, elements_of, job_of, require_plot
from hopsum_evaluation.plan.forecast import CODECS, Forecast, forecast
from hopsum_evaluation.plan.report import as_json, show

_CALIBRATE = Command("", "hopsum_evaluation.plan.calibrate", "cli,codec")
_VALIDATE = Command("", "hopsum_evaluation.plan.validate", "demo")


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments say. Return 0 unless --validate finds a prediction that is off by more than its goal."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.preset:
        return load(COMMANDS["plan paper"])(paper_arguments(options))
    try:
        require_plot(options.plot)
        if options.costs and options.calibrate:
            raise PlanError("--costs reads a file, --calibrate makes one: give one of them")
        if options.calibrate:
            _calibrate(options)
            if options.compute is None and not options.validate:
                return 0
        if options.validate:
            return load(_VALIDATE)(_validation(options))
        found = forecast(job_of(options), costs_of(options), options.codec or CODECS, options.aggregator or AGGREGATORS)
    except PlanError as error:
        parser.error(str(error))
    plots = _plot(found, options)
    if options.json:
        print(json.dumps(as_json(found, plots)))
    else:
        show(found, Console())
        for path in plots:
            print(path)
    return 0


def paper_arguments(options: argparse.Namespace) -> list[str]:
    """Return what of the arguments the preset takes too."""
    words = ["--rate", f"{options.rate:g}bit"]
    words += ["--json"] if options.json else []
    words += ["--plot", str(options.plot)] if options.plot else []
    return words + (["--costs", str(options.costs)] if options.costs else [])


def _plot(found: Forecast, options: argparse.Namespace) -> list[str]:
    if options.plot is None:
        return []
    from hopsum_evaluation.plan.plot import write_plot

    write_plot(found, options.x_axis, options.plot)
    return [str(options.plot)]


def _calibrate(options: argparse.Namespace) -> None:
    """Measure and write the costs. Raises PlanError."""
    words = ["--output", str(options.calibrate), "--runs", str(options.runs), "--seed", str(options.seed)]
    load(_CALIBRATE)(words)


def _validation(options: argparse.Namespace) -> list[str]:
    """Return the words of the part that validates."""
    words = ["--rates", options.rates, "--runs", str(options.runs), "--seed", str(options.seed)]
    words += ["--placement", options.placement, "--workers", str(options.workers), "--buckets", str(options.buckets)]
    words += ["--json"] if options.json else []
    sized = (options.elements, options.bytes, options.module) != (None, None, None)
    words += ["--elements", str(elements_of(options))] if sized else []
    path = options.costs or options.calibrate
    return words + (["--costs", str(path)] if path else [])
