# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench accuracy`: seconds to a target on shaped links, by hopsum and other schemes.

All schemes train in turn from the same parameters on the same batches, once for each seed, to the target. Printed are
the seconds of each scheme and how many times longer it takes to the target than hopsum, with the 95 % interval of the
seeds. The fastest other scheme is taken seed by seed. --output has the figures of every training that has ended. A call
with the same settings does the trainings that the file lacks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from rich.console import Console

from hopsum.codec.arguments import check_codec, codec_argument, switch_codec_argument
from hopsum.codec.registry import codec_names, is_codec
from hopsum_base.units import format_number, format_rate, list_of, rate_bits_per_s, share, whole
from hopsum_evaluation.bench.dilation import add_dilate_option
from hopsum_evaluation.bench.timing import machine, processors_of, source_commit
from hopsum_evaluation.command_options import figure_table
from hopsum_evaluation.demo.digits_network import MissingDataError
from hopsum_evaluation.experiment import NotRunError, Settings, Size, measure_apart, write_report
from hopsum_evaluation.training.accuracy import Trainings, train_all, trainings_unavailable
from hopsum_evaluation.training.accuracy_plan import (
    AUTO,
    FULL,
    MODELS,
    THC_PS,
    UNSHAPED,
    Course,
    codec_of,
    diloco_of,
    ranks_codec_of,
)
from hopsum_evaluation.training.time_to_target import BEST, Ratio, is_ours, mean_of, seconds_in_words, time_ratios
from hopsum_topologies.local_cluster import PLACEMENTS, default_switch_count

OTHERS: Final = ("fp32", "fp16", "powersgd", "two-shot:bits=4", "two-shot:bits=8")
LOW_RANK_SCHEME: Final = "low-rank-R"
"""The spelling of low rank by codec thc, for the help text: R is a number, as in low-rank-8."""
DILOCO_SCHEMES: Final = ("diloco-H", "diloco-fp32-H")
"""The spellings of DiLoCo by codec thc and in fp32, for the help text: H is the number of steps, as in diloco-10."""
NO_CODECS: Final = ("fp32", "fp16", "bf16", "powersgd", "powersgd-4", THC_PS)
"""Schemes that no codec's name is."""
SCHEMES: Final = f"of {', '.join((*NO_CODECS, AUTO, LOW_RANK_SCHEME, *DILOCO_SCHEMES))}, and codecs, as in thc:bits=2"
"""What schemes there are, for the help text."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = base_parser("accuracy", __doc__ or "")
    parser.add_argument("--model", choices=tuple(MODELS), default="cnn", help="model (default %(default)s)")
    parser.add_argument(
        "--rate", type=_rate, default=200e6, metavar="RATE", help=f"rate of the links, or {UNSHAPED} (default 200mbit)"
    )
    parser.add_argument(
        "--placement", choices=PLACEMENTS, default="fabric", help="place of the switches (default %(default)s)"
    )
    parser.add_argument(
        "--seeds", type=whole(1), default=5, metavar="N", help="trainings of each scheme (default %(default)s)"
    )
    parser.add_argument(
        "--scale", type=share, default=1.0, help="factor of the steps of a training, up to 1 (default %(default)s)"
    )
    parser.add_argument(
        "--others",
        type=list_of(scheme_argument),
        default=OTHERS,
        metavar="SCHEME,...",
        help=f"schemes in addition to hopsum's, {SCHEMES} (default: {','.join(OTHERS)})",
    )
    parser.add_argument(
        "--codec",
        type=switch_scheme_argument,
        default="thc",
        help=f"codec of hopsum's workers, or {LOW_RANK_SCHEME} (default %(default)s)",
    )
    parser.add_argument("--seed", type=whole(0), default=1, help="seed of all seeds (default %(default)s)")
    return parser


def base_parser(benchmark: str, doc: str) -> argparse.ArgumentParser:
    """Make a parser of the options that both benchmarks of trainings have. `doc`, the module's text, describes it."""
    parser = argparse.ArgumentParser(prog=f"hopsum bench {benchmark}", description=doc.partition(": ")[2])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument(
        "--workers", type=whole(2, 16), default=4, help="number of workers, 2 to 16 (default %(default)s)"
    )
    add_dilate_option(parser)
    parser.add_argument(
        "--output", type=Path, default=Path(f"{benchmark}.json"), metavar="FILE",
        help="file for all figures, JSON (default %(default)s)",
    )  # fmt: skip
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run `hopsum bench accuracy`: train, write the figures to --output, print them, and return the exit status.

    It is 0, 1 if a training cannot run, or 130 after Ctrl-C. Raises SystemExit for wrong arguments or missing packages.
    """
    parser = build_parser()
    options = parser.parse_args(arguments)
    check_schemes(parser, "--codec", [options.codec], options.workers)
    check_schemes(parser, "--others", options.others, options.workers)
    return run_command(parser, options, train, show)


def run_command(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    train: Callable[[argparse.Namespace, Console], dict[str, Any]],
    show: Callable[[dict[str, Any], Console], None],
) -> int:
    """Train, print tables by `show` or JSON, and return the exit status: 0, 1 where training fails, 130 after Ctrl-C.

    Raises SystemExit where packages or links are missing.
    """
    if reason := trainings_unavailable():
        parser.exit(1, f"{parser.prog}: {reason}\n")
    try:
        document = train(options, Console(stderr=True))
    except (MissingDataError, NotRunError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.prog}: stopped; {options.output} has the trainings that ended", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(document))
    else:
        show(document, Console())
    return 0


def train(options: argparse.Namespace, progress: Console) -> dict[str, Any]:
    """Do all trainings, and write the figures of each as soon as it ends. Return them.

    Raises MissingDataError, NotRunError, OSError.
    """
    course = course_of(options)
    document = describe("accuracy", options, [options.placement]) | {
        "rate_bits_per_s": options.rate, "placement": options.placement, "seeds": options.seeds, "seed": options.seed,
        "steps": course.steps, "ours": options.codec, "schemes": list(course.schemes),
    }  # fmt: skip
    # The streams of `hopsum report`, so that both commands train on the same batches.
    settings = Settings(options.seed, Size.FULL)
    seeds = tuple(settings.derive_seed("data", "accuracy", repeat) for repeat in range(options.seeds))
    trainings = Trainings(options.workers, course, seeds, options.placement, dilate=options.dilate)
    train_missing(document, options.output, [trainings], progress)
    return document


def describe(benchmark: str, options: argparse.Namespace, placements: Sequence[str]) -> dict[str, Any]:
    """Return the settings that both benchmarks have, commit and machine, for JSON. Raises MissingDataError."""
    where, switches = machine(), max(default_switch_count(placement, options.workers) for placement in placements)
    return {
        "benchmark": benchmark, "model": options.model, "parameters": count_parameters(options.model),
        "workers": options.workers, "dilate": options.dilate, "commit": source_commit(), "machine": where,
        "processors": processors_of(options.workers, switches, where["cores"], options.dilate),
    }  # fmt: skip


def train_missing(document: dict[str, Any], output: Path, listed: Sequence[Trainings], progress: Console) -> None:
    """Do the trainings that the file of an earlier call lacks. Put the figures of all into document["runs"].

    listed: trainings of one placement each. The document is written whenever a training ends: hours survive an
    interruption.
    Raises NotRunError, OSError.
    """
    document["runs"] = read_earlier_runs(document, output)
    write_report(document, output)

    def keep(run: dict[str, Any]) -> None:
        document["runs"].append(run)
        write_report(document, output)

    for trainings in listed:
        before = [run for run in document["runs"] if run["placement"] == trainings.placement]
        done = frozenset((run["rate"], run["scheme"], run["repeat"]) for run in before)
        if len(done) < trainings.count:
            rest = replace(trainings, done=done)
            measure_apart(
                train_all, rest, lambda part, now: progress.print(f"{part:4.0%}  {now}", highlight=False), keep
            )


def count_parameters(model: str) -> int:
    """Return the number of parameters of a model. Raises MissingDataError."""
    # Here, not above: --help needs no torch.
    from hopsum_evaluation.training.accuracy_models import load_learning

    return load_learning(model).count_parameters()


def read_earlier_runs(document: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """Return the figures of trainings that an earlier call with the settings of this document has left in its file.

    Without a file the list is empty. Raises NotRunError where the file has anything else, OSError.
    """
    if not path.exists():
        return []
    try:
        before = dict(json.loads(path.read_text()))
    except (ValueError, TypeError):
        raise NotRunError(f"{path} has no trainings to continue: remove it, or name another --output") from None
    names = (before.keys() | document.keys()) - {"runs", "machine"}
    differ = [f"{name} {before.get(name)}, now {document.get(name)}" for name in sorted(names)
              if before.get(name) != document.get(name)]  # fmt: skip
    if differ:
        raise NotRunError(f"{path} has trainings with {'; '.join(differ)}: remove it, or name another --output")
    found: list[dict[str, Any]] = before.get("runs", [])
    return found


def course_of(options: argparse.Namespace) -> Course:
    """Make the course of the trainings from the command's arguments."""
    steps, batch, every = FULL[options.model]
    steps = max(2, round(steps * options.scale))
    # Each scheme once, ours last: turns rotate from there.
    schemes = (*(name for name in options.others if name != options.codec), options.codec)
    rates = {f"{options.rate / 1e6:g}mbit" if options.rate else UNSHAPED: options.seeds}
    return Course(options.model, steps, batch, min(every, steps), rates, schemes)


def show(document: dict[str, Any], console: Console) -> None:
    """Print the step, the seconds to the target and the ratios of each scheme as a table."""
    model, ours, runs = MODELS[document["model"]], document["ours"], document["runs"]
    console.print(document["processors"], highlight=False)
    dilated = f"dilated {document['dilate']:g} times, " if document["dilate"] > 1 else ""
    rate = document["rate_bits_per_s"]
    ratios = time_ratios(model, runs, ours)
    title = (
        f"{dilated}{model.words}, links {(rate and f'of {format_rate(rate)}') or 'that are not shaped'}, "
        f"placement {document['placement']}, {document['workers']} workers, "
        f"{document['seeds']} seeds, {document['steps']} steps at most; "
        f"step and its parts in ms, MB of a step at a worker's interface, s to {model.goal}, "
        f"ratio over {ours} with its 95 % interval"
    )
    table = figure_table(title, "step", "compute", "reduce", "CPU", "MB", "s", "ratio")
    for scheme in dict.fromkeys(run["scheme"] for run in runs):
        same = [run for run in runs if run["scheme"] == scheme]
        sent = format_number(fmean(run["bytes_per_step"] for run in same) / 1e6)
        table.add_row(scheme, *_parts_ms(same), sent, seconds_in_words(model, same), _said(ratios.get(scheme)))
    console.print(table)
    # Seed by seed: the fastest other scheme of one seed need not be that of another.
    best = _said(ratios.get(BEST)) or "none reached the target"
    console.print(f"fastest other scheme over {ours}, seed by seed: {best}", highlight=False)


def _parts_ms(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Average a scheme's step, its parts timed alone, and the processor time of a worker in it, in ms.

    All-reduces of PowerSGD and of low rank have no time of their own.
    """
    means = (mean_of(runs, name) for name in ("step_s", "compute_s", "reduce_s", "step_cpu_s"))
    return [format_number(mean and 1000 * mean) for mean in means]


def _said(ratio: Ratio | None) -> str:
    if ratio is None or not isfinite(ratio.mean):
        return "" if ratio is None else "not reached"
    interval = "" if ratio.low is None else f" ({format_number(ratio.low, 2)} to {format_number(ratio.high, 2)})"
    return f"{format_number(ratio.mean, 2)}{interval}"


def _rate(text: str) -> float | None:
    return None if text == UNSHAPED else rate_bits_per_s(text)


def scheme_argument(text: str) -> str:
    """Return `text` if it is the name of a scheme, or the spelling of a codec. Raises ArgumentTypeError otherwise."""
    if text in NO_CODECS or diloco_of(text).in_fp32:
        return text
    codec = codec_of(text)
    if not is_codec(codec.partition(":")[0]):
        names = ", ".join((*NO_CODECS, AUTO, LOW_RANK_SCHEME, *DILOCO_SCHEMES, *codec_names()))
        raise argparse.ArgumentTypeError(f"{text!r:.80}: one of {names}")
    codec_argument(codec)
    return text


def check_schemes(parser: argparse.ArgumentParser, option: str, schemes: Sequence[str], workers: int) -> None:
    """Exit with status 2 and a message on an option where jobs of `workers` workers cannot have a scheme's codec."""
    for each in schemes:
        if is_ours(each) or ranks_codec_of(each):
            check_codec(parser, ranks_codec_of(each) or codec_of(each), workers, option)


def switch_scheme_argument(text: str) -> str:
    """Return `text` if it spells a switch's codec, or low rank. Raises ArgumentTypeError otherwise."""
    switch_codec_argument(codec_of(text))
    return text
