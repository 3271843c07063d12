# SPDX-License-Identifier: Apache-2.0
"""Section `accuracy`: seconds to a test accuracy, or perplexity, on shaped links, beside gloo. It needs root."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from math import inf, nan
from statistics import mean
from typing import Any, Final, NamedTuple

from hopsum_evaluation.report.accuracy_figures import curves, figures_of, is_paced, seconds_to_target
from hopsum_evaluation.report.accuracy_plan import DILOCO, FULL, MODELS, PACE, Course
from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.report.settings import NotRunError, Result, Settings, Tell
from hopsum_evaluation.report.shown import Shown

RATE: Final = "200mbit"
BATCH: Final = FULL["cnn"].batch
TEXT_BATCH: Final = FULL["transformer"].batch
PAIRED: Final = "thc:bits=2"
"""The setting that `hopsum bench accuracy` has the plan choose at RATE."""
PACKED: Final = "thc:result_bits=6"
_THC: Final = "Li et al., THC, NSDI 2024 (arXiv 2302.08545), abstract"
_CNN, _TEXT = "cnn", "transformer"
CLAIMS: Final = (
    Claim(
        "tta-best",
        f"seconds of the fastest other scheme measured to {MODELS[_CNN].goal} over those of thc, {RATE} links",
        f"{_THC}: 1.40 to 1.47 with in-network aggregation",
        Basis.PUBLISHED,
        1.40,
        Relation.AT_LEAST,
    ),
    Claim(
        "tta-fp32",
        f"seconds of fp32 to {MODELS[_CNN].goal} over those of thc, {RATE} links, batches of {BATCH} a worker",
        "a goal of this project",
        Basis.OWN,
        2.0,
        Relation.AT_LEAST,
    ),
    Claim(
        "amdahl",
        f"speed-up of a step, fp32 over thc, over the bound by compute and all-reduce timed alone, {RATE} links",
        "a goal of this project",
        Basis.OWN,
        0.85,
        Relation.AT_LEAST,
    ),
    Claim(
        "tta-best-text",
        f"seconds of the fastest other scheme measured to {MODELS[_TEXT].goal}, transformer, over those of thc, "
        f"{RATE} links, batches of {TEXT_BATCH} a worker",
        f"{_THC}: 1.40 to 1.47 with in-network aggregation",
        Basis.PUBLISHED,
        1.40,
        Relation.AT_LEAST,
    ),
    Claim(
        "tta-software",
        f"seconds of the fastest scheme without thc to {MODELS[_CNN].goal} over those of thc by software parameter "
        f"servers, one at each worker, {RATE} links",
        f"{_THC} (version 2): 1.28 to 1.33 with a software parameter server; version 1: up to 1.32",
        Basis.PUBLISHED,
        1.28,
        Relation.AT_LEAST,
    ),
    Claim(
        "tta-best-2bits",
        f"seconds of the fastest other scheme measured to {MODELS[_CNN].goal} over those of {PAIRED}, {RATE} links",
        "a goal of this project",
        Basis.OWN,
        1.40,
        Relation.AT_LEAST,
    ),
    Claim(
        "tta-best-text-2bits",
        f"seconds of the fastest other scheme measured to {MODELS[_TEXT].goal}, transformer, over those of {PAIRED}, "
        f"{RATE} links",
        "a goal of this project",
        Basis.OWN,
        1.30,
        Relation.AT_LEAST,
    ),
    Claim(
        "tta-best-hosts",
        f"seconds of the fastest other scheme measured to {MODELS[_CNN].goal} over those of {PAIRED} with a switch on "
        f"every worker's host, {RATE} links",
        "a goal of this project",
        Basis.OWN,
        1.40,
        Relation.AT_LEAST,
    ),
    Claim(
        "tta-best-text-hosts",
        f"seconds of the fastest other scheme measured to {MODELS[_TEXT].goal}, transformer, over those of {PAIRED} "
        f"with a switch on every worker's host, {RATE} links",
        "a goal of this project",
        Basis.OWN,
        1.30,
        Relation.AT_LEAST,
    ),
)


def at_hosts(scheme: str) -> str:
    """Return the name of a scheme whose switches are on the workers' hosts."""
    return f"{scheme} at hosts"


class _Ratio(NamedTuple):
    """A claim on times to a target."""

    model: str
    ours: str = "thc"
    others: tuple[str, ...] = ("fp32", "fp16", "powersgd", "topk", "two-shot-4", "two-shot-8", "diloco")


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
_FABRIC_SHARE: Final = 0.85
"""The share of this section's time that the trainings with one switch in the middle take, for the progress bar."""
_SCHEMES: Final = {
    "powersgd": "PowerSGD of rank 2 by torch's hook",
    "topk": "topk (a tenth of the elements, error feedback, indices and values gathered by all)",
    "two-shot-4": "two-shot-4 (gradients in codes of 4 bits: all-to-all, sum, all-gather, error feedback)",
    "two-shot-8": "two-shot-8 (the same in 8 bits)",
    "diloco": "diloco (DiLoCo in fp32, synchronised every 20 steps)",
    "diloco-hopsum": "diloco-hopsum (the same through the switch, by thc)",
    "thc-ps": "thc-ps (the codes of thc, summed by software servers, one at each worker)",
}


def run(settings: Settings, tell: Tell) -> Result:
    """Measure the trainings of this section. Raises NotRunError where they cannot run here."""
    if reason := unavailable():
        raise NotRunError(reason)
    from hopsum_evaluation.report.accuracy_run import Trainings, run_apart

    courses = _courses(settings)
    repeats = max(repeats for course in courses for repeats in course.rates.values())
    seeds = tuple(settings.stream("data", "accuracy", repeat) for repeat in range(repeats))
    trainings = Trainings(settings.pick(2, 4, 4), courses, seeds)
    whole = run_apart(trainings, lambda done, now: tell(_FABRIC_SHARE * done, now))
    hosts = Trainings(trainings.workers, _hosts_courses(settings), seeds, "hosts")
    beside = run_apart(hosts, lambda done, now: tell(_FABRIC_SHARE + (1 - _FABRIC_SHARE) * done, f"hosts: {now}"))
    runs = whole["runs"] + [{**run, "scheme": at_hosts(run["scheme"])} for run in beside["runs"]]
    return {"workers": trainings.workers, **whole, "runs": runs}


def _hosts_courses(settings: Settings) -> tuple[Course, ...]:
    """Return the trainings with a switch on every worker's host. Other schemes have the same links in both."""
    return tuple(replace(course, schemes=(PAIRED,)) for course in _courses(settings))


def _courses(settings: Settings) -> tuple[Course, ...]:
    others = ("fp32", "fp16", "powersgd", "topk", "two-shot-4", "two-shot-8")
    all_of_them = (*others, "thc", "thc-ps", PACKED, PAIRED)
    rates = settings.pick({RATE: 2}, {RATE: 3}, {RATE: 5, "100mbit": 3, "1gbit": 3})
    strongest = ("fp32", "fp16", "powersgd", "two-shot-4", "thc")  # a claim on the fastest other needs these
    small = ("fp32", "topk", "two-shot-4", "thc", "thc-ps", PAIRED)
    rare = (*strongest, PAIRED, *DILOCO)
    whole, text_whole = FULL[_CNN], FULL[_TEXT]
    cnn = Course(_CNN, settings.pick(4, whole.steps, whole.steps), BATCH, settings.pick(2, whole.every, whole.every),
                 rates, settings.pick(small, (*strongest, PAIRED), all_of_them))  # fmt: skip
    text = Course(_TEXT, settings.pick(2, 0, text_whole.steps), TEXT_BATCH, settings.pick(2, 0, text_whole.every),
                  {RATE: settings.pick(2, 0, 3)}, settings.pick(("fp32", "thc"), (), rare),
                  paced=settings.pick({}, {}, {"100mbit": 1, "1gbit": 1}))  # fmt: skip
    return (cnn, text) if text.steps and find_spec("pydoc_data") is not None else (cnn,)


def unavailable() -> str | None:
    """Return why this cannot run here."""
    if find_spec("torch") is None or find_spec("sklearn") is None:
        return "needs torch and scikit-learn: pip install 'hopsum[demo]'"
    if os.geteuid() != 0:
        return "network namespaces, veth pairs and token buckets need root: run it with sudo"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found: install iproute2" if missing else None


def show(result: Result) -> Shown:
    """Return what the page says of a result of `run`, and nothing else."""
    models, runs = _models(result), [{"model": _CNN, **run} for run in result["runs"]]
    plots, tables = [], []
    for name in models:
        of_model = [run for run in runs if run["model"] == name]
        whole = [run for run in of_model if not is_paced(run)]
        plots += [curves(MODELS[name], name, whole, rate) for rate in dict.fromkeys(run["rate"] for run in whole)]
        tables.append(figures_of(MODELS[name], name, of_model))
    pairs = {name: _by_repeat([run for run in runs if (run["model"], run["rate"]) == (name, RATE)]) for name in MODELS}
    samples = {
        claim: [_seconds_ratio(ratio, pair) for pair in pairs[ratio.model] if ratio.ours in pair]
        for claim, ratio in _RATIOS.items()
    }
    samples["amdahl"] = [_of_bound(pair) for pair in pairs[_CNN]]
    reasons = {claim: _reason(ratio, models, bool(samples[claim])) for claim, ratio in _RATIOS.items()}
    return Shown(_words(result, models), tables, plots, samples, reasons)


def _models(result: Result) -> dict[str, dict[str, Any]]:
    """Return what is known of the models. Reports from before there were several have that of the one."""
    if "models" in result:
        found: dict[str, dict[str, Any]] = result["models"]
        return found
    return {_CNN: {**{key: result[key] for key in ("steps", "batch", "parameters")}, "data": "scikit-learn's digits"}}


def _words(result: Result, models: dict[str, dict[str, Any]]) -> list[str]:
    trained = "; ".join(
        f"a {MODELS[name].words} of {each['parameters']:,} parameters on {each['data']}, batches of {each['batch']} a "
        f"worker, {each['steps']} steps, to {MODELS[name].goal}"
        for name, each in models.items()
    )
    schemes = dict.fromkeys(_SCHEMES.get(run["scheme"], run["scheme"]) for run in result["runs"])
    codecs = [name for name in ("thc", PACKED, PAIRED) if name in schemes]
    hosts = [name for name in map(at_hosts, codecs) if name in schemes]
    others = ", ".join(name for name in schemes if name not in (*codecs, *hosts))
    words = [
        f"{trained[0].upper()}{trained[1:]}. DDP of {result['workers']} workers; each worker in "
        f"a network namespace of its own, both directions of its link shaped; {', '.join(codecs)} by the embedded "
        "switch in the middle, "
        f"{others} over gloo on the same links. All schemes train from the same parameters on the same "
        "batches, and all processes share this machine's cores. Looks at the test data are not in the seconds.",
        "The bound is (compute + all-reduce in fp32) / (compute + all-reduce by thc): a step without its all-reduce, "
        "all workers at the same time, and the all-reduce of one gradient alone, with error feedback as in training. "
        "Overlap of both can exceed it. The communication share is all-reduce / (compute + all-reduce).",
        "Digits are easy: what is compared is time, not what a codec does to hard models.",
    ]
    if hosts:
        words.append(f"{', '.join(hosts)}: the same with a switch on every worker's host, which sums a share of the "
                     "vector, and nothing in the middle. The other schemes use the same links in both.")  # fmt: skip
    if any(map(is_paced, result["runs"])):
        words.append(f'Where the seconds are "about", {PACE[0]} steps were trained to time them. The steps to the '
                     f"target are then those of the same seed at {RATE}: but for random roundings they do not "
                     "depend on the rate.")  # fmt: skip
    if _TEXT in models:
        words.append("The text is what Python's `help()` shows of the language, as its own library carries it: nothing "
                     "is downloaded, and other versions of Python have other text.")  # fmt: skip
    return words


def _reason(ratio: _Ratio, models: dict[str, dict[str, Any]], ran: bool) -> str:
    if ran:
        return f"a training did not reach {MODELS[ratio.model].goal} in {models[ratio.model]['steps']} steps"
    needs = ", where Python has pydoc_data" if ratio.model == _TEXT else ""
    return f"no {MODELS[ratio.model].words} was trained with {ratio.ours}; --full does{needs}"


def _by_repeat(runs: Sequence[dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    found: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for run in runs:
        found[run["repeat"]][run["scheme"]] = run
    return list(found.values())


def _seconds_ratio(ratio: _Ratio, pair: dict[str, dict[str, Any]]) -> float:
    """Return the seconds to the target, the fastest other scheme over ours. Not a number where one side is missing."""
    model = MODELS[ratio.model]
    ours_s = seconds_to_target(model, pair[ratio.ours])
    other_s = min(seconds_to_target(model, pair[scheme]) for scheme in ratio.others if scheme in pair)
    return other_s / ours_s if max(other_s, ours_s) < inf else nan


def _of_bound(pair: dict[str, dict[str, Any]]) -> float:
    fp32, thc = pair["fp32"], pair["thc"]
    compute_s = mean([fp32["compute_s"], thc["compute_s"]])
    bound = (compute_s + fp32["reduce_s"]) / (compute_s + thc["reduce_s"])
    return float(fp32["step_s"] / thc["step_s"] / bound)
