# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench training`: seconds of a step of models, most at their published size, by hopsum and others.

Workers train by DDP over shaped links, each in a network namespace of its own, as in `hopsum bench
accuracy`. Each scheme takes as many steps as fill --time, after some that are not counted. With CUDA workers compute
on GPUs, which they share where there are fewer, and hopsum encodes gradients there. --output has the figures of every
training that has ended. A call with the same settings does the trainings that the file lacks.

Columns: `+-` is half of the 95 % interval of a step's mean over --runs, `compute` a step without its all-reduce, all
workers at the same time. `encode` and `decode` are hopsum's in a step that overlaps neither with the network. `wire` is
the time of a step's bytes at the link's rate. Other schemes need no switch: they train in the first placement only.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

from rich.console import Console

from hopsum_base.units import format_number, format_rate, format_time, list_of, one_of, rate_bits_per_s, time_s, whole
from hopsum_evaluation.command_options import figure_table
from hopsum_evaluation.experiment import NotRunError
from hopsum_evaluation.interval import LEAST, interval
from hopsum_evaluation.training.accuracy import Trainings
from hopsum_evaluation.training.accuracy_bench import (
    OTHERS,
    SCHEMES,
    base_parser,
    check_schemes,
    describe,
    run_command,
    scheme_argument,
    train_missing,
)
from hopsum_evaluation.training.accuracy_plan import FULL, MODELS, TIMED, Course
from hopsum_evaluation.training.time_to_target import is_ours, mean_of
from hopsum_topologies.local_cluster import PLACEMENTS

TRAINED: Final = (*OTHERS, "bf16", "powersgd-4", "thc", "thc:bits=3", "thc:bits=2")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = base_parser("training", __doc__ or "")
    parser.add_argument("--model", choices=(*TIMED, *MODELS), default="resnet50", help="model (default %(default)s)")
    parser.add_argument(
        "--rate", type=list_of(rate_bits_per_s), default=(1e9, 1e10, 2.5e10), metavar="RATE,...",
        help="rates of the links (default 1gbit,10gbit,25gbit)",
    )  # fmt: skip
    parser.add_argument(
        "--placement", type=list_of(one_of(PLACEMENTS)), default=("fabric", "hosts"), metavar="PLACEMENT,...",
        help=f"places of the switches, of {', '.join(PLACEMENTS)} (default fabric,hosts)",
    )  # fmt: skip
    parser.add_argument(
        "--schemes", type=list_of(scheme_argument), default=TRAINED, metavar="SCHEME,...",
        help=f"schemes, {SCHEMES} (default {','.join(TRAINED)})",
    )  # fmt: skip
    parser.add_argument(
        "--time", type=time_s, default=10.0, metavar="TIME",
        help="time of the counted steps of a training, two at least (default 10s)",
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=whole(1), default=1, help="trainings of each scheme, schemes in turn (default %(default)s)"
    )
    parser.add_argument("--batch", type=whole(1), help="samples of a worker in a step (default: by model and device)")
    parser.add_argument(
        "--compute", type=time_s, default=0.0, metavar="TIME",
        help="time that a step waits in place of computing, with random gradients (default: it computes)",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="device that computes (default: cuda where there is one)"
    )
    parser.add_argument(
        "--threads", type=whole(1), default=1, help="threads of a worker that compute on the CPU (default %(default)s)"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run `hopsum bench training`: train, write the figures to --output, print them, and return the exit status.

    It is 0, 1 if a training cannot run, or 130 after Ctrl-C. Raises SystemExit for wrong arguments or missing packages.
    """
    parser = build_parser()
    options = parser.parse_args(arguments)
    check_schemes(parser, "--schemes", options.schemes, options.workers)
    return run_command(parser, options, train, show)


def train(options: argparse.Namespace, progress: Console) -> dict[str, Any]:
    """Do all trainings, and write the figures of each as soon as it ends. Return them.

    Raises MissingDataError, NotRunError, OSError.
    """
    # Here, not above: --help needs no torch.
    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() and not options.compute else "cpu")
    if device == "cuda" and options.compute:
        raise NotRunError("--compute: a step that waits has its gradients on the CPU; take --device cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise NotRunError(f"--device cuda: torch {torch.__version__} finds no GPU; leave the option out, or take cpu")
    batch = options.batch or (
        FULL[options.model].batch if options.model in FULL else TIMED[options.model][device == "cuda"]
    )
    document = describe("training", options, options.placement) | {
        "rates_bits_per_s": list(options.rate), "placements": list(options.placement),
        "schemes": list(options.schemes), "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "threads": options.threads, "batch": batch, "seconds": options.time, "compute_s": options.compute,
        "repeats": options.runs,
    }  # fmt: skip
    rates, listed = {_rate(rate): options.runs for rate in options.rate}, []
    for placement in options.placement:
        schemes = [name for name in options.schemes if is_ours(name) or placement == options.placement[0]]
        course = Course(options.model, 0, batch, 0, rates, schemes, seconds=options.time)
        seeds = tuple(range(1, options.runs + 1))
        placed = Trainings(options.workers, course, seeds, placement, dilate=options.dilate)
        listed.append(replace(placed, device=device, threads=options.threads, compute_s=options.compute))
    train_missing(document, options.output, listed, progress)
    return document


def show(document: dict[str, Any], console: Console) -> None:
    """Print a table for each rate, with a row for each scheme and place of the switches."""
    console.print(document["processors"], highlight=False)
    dilated = f"dilated {document['dilate']:g} times, " if document["dilate"] > 1 else ""
    waits = f", computing as a wait of {format_time(document['compute_s'])}" if document["compute_s"] else ""
    for rate in document["rates_bits_per_s"]:
        title = (
            f"{dilated}{document['model']}, {document['parameters'] / 1e6:.1f} M parameters, "
            f"links of {format_rate(rate)}, {document['workers']} workers with {document['batch']} samples each on "
            f"{document['device']}{waits}; parts of a step in ms, MB of a step at a worker's interface"
        )
        table = figure_table(title, "x fp32", "step", "+-", "compute", "encode", "wire", "decode", "MB")
        runs = [run for run in document["runs"] if run["rate"] == _rate(rate)]
        found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for run in runs:
            found[run["scheme"], run["placement"]].append(run)
        fp32_s = next((mean_of(same, "step_s") for (name, _), same in found.items() if name == "fp32"), None)
        for (name, placement), same in found.items():
            step_s = [run["step_s"] for run in same]
            reach_s = interval(step_s).high - fmean(step_s) if len(step_s) >= LEAST else None
            sent = fmean(run["bytes_per_step"] for run in same)
            compute_s, encode_s, decode_s = (mean_of(same, f"{part}_s") for part in ("compute", "encode", "decode"))
            parts_s = (fmean(step_s), reach_s, compute_s, encode_s, 8 * sent / rate, decode_s)
            table.add_row(
                f"{name}, {placement}" if is_ours(name) else name,
                format_number(fp32_s and fp32_s / fmean(step_s)),
                *(format_number(part and 1000 * part) for part in parts_s),
                format_number(sent / 1e6),
            )
        console.print(table)


def _rate(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e6:g}mbit"
