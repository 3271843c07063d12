# SPDX-License-Identifier: Apache-2.0
"""Section `links`: all-reduces, steps and trainings to a target over shaped links, by hopsum and other schemes.

Each case is a call of `hopsum bench`, whose object is kept as it is. A file of the report's folder has the object of
each case that is done, and the figures of each training: a run that was stopped does the rest. `answers` reads them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

from hopsum_base.units import format_number
from hopsum_evaluation.bench import allreduce
from hopsum_evaluation.bench.timing import is_oversubscribed, machine, source_commit
from hopsum_evaluation.experiment import NotRunError, Result, Settings, Tell, measure_apart, write_report
from hopsum_evaluation.plan import step_plan
from hopsum_evaluation.report.answers import CLAIMS as CLAIMS
from hopsum_evaluation.report.answers import make_view as make_view
from hopsum_evaluation.training import accuracy_bench, training_bench
from hopsum_evaluation.training.accuracy import trainings_unavailable
from hopsum_evaluation.training.accuracy_plan import AUTO, UNSHAPED
from hopsum_topologies.local_cluster import default_switch_count

WORKERS: Final = 4
SPARE: Final = 1.5
COMPUTE: Final = "100ms"
RATES: Final = ("200mbit", "1gbit")
OURS: Final = ("thc", "thc:bits=3", "thc:bits=2")
OTHERS: Final = ("fp32", "fp16", "powersgd", "powersgd-4", "two-shot:bits=4", "two-shot:bits=8")
KINDS: Final = ("fp32", "powersgd", "two-shot:bits=4", "thc:bits=2", "low-rank-8")
"""One scheme of each kind: what the smallest size trains in addition to `thc`."""
LOW_RANK: Final = {
    "cnn": 8, "transformer": 32, "cnn-10m": 8, "transformer-10m": 32, "resnet50": 8, "vgg16": 8, "gpt2-small": 16,
}  # fmt: skip
"""Rank of low rank, by model: the least that trains as fp32 does, or that people take for such a model."""
SLOWEST: Final = "50mbit"
"""The rate at which people take DiLoCo. Its steps are timed: fp32 would train for hours."""
DILOCO: Final = ("diloco-fp32-10", "diloco-10")
"""The transformer's further schemes, of rare synchronisation: as torchft does it in fp32, and by codec thc."""
SEEDS: Final = "3"
"""Seeds of each counted training and repeats of each timing: the fewest for an interval."""
TRAINED_SEEDS: Final = {"200mbit": SEEDS, "1gbit": "5"}
"""Seeds of each training over shaped links, by rate: on fast links schemes differ by less than seeds do."""
CHECKED: Final = 2
"""Workers of the check of time dilation: on two processors each has one of its own."""
_CODECS: Final = tuple(word for name in OURS for word in ("--codec", name))
_ALONE: Final = ("--only", "gloo-fp32", "--only", "gloo-fp16", "--only", "two-shot:bits=4")


class LinkCase(NamedTuple):
    """A call of a benchmark, in a process of its own.

    name: of the case and of its files.
    trains: True for a benchmark that keeps its trainings in the file of --output.
    spare: processors of the machine for each that a worker or switch has, where time is dilated. 0: never dilated.
    workers: of the job.
    """

    name: str
    benchmark: str
    arguments: tuple[str, ...]
    placement: str = "fabric"
    trains: bool = True
    spare: float = 1.0
    workers: int = WORKERS


def cases_of(settings: Settings) -> list[LinkCase]:
    """Return the cases of a report of this size, the most needed first."""
    rates, places = settings.pick(RATES[:1], RATES, RATES), ("fabric", "hosts")
    one = ("--seeds", "1")
    lengths = {rate: settings.pick((*one, "--scale", "0.05"), one, ("--seeds", TRAINED_SEEDS[rate])) for rate in rates}
    # One short vector. At full size also one in eight buckets.
    short, *long = settings.pick(
        [("65536", "1", "1")], [("1000000", "1", "3")], [("1000000", "1", "3"), ("25000000", "8", "1")]
    )
    plan = LinkCase("plan", "plan", ("--elements", "1M", "--compute", "1ms", *_CODECS), trains=False)
    cases = [plan, *(_reduce(place, rate, short) for place in places for rate in rates)]
    if settings.dilate:
        cases += [_check(rate, spare) for rate in rates for spare in (0.0, 1.0)]
    kinds = settings.pick(KINDS, None, None)
    for model in settings.pick(("cnn",), ("cnn",), ("cnn", "transformer")):
        cases += [_train(model, place, rate, lengths[rate], kinds) for place in places for rate in rates]
    cases += settings.pick([], [], [_time(place, SLOWEST, "transformer", waits=False) for place in places])
    cases += settings.pick([], [], _large_models())
    return [*cases, *(_reduce(place, rate, size) for size in long for place in places for rate in rates)]


def _large_models() -> list[LinkCase]:
    """Return the cases of models of 10 M parameters and more.

    Steps to a target are counted on links that are not shaped: on slow ones they take hours.
    """

    def timed(model: str, *rates: str) -> list[LinkCase]:
        return [_time(place, rate, model) for place in ("fabric", "hosts") for rate in rates]

    return [
        *timed("cnn-10m", *RATES), *(_choose("cnn-10m", rate) for rate in RATES),
        *timed("transformer-10m", *RATES), _count("cnn-10m"), *(_choose("transformer-10m", rate) for rate in RATES),
        *timed("resnet50", *RATES), *timed("gpt2-small", "1gbit", "10gbit"), *timed("vgg16", "10gbit"),
    ]  # fmt: skip


def _spare(rate: str) -> float:
    # Where the wire does not bind, what the kernel does needs processors in addition to those of the workers.
    return SPARE if rate != RATES[0] else 1.0


def _reduce(placement: str, rate: str, size: tuple[str, str, str]) -> LinkCase:
    elements, buckets, runs = size
    # Without a name of --only, subjects of its default come along.
    subjects = (*_ALONE, *_CODECS) if placement == "fabric" else ("--only", OURS[0], *_CODECS)
    arguments = ("--elements", elements, "--buckets", buckets, "--runs", runs, "--rates", rate, *subjects)
    name = f"allreduce-{placement}-{elements}-{rate}"
    return LinkCase(name, "allreduce", arguments, placement, trains=False, spare=_spare(rate))


def _ours(model: str) -> list[str]:
    return [*OURS, f"low-rank-{LOW_RANK[model]}"]


def _rare(model: str) -> tuple[str, ...]:
    return DILOCO if model == "transformer" else ()


def _train(model: str, placement: str, rate: str, lengths: tuple[str, ...], kinds: Sequence[str] | None) -> LinkCase:
    """Train a model by all schemes, or by those of `kinds` alone."""
    schemes = _schemes(model, placement)
    chosen = ",".join(each for each in schemes if each != OURS[0] and (kinds is None or each in kinds))
    arguments = ("--model", model, "--rate", rate, "--others", chosen, *lengths)
    return LinkCase(f"{model}-{placement}-{rate}", "accuracy", arguments, placement, spare=_spare(rate))


def _schemes(model: str, placement: str) -> list[str]:
    """Return the schemes for a model with the switches at one place."""
    # Others need no switch: at the hosts their trainings and steps would be the same again.
    return [*OTHERS, *_ours(model), *_rare(model)] if placement == "fabric" else _ours(model)


def _count(model: str) -> LinkCase:
    others = ",".join(each for each in _schemes(model, "fabric") if each != OURS[0])
    arguments = ("--model", model, "--rate", UNSHAPED, "--others", others, "--seeds", SEEDS)
    return LinkCase(f"steps-{model}", "accuracy", arguments)


def _time(placement: str, rate: str, model: str, *, waits: bool = True) -> LinkCase:
    """Time steps, whose computing is a wait unless `waits` is False."""
    # Two counted steps are the least, and most of these take longer than the time.
    length = (*(("--compute", COMPUTE) if waits else ()), "--time", "500ms", "--runs", SEEDS, "--device", "cpu")
    arguments = ("--model", model, "--rate", rate, "--schemes", ",".join(_schemes(model, placement)), *length)
    return LinkCase(f"{model}-{placement}-{rate}", "training", arguments, placement, spare=_spare(rate))


def _choose(model: str, rate: str) -> LinkCase:
    """Make steps by the choice of the first steps, and by hopsum's schemes, which compute and train.

    The choice depends on the gradients, so the model needs data.
    """
    # The one line of a training script is over the ranks' own hosts, and decides by itself.
    schemes = (*_ours(model), AUTO)
    arguments = ("--model", model, "--rate", rate, "--schemes", ",".join(schemes), "--time", "500ms", "--runs", SEEDS)
    return LinkCase(f"auto-{model}-{rate}", "training", (*arguments, "--device", "cpu"), "hosts", spare=_spare(rate))


def _check(rate: str, spare: float) -> LinkCase:
    """Make an all-reduce of few workers, dilated or not, which tells the error of time dilation on this machine."""
    subjects = (*_ALONE, "--codec", OURS[0])
    arguments = ("--elements", "1000000", "--runs", "5", "--rates", rate, "--workers", str(CHECKED), *subjects)
    name = f"check-{'dilated' if spare else 'real'}-{rate}"
    return LinkCase(name, "allreduce", arguments, trains=False, spare=spare, workers=CHECKED)


def run(settings: Settings, tell: Tell) -> Result:
    """Measure every case that the folder lacks, and write a file for each. Return the figures of all cases.

    After Ctrl-C the figures of the finished cases are returned, with "stopped" True. Without any of them the interrupt
    is raised again. A case that fails is in "failed", with its reason. Raises NotRunError where no case can run.
    """
    if reason := trainings_unavailable():
        raise NotRunError(reason)
    cases, documents, failed = cases_of(settings), list[dict[str, Any]](), dict[str, str]()
    stopped = False
    for number, case in enumerate(cases):
        tell(number / len(cases), case.name)
        document = _kept(case, settings)
        try:
            documents.append(document or measure_apart(_measure, (case, settings)))
        except NotRunError as problem:
            # One case more or less: the others are an answer.
            failed[case.name] = str(problem).splitlines()[0]
            continue
        except KeyboardInterrupt:
            if not documents:
                raise
            stopped = True
            break
        write_report(documents[-1], _path(case, settings))
    if not documents:
        raise NotRunError("; ".join(failed.values()))
    return {"workers": WORKERS, "documents": documents, "failed": failed, "stopped": stopped}


def _path(case: LinkCase, settings: Settings) -> Path:
    return settings.folder / f"links-{case.name}.json"


def _kept(case: LinkCase, settings: Settings) -> dict[str, Any] | None:
    """Read the object of a case that an earlier call has measured with the same arguments at the same commit."""
    path = _path(case, settings)
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    same = (found["arguments"], found["commit"]) == (
        arguments_of(case, settings.dilate, machine()["cores"]),
        source_commit(),
    )
    return found if same else None


def arguments_of(case: LinkCase, dilate: bool, cores: int) -> list[str]:
    """Return all arguments of a case for a machine with so many processors.

    With `dilate`, fewer than two processors for each worker and switch bring --dilate: its factor takes `spare`
    processors for each of them.
    """
    switches = default_switch_count(case.placement, case.workers)
    arguments = [*case.arguments, "--placement", case.placement]
    # A number of steps does not depend on time.
    measured = case.benchmark != "plan" and UNSHAPED not in case.arguments
    if measured and case.spare and dilate and is_oversubscribed(case.workers, switches, cores):
        arguments += ["--dilate", format_number(max(1.0, case.spare * (case.workers + switches) / cores))]
    return arguments


def _measure(order: tuple[LinkCase, Settings]) -> dict[str, Any]:
    case, settings = order
    parser, measure = _BENCHMARKS[case.benchmark]
    arguments = arguments_of(case, settings.dilate, machine()["cores"])
    # Trainings of another commit are refused: each has a file of its own.
    name = f"links-{case.name}-{(source_commit() or 'unknown')[:8]}-trainings.json"
    to = ["--output", str(settings.folder / name)] if case.trains else []
    document = measure(parser().parse_args([*arguments, *to]), Console(stderr=True))
    return {**document, "arguments": arguments}


def _plan(options: argparse.Namespace, _: Console) -> dict[str, Any]:
    return {"benchmark": "plan", "commit": source_commit(), "costs": asdict(step_plan.measure_costs(options))}


_BENCHMARKS: Final[dict[str, tuple[Callable[[], Any], Callable[..., dict[str, Any]]]]] = {
    "plan": (step_plan.build_parser, _plan),
    "allreduce": (allreduce.build_parser, allreduce.measure),
    "accuracy": (accuracy_bench.build_parser, accuracy_bench.train),
    "training": (training_bench.build_parser, training_bench.train),
}
