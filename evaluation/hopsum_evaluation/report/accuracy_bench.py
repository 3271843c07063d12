# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench accuracy`: seconds to a target on shaped links, hopsum's planned setting beside other schemes.

The plan chooses hopsum's setting, which is printed and written to --output before the first training. All schemes then
train by turns from the same parameters on the same batches, once for each seed. Printed are the seconds of each scheme
and, for each, how many times longer it takes to the target than hopsum, with the 95 % interval of the seeds. The
fastest other scheme is taken seed by seed. Every training's figures are in --output as soon as it is over.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from hopsum.plan import PlanError, shipped_costs
from hopsum.plan.costs import costs_from_json
from hopsum_evaluation.bench.placements import PLACEMENTS
from hopsum_evaluation.bench.timing import machine
from hopsum_evaluation.codec_argument import codec_argument
from hopsum_evaluation.plan.units import rate_bits_per_s, said_rate
from hopsum_evaluation.report.accuracy import unavailable
from hopsum_evaluation.report.accuracy_choice import choice_document, planned_settings
from hopsum_evaluation.report.accuracy_plan import DILOCO, FULL, MODELS, Course, DiLoCoSetting
from hopsum_evaluation.report.accuracy_ratios import BEST, Ratio, end_ratios, reached_s, time_ratios
from hopsum_evaluation.report.collect import write_report
from hopsum_evaluation.report.settings import NotRunError, Settings, Size

OTHERS: Final = ("fp32", "fp16", "powersgd", "two-shot-4", "two-shot-8")
SCHEMES: Final = (*OTHERS, "topk", "thc-ps", *DILOCO)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench accuracy", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("--model", choices=tuple(MODELS), default="cnn", help="model (default %(default)s)")
    parser.add_argument(
        "--rate", type=rate_bits_per_s, default=200e6, metavar="RATE", help="rate of the links (default 200mbit)"
    )
    parser.add_argument(
        "--placement", choices=PLACEMENTS, default="fabric", help="place of the switches (default %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=4, help="number of workers, 2 to 16 (default %(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=5, metavar="N", help="trainings of each scheme (default %(default)s)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor of the steps of a training, up to 1 (default %(default)s)"
    )
    parser.add_argument(
        "--others",
        type=_schemes,
        default=OTHERS,
        metavar="SCHEME,...",
        help=f"schemes beside hopsum, of {', '.join(SCHEMES)} (default: {','.join(OTHERS)})",
    )
    parser.add_argument(
        "--codec",
        type=codec_argument,
        help="codec of hopsum's workers, as in thc:bits=2 (default: the one that the plan chooses)",
    )
    parser.add_argument(
        "--costs",
        type=Path,
        metavar="FILE",
        help="file of `hopsum plan --calibrate` with the costs of a machine (default: those shipped)",
    )
    schedule = DiLoCoSetting()
    parser.add_argument(
        "--sync-every", type=int, default=schedule.sync_every, metavar="STEPS",
        help="steps between two synchronisations of a fragment, of diloco and diloco-hopsum (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--fragments", type=int, default=schedule.fragments, help="fragments of these schemes (default %(default)s)"
    )
    parser.add_argument(
        "--sync-delay", type=int, default=schedule.delay, metavar="STEPS",
        help="steps beside which a fragment of these schemes is on its way (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="seed of all seeds (default %(default)s)")
    parser.add_argument(
        "--output", type=Path, default=Path("accuracy.json"), metavar="FILE",
        help="file for the choice and all figures, JSON (default %(default)s)",
    )  # fmt: skip
    return parser


def main(arguments: Sequence[str]) -> int:
    """Choose, train, print, and return 0. Return 1 where it cannot run."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.seeds < 1 or not 2 <= options.workers <= 16 or not 0 < options.scale <= 1:
        parser.error("at least one seed, 2 to 16 workers, and a scale above 0 and up to 1")
    if not 0 <= options.sync_delay <= options.sync_every // max(options.fragments, 1) or options.fragments < 1:
        parser.error("at least one fragment, no more of them than --sync-every has steps, and --sync-delay up to the "
                     "steps between two fragments")  # fmt: skip
    if reason := unavailable():
        parser.exit(1, f"hopsum bench accuracy: {reason}\n")
    console = Console()
    try:
        document = _begin(options, console)
        _train(options, document, Console(stderr=True))
    except (PlanError, NotRunError, OSError) as error:
        print(f"hopsum bench accuracy: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"hopsum bench accuracy: stopped; {options.output} has the trainings that were over", file=sys.stderr)
        return 130
    show(document, console)
    return 0


def _begin(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Choose hopsum's setting and write it down. Return the document. Raises PlanError, OSError."""
    costs = shipped_costs() if options.costs is None else costs_from_json(options.costs.read_text(), str(options.costs))
    elements = parameters(options.model)
    planned = planned_settings(elements, options.workers, options.rate, options.placement, costs)
    ours = options.codec or planned[0].codec
    course = course_of(options, ours)
    document = {
        "benchmark": "accuracy", "model": options.model, "parameters": elements, "rate_bits_per_s": options.rate,
        "placement": options.placement, "workers": options.workers, "seeds": options.seeds, "seed": options.seed,
        "steps": course.steps, "diloco": course.diloco._asdict(), "machine": machine(), "ours": ours,
        "chosen_by": "--codec" if options.codec else "plan", "chosen_at_unix_s": time.time(),
        "choice": choice_document(planned, costs), "runs": [],
    }  # fmt: skip
    write_report(document, options.output)
    console.print(
        f"before the first training: hopsum's setting is {ours}, chosen by {document['chosen_by']}; predicted "
        f"all-reduce of {elements:,} elements: "
        + ", ".join(f"{each.codec} {1000 * each.allreduce_s:.3g} ms" for each in planned if each.allowed),
        highlight=False,
    )
    return document


def _train(options: argparse.Namespace, document: dict[str, Any], progress: Console) -> None:
    """Do all trainings, and keep each one's figures in the document and its file. Raises NotRunError, OSError."""
    from hopsum_evaluation.report.accuracy_run import Trainings, run_apart

    settings = Settings(options.seed, Size.FULL)
    seeds = tuple(settings.stream("data", "accuracy", repeat) for repeat in range(options.seeds))
    trainings = Trainings(options.workers, (course_of(options, document["ours"]),), seeds, options.placement)

    def keep(run: dict[str, Any]) -> None:
        document["runs"].append(run)
        write_report(document, options.output)

    run_apart(trainings, lambda done, now: progress.print(f"{done:4.0%}  {now}", highlight=False), keep)


def parameters(model: str) -> int:
    """Return the number of parameters of a model."""
    from hopsum_evaluation.report.accuracy_models import load_learning

    return sum(each.numel() for each in load_learning(model).make_network(0).parameters())


def course_of(options: argparse.Namespace, ours: str) -> Course:
    """Return how the model is trained."""
    steps, batch, every = FULL[options.model]
    steps = max(2, round(steps * options.scale))
    schemes = (*(name for name in options.others if name != ours), ours)
    rates = {f"{options.rate / 1e6:g}mbit": options.seeds}
    diloco = DiLoCoSetting(options.sync_every, options.fragments, options.sync_delay, ours)
    return Course(options.model, steps, batch, min(every, steps), rates, schemes, diloco)


def show(document: dict[str, Any], console: Console) -> None:
    """Print the seconds of each scheme, and its ratios."""
    model, ours = MODELS[document["model"]], document["ours"]
    runs = document["runs"]
    ratios, ends = time_ratios(model, runs, ours), end_ratios(runs, ours)
    title = (
        f"{model.words}, links of {said_rate(document['rate_bits_per_s'])}, placement {document['placement']}, "
        f"{document['workers']} workers, {document['seeds']} seeds, {document['steps']} steps; "
        "step and its parts in ms, kB of a step at a worker's interface"
    )
    table = Table(title=title, title_justify="left")
    parts = ("step", "compute", "reduce", "CPU", "kB")
    for head in ("scheme", *parts, f"s to {model.goal}", f"over {ours}", "more at the end"):
        table.add_column(head, justify="left" if head == "scheme" else "right", no_wrap=head == "scheme")
    for scheme in dict.fromkeys(run["scheme"] for run in runs):
        same = [run for run in runs if run["scheme"] == scheme]
        compared = (_said(found.get(scheme)) for found in (ratios, ends))
        sent = f"{fmean(run['bytes_per_step'] for run in same) / 1000:,.0f}"
        table.add_row(scheme, *_parts_ms(same), sent, reached_s(model, same), *compared)
    console.print(table)
    best = ratios.get(BEST)
    console.print(f"fastest other scheme over {ours}, seed by seed: {_said(best) or 'none reached the target'}",
                  highlight=False)  # fmt: skip


def _parts_ms(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the means of a scheme's step, of its parts timed alone, and of a worker's processor time in it, in ms.

    PowerSGD's all-reduce has no time of its own.
    """
    found = []
    for name in ("step_s", "compute_s", "reduce_s", "step_cpu_s"):
        known = [run[name] for run in runs if run[name] is not None]
        found.append(f"{1000 * fmean(known):.0f}" if known else "-")
    return found


def _said(ratio: Ratio | None) -> str:
    if ratio is None or not isfinite(ratio.mean):
        return "" if ratio is None else "not reached"
    interval = "" if ratio.low is None else f" ({ratio.low:.3g} to {ratio.high:.3g})"
    return f"{ratio.mean:.3g}{interval}"


def _schemes(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in SCHEMES and name.partition(":")[0] != "thc"]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: of {', '.join(SCHEMES)}, or a codec thc:OPTION=VALUE")
    return names
