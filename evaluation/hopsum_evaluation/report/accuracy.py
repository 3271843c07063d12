# SPDX-License-Identifier: Apache-2.0
"""Section `accuracy`: seconds to a test accuracy, or perplexity, on shaped links, beside other schemes. It needs root.

Workers train by DDP, each in a network namespace with a link of its own, both directions shaped. thc is summed by the
embedded switch, in the middle or one on every worker's host. Other schemes run over gloo on the same links. All train
from the same parameters on the same batches, and share this machine's cores. Measuring test data is not in the seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from hopsum.codec import make_codec
from hopsum.transport.worker_loop import compiled_kernel
from hopsum_controlplane.resource_allocator import GenerationAllocator
from hopsum_evaluation.bench.dilation import ProcessorQuotas, dilated_rate, dilated_timing
from hopsum_evaluation.bench.placements import ShardedJobs, hosts_of, links_unavailable, seats_of, start_switches
from hopsum_evaluation.report.accuracy_plan import (
    FULL,
    MODELS,
    PACE,
    AccuracyPlan,
    Course,
    Ready,
    TrainingOrder,
    TrainingRun,
)
from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.report.experiment import NotRunError, Result, Settings, Shown, Tell, measure_apart
from hopsum_evaluation.report.time_to_target import (
    at_hosts,
    curves,
    is_paced,
    runs_by_seed,
    seconds_ratio,
    step_table,
)
from hopsum_topologies import Star
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool

RATE: Final = "200mbit"
PAIRED: Final = "thc:bits=2"
PACKED: Final = "thc:result_bits=6"
WINDOW: Final = 512
_THC: Final = "Li et al., THC (NSDI 2024), abstract"
_GOAL: Final = "goal"
_CNN, _TEXT = "cnn", "transformer"


class _Ratio(NamedTuple):
    """The trainings that a claim compares: seconds to the target of the fastest of `others` over those of `ours`."""

    model: str
    ours: str = "thc"
    others: tuple[str, ...] = ()
    """Empty: every scheme but those of codec thc."""

    def rivals(self, schemes: Iterable[str]) -> list[str]:
        """Pick the others of the schemes that were trained."""
        # Not a list of names: a scheme that reports call otherwise, or a new one, would be left out without a word.
        if not self.others:
            return [scheme for scheme in schemes if not scheme.startswith("thc")]
        return [scheme for scheme in schemes if scheme in self.others]


_RATIOS: Final = {
    "tta-best": _Ratio(_CNN),
    "tta-fp32": _Ratio(_CNN, others=("fp32",)),
    "tta-best-text": _Ratio(_TEXT),
    "tta-software": _Ratio(_CNN, ours="thc-ps"),
    "tta-best-2bits": _Ratio(_CNN, ours=PAIRED),
    "tta-best-text-2bits": _Ratio(_TEXT, ours=PAIRED),
    "tta-best-hosts": _Ratio(_CNN, ours=at_hosts(PAIRED)),
    "tta-best-text-hosts": _Ratio(_TEXT, ours=at_hosts(PAIRED)),
}


def _claim(name: str, published: float, source: str = _GOAL) -> Claim:
    ratio = _RATIOS[name]
    rival = "fp32" if ratio.others == ("fp32",) else "the fastest other scheme"
    text = f"seconds to {MODELS[ratio.model].goal}, {RATE} links: {rival} over {ratio.ours}"
    basis = Basis.OWN if source == _GOAL else Basis.PUBLISHED
    return Claim(name, text, source, basis, published, Relation.AT_LEAST)


CLAIMS: Final = (
    _claim("tta-best", 1.40, f"{_THC}: 1.40 to 1.47"),
    _claim("tta-fp32", 2.0),
    Claim(
        "amdahl",
        f"speed-up of a step over fp32, over its bound by compute and all-reduce timed alone, {RATE} links: thc",
        _GOAL,
        Basis.OWN,
        0.85,
        Relation.AT_LEAST,
    ),
    _claim("tta-best-text", 1.40, f"{_THC}: 1.40 to 1.47"),
    _claim("tta-software", 1.28, f"{_THC} (version 2): 1.28 to 1.33"),
    _claim("tta-best-2bits", 1.40),
    _claim("tta-best-text-2bits", 1.30),
    _claim("tta-best-hosts", 1.40),
    _claim("tta-best-text-hosts", 1.30),
)
_FABRIC_SHARE: Final = 0.85
"""Share of the section's time for the trainings with one switch in the middle, for the progress bar."""

Keep = Callable[[dict[str, Any]], None]
"""Called with the figures of each training when it ends."""


@dataclass(frozen=True, slots=True)
class Trainings:
    """Trainings that share links, switches and a pool of workers.

    workers: 2 to 16.
    seeds: one per repeat, as many as any rate of a course needs.
    placement: place of the switches, one of `bench.placements.PLACEMENTS`.
    done: rate, scheme and repeat of trainings that an earlier call has done.
    device, threads: as in AccuracyPlan.
    dilate: factor of time dilation, see `bench.dilation`.
    """

    workers: int
    courses: Sequence[Course]
    seeds: Sequence[int]
    placement: str = "fabric"
    done: frozenset[tuple[str, str, int]] = frozenset()
    device: str = "cpu"
    threads: int = 1
    dilate: float = 1.0

    @property
    def codecs(self) -> tuple[str, ...]:
        """The schemes that switches sum, by the spelling of their codecs."""
        schemes = dict.fromkeys(scheme for course in self.courses for scheme in course.schemes)
        return tuple(scheme for scheme in schemes if scheme.partition(":")[0] == "thc")

    @property
    def count(self) -> int:
        """Number of trainings."""
        return sum(
            (sum(course.rates.values()) + sum(course.paced.values())) * len(course.schemes) for course in self.courses
        )


def run(settings: Settings, tell: Tell) -> Result:
    """Train every course with a switch in the middle, then hopsum's best setting with a switch on every host.

    Raises NotRunError.
    """
    if reason := unavailable():
        raise NotRunError(reason)
    courses = _courses(settings)
    # Seeds are paired over schemes and rates, so as many as the rate with most repeats needs.
    repeats = max(repeats for course in courses for repeats in course.rates.values())
    seeds = tuple(settings.stream("data", "accuracy", repeat) for repeat in range(repeats))
    trainings = Trainings(settings.pick(2, 4, 4), courses, seeds)
    whole = measure_apart(train_all, trainings, lambda done, now: tell(_FABRIC_SHARE * done, now))
    # Other schemes use no switch: their trainings would be the same again.
    hosts = replace(
        trainings, courses=tuple(replace(course, schemes=(PAIRED,)) for course in courses), placement="hosts"
    )
    rest = 1 - _FABRIC_SHARE
    beside = measure_apart(train_all, hosts, lambda done, now: tell(_FABRIC_SHARE + rest * done, f"hosts: {now}"))
    runs = whole["runs"] + [{**run, "scheme": at_hosts(run["scheme"])} for run in beside["runs"]]
    return {"workers": trainings.workers, **whole, "runs": runs}


def _courses(settings: Settings) -> tuple[Course, ...]:
    others = ("fp32", "fp16", "powersgd", "topk", "two-shot:bits=4", "two-shot:bits=8")
    # The claims on the fastest other scheme need the strongest of them.
    strongest = ("fp32", "fp16", "powersgd", "two-shot:bits=4", "thc", PAIRED)
    small = ("fp32", "thc", "thc-ps", PAIRED)
    whole, text_whole = FULL[_CNN], FULL[_TEXT]
    cnn = Course(
        _CNN,
        settings.pick(4, whole.steps, whole.steps),
        whole.batch,
        settings.pick(2, whole.every, whole.every),
        settings.pick({RATE: 1}, {RATE: 3}, {RATE: 5, "100mbit": 3, "1gbit": 3}),
        settings.pick(small, strongest, (*others, "thc", "thc-ps", PACKED, PAIRED)),
    )
    text = Course(
        _TEXT,
        settings.pick(2, 0, text_whole.steps),
        text_whole.batch,
        settings.pick(2, 0, text_whole.every),
        {RATE: settings.pick(1, 0, 3)},
        settings.pick(("fp32", "thc"), (), strongest),
        paced=settings.pick({}, {}, {"100mbit": 1, "1gbit": 1}),
    )
    return (cnn, text) if text.steps and find_spec("pydoc_data") is not None else (cnn,)


def unavailable() -> str | None:
    """Return why trainings cannot run on this machine, or None."""
    if find_spec("torch") is None or find_spec("sklearn") is None:
        return "needs torch and scikit-learn: pip install 'hopsum[demo]'"
    return links_unavailable()


def train_all(trainings: Trainings, tell: Tell, keep: Keep = lambda _: None) -> dict[str, Any]:
    """Start links, switches and workers, and do all trainings, schemes by turns. Return "models" and "runs".

    Raises ControlPlaneError, TopologyError, WorkerDiedError, OSError.
    """
    # Here, not above: only this process and the workers need torch.
    from hopsum_evaluation.report.accuracy_worker import work

    # Kernels are compiled here, once: workers find them in the cache.
    codecs = {name: make_codec(name, workers=trainings.workers) for name in trainings.codecs}
    compiled_kernel()
    with ExitStack() as stack:
        quotas = stack.enter_context(ProcessorQuotas(trainings.dilate))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hopsum-report-")))
        star = stack.enter_context(Star(hosts_of(trainings.placement, trainings.workers)))
        tell(0.0, f"starting the switch and {trainings.workers} workers")
        switches = start_switches(stack, trainings.placement, star, trainings.workers)
        seats = seats_of(star, switches, trainings.workers)
        jobs = ShardedJobs(stack, switches, seats, GenerationAllocator())
        models = tuple(course.model for course in trainings.courses)
        services = tuple(switch.service for switch in switches)
        timed = any(course.seconds for course in trainings.courses)
        plan = AccuracyPlan(
            trainings.workers, models, trainings.codecs * (1 + timed), folder, services,
            dilated_timing(trainings.dilate), trainings.device, trainings.threads,
        )  # fmt: skip
        pool = stack.enter_context(WorkerPool(seats, work, plan, gpus=trainings.device == "cuda"))
        # Workers open the sockets of one codec after the other, and wait for its job: the order is that of plan.codecs.
        # A job of its own for each codec: the lookup table is the job's, so codecs cannot share one.
        for number, name in enumerate(plan.codecs):
            jobs.create(pool, codecs[name], WINDOW, folder / f"report{number}.json")
        ready = [Ready(*each) for each in pool.gather("ready")[0][0]]
        quotas.hold([*([process.pid] for process in pool.processes), *([switch.pid] for switch in switches)])
        runs = _train_by_turns(trainings, star, pool, tell, keep)
        pool.send(None)
        # Workers end before their switch does: a worker without a switch would send again until its deadline.
        pool.gather("finished")
    trained = {
        course.model: {"steps": course.steps, "batch": course.batch, **each._asdict()}
        for course, each in zip(trainings.courses, ready, strict=True)
    }
    return {"models": trained, "runs": runs}


def _train_by_turns(trainings: Trainings, star: Star, pool: WorkerPool, tell: Tell, keep: Keep) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    for course in trainings.courses:
        rates = [(rate, course.rates[rate], False) for rate in course.rates]
        rates += [(rate, course.paced[rate], True) for rate in course.paced]
        for rate, repeats, paced in rates:
            # Shaping again empties the queues and begins the counts at zero.
            star.shape(dilated_rate(rate, trainings.dilate))
            slow = star.rate_bits_per_s()
            bits_per_s = None if slow is None else trainings.dilate * slow
            steps, every = PACE if paced else (course.steps, course.every)
            for repeat, seed in enumerate(trainings.seeds[:repeats]):
                for scheme in turned(course.schemes, repeat):
                    if (rate, scheme, repeat) in trainings.done:
                        continue
                    tell(len(runs) / trainings.count, f"{course.model}, {rate}, {scheme}, seed {repeat + 1}")
                    order = TrainingOrder(course.model, scheme, seed, steps, course.batch, every, course.seconds)
                    pool.send(tuple(order))
                    runs.append({
                        "model": course.model, "rate": rate, "bits_per_s": bits_per_s, "scheme": scheme,
                        "placement": trainings.placement, "paced": paced, "repeat": repeat,
                        **gather_trained(pool)[0].undilated(trainings.dilate)._asdict(),
                    })  # fmt: skip
                    keep(runs[-1])
    return runs


def turned(schemes: Sequence[str], repeat: int) -> Sequence[str]:
    """Rotate the order of schemes by the number of the repeat, since the first one finds cold caches."""
    first = repeat % len(schemes)
    return (*schemes[first:], *schemes[:first])


def gather_trained(pool: WorkerPool) -> list[TrainingRun]:
    """Wait until all workers have ended a training. Return their figures by rank.

    A worker reports steps meanwhile, so that the pool does not take a long training for one that hangs. Raises
    WorkerDiedError.
    """
    found: dict[int, TrainingRun] = {}
    while len(found) < len(pool.pipes):
        rank, message = pool.receive()
        if message[0] == "done":
            found[rank] = TrainingRun(*message[1:])
        elif message[0] != "step":
            raise WorkerDiedError(f"worker {rank} sent {message[0]!r} in a training")
    return [found[rank] for rank in range(len(pool.pipes))]


def show(result: Result) -> Shown:
    """Make curves, step times and the samples of the claims from a result of `run`."""
    models, runs = result["models"], result["runs"]
    plots, tables = [], []
    for name in models:
        of_model = [run for run in runs if run["model"] == name]
        whole = [run for run in of_model if not is_paced(run)]
        plots += [curves(MODELS[name], name, whole, rate) for rate in dict.fromkeys(run["rate"] for run in whole)]
        tables.append(step_table(MODELS[name], name, of_model))
    pairs = {
        name: runs_by_seed([run for run in runs if (run["model"], run["rate"]) == (name, RATE)]) for name in MODELS
    }
    samples: dict[str, list[float]] = {}
    for claim, ratio in _RATIOS.items():
        samples[claim] = []
        for pair in pairs[ratio.model]:
            if ratio.ours in pair:
                rivals = [pair[scheme] for scheme in ratio.rivals(pair)]
                samples[claim].append(seconds_ratio(MODELS[ratio.model], rivals, pair[ratio.ours]))
    samples["amdahl"] = [of_bound(pair) for pair in pairs[_CNN]]
    reasons = {claim: _reason(ratio, models, samples[claim]) for claim, ratio in _RATIOS.items()}
    return Shown(tables, plots, samples, reasons)


def _reason(ratio: _Ratio, models: dict[str, dict[str, Any]], samples: Sequence[float]) -> str:
    if any(map(isnan, samples)):
        return f"a training did not reach {MODELS[ratio.model].goal} in {models[ratio.model]['steps']} steps"
    needs = ", where Python has pydoc_data" if ratio.model == _TEXT else ""
    return f"no {MODELS[ratio.model].words} was trained with {ratio.ours}; --full does{needs}"


def of_bound(pair: dict[str, Any]) -> float:
    """Divide the speed-up of a step by thc over fp32 by its bound: both steps as compute and all-reduce timed alone.

    Overlap of compute and all-reduce can exceed the bound.
    """
    fp32, thc = pair["fp32"], pair["thc"]
    compute_s = fmean([fp32["compute_s"], thc["compute_s"]])
    bound = (compute_s + fp32["reduce_s"]) / (compute_s + thc["reduce_s"])
    return float(fp32["step_s"] / thc["step_s"] / bound)
