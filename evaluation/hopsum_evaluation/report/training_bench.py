# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench training`: seconds of a step of models at their published size, hopsum beside other schemes.

Workers train by DDP on random data over shaped links, each in a network namespace of its own, as in `hopsum bench
accuracy`. Each scheme takes as many steps as fill --time, after some that are not counted. With CUDA workers compute
on GPUs, which they share where there are fewer, and hopsum encodes gradients there. --output has the figures of every
training that has ended. A call with the same settings does the trainings that the file lacks.

Columns: `compute` is a step without its all-reduce, all workers at the same time, and `wait` what the all-reduce adds.
`encode` and `decode` are hopsum's in a step that overlaps neither with the network. `wire` is the time of a step's
bytes at the link's rate. Other schemes need no switch: they train in the first placement only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from hopsum_evaluation.bench.dilation import add_dilate_option
from hopsum_evaluation.bench.placements import PLACEMENTS, switches_of
from hopsum_evaluation.bench.timing import commit, machine, processors_of
from hopsum_evaluation.command_options import figure_table
from hopsum_evaluation.report.accuracy import Trainings, train_all, unavailable
from hopsum_evaluation.report.accuracy_bench import OTHERS, parameters, scheme, trained_before
from hopsum_evaluation.report.accuracy_plan import TIMED, Course
from hopsum_evaluation.report.experiment import NotRunError, measure_apart
from hopsum_evaluation.report.reporting import write_report
from hopsum_evaluation.report.time_to_target import is_ours
from hopsum_evaluation.units import figure, list_of, one_of, rate_bits_per_s, said_rate, time_s, whole

TRAINED: Final = (*OTHERS, "bf16", "powersgd-4", "thc", "thc:bits=2")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench training", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument("--model", choices=tuple(TIMED), default="resnet50", help="model (default %(default)s)")
    parser.add_argument(
        "--rate", type=list_of(rate_bits_per_s), default=(1e9, 1e10, 2.5e10), metavar="RATE,...",
        help="rates of the links (default 1gbit,10gbit,25gbit)",
    )  # fmt: skip
    parser.add_argument(
        "--placement", type=list_of(one_of(PLACEMENTS)), default=("fabric", "hosts"), metavar="PLACEMENT,...",
        help=f"places of the switches, of {', '.join(PLACEMENTS)} (default fabric,hosts)",
    )  # fmt: skip
    parser.add_argument(
        "--schemes", type=list_of(scheme), default=TRAINED, metavar="SCHEME,...",
        help=f"schemes, and settings of codec thc (default {','.join(TRAINED)})",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=whole(2, 16), default=4, help="number of workers, 2 to 16 (default %(default)s)"
    )
    parser.add_argument(
        "--time", type=time_s, default=10.0, metavar="TIME",
        help="time of the counted steps of a training, two at least (default 10s)",
    )  # fmt: skip
    parser.add_argument("--batch", type=whole(1), help="samples of a worker in a step (default: by model and device)")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="device that computes (default: cuda where there is one)"
    )
    parser.add_argument(
        "--threads", type=whole(1), default=1, help="threads of a worker that compute on the CPU (default %(default)s)"
    )
    add_dilate_option(parser)
    parser.add_argument(
        "--output", type=Path, default=Path("training.json"), metavar="FILE",
        help="file for all figures, JSON (default %(default)s)",
    )  # fmt: skip
    return parser


def main(arguments: Sequence[str]) -> int:
    """Train, print, and return 0. Return 1 where it cannot run."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if reason := unavailable():
        parser.exit(1, f"hopsum bench training: {reason}\n")
    try:
        document = train(options, Console(stderr=True))
    except (NotRunError, OSError) as error:
        print(f"hopsum bench training: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"hopsum bench training: stopped; {options.output} has the trainings that ended", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(document))
    else:
        show(document, Console())
    return 0


def train(options: argparse.Namespace, progress: Console) -> dict[str, Any]:
    """Do all trainings, and write the figures of each as soon as it ends. Return them. Raises NotRunError, OSError."""
    # Here, not above: --help needs no torch.
    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model, where = TIMED[options.model], machine()
    switches = max(switches_of(placement, options.workers) for placement in options.placement)
    document: dict[str, Any] = {
        "benchmark": "training", "model": options.model, "parameters": parameters(options.model),
        "rates_bits_per_s": list(options.rate), "placements": list(options.placement), "schemes": list(options.schemes),
        "workers": options.workers, "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "threads": options.threads, "batch": options.batch or (model.cuda_batch if device == "cuda" else model.batch),
        "seconds": options.time, "dilate": options.dilate, "commit": commit(), "machine": where,
        "processors": processors_of(options.workers, switches, where["cores"], options.dilate),
    }  # fmt: skip
    document["runs"] = trained_before(document, options.output)
    write_report(document, options.output)

    def keep(run: dict[str, Any]) -> None:
        document["runs"].append(run)
        write_report(document, options.output)

    rates = {_rate(rate): 1 for rate in options.rate}
    for placement in options.placement:
        schemes = [name for name in options.schemes if is_ours(name) or placement == options.placement[0]]
        course = Course(options.model, 0, document["batch"], 0, rates, schemes, seconds=options.time)
        before = [run for run in document["runs"] if run["placement"] == placement]
        done = frozenset((run["rate"], run["scheme"], run["repeat"]) for run in before)
        trainings = Trainings(
            options.workers, (course,), (1,), placement, done, device, options.threads, options.dilate
        )
        if len(done) < trainings.count:
            measure_apart(train_all, trainings, lambda _, now: progress.print(now, highlight=False), keep)
    return document


def show(document: dict[str, Any], console: Console) -> None:
    """Print a table for each rate, with a row for each scheme and place of the switches."""
    model = TIMED[document["model"]]
    console.print(document["processors"], highlight=False)
    dilated = f"dilated {document['dilate']:g} times, " if document["dilate"] > 1 else ""
    for rate in document["rates_bits_per_s"]:
        title = (
            f"{dilated}{model.words}, {document['parameters'] / 1e6:.1f} M parameters, links of {said_rate(rate)}, "
            f"{document['workers']} workers with {document['batch']} {model.samples} each on {document['device']}; "
            "parts of a step in ms, MB of a step at a worker's interface"
        )
        heads = ("x fp32", "step", "compute", "wait", "encode", "wire", "decode", "MB")
        table = figure_table(title, f"{model.samples}/s", *heads)
        runs = [run for run in document["runs"] if run["rate"] == _rate(rate)]
        fp32_s = next((run["step_s"] for run in runs if run["scheme"] == "fp32"), None)
        for run in runs:
            step_s, compute_s, wire_s = run["step_s"], run["compute_s"], 8 * run["bytes_per_step"] / rate
            parts_s = (step_s, compute_s, max(0.0, step_s - compute_s), run["encode_s"], wire_s, run["decode_s"])
            table.add_row(
                f"{run['scheme']}, {run['placement']}" if is_ours(run["scheme"]) else run["scheme"],
                figure(document["workers"] * document["batch"] / step_s),
                figure(fp32_s and fp32_s / step_s),
                *(figure(part and 1000 * part) for part in parts_s),
                figure(run["bytes_per_step"] / 1e6),
            )
        console.print(table)


def _rate(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e6:g}mbit"
