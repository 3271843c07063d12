# SPDX-License-Identifier: Apache-2.0
"""Section `dataplane`: codes per second of the embedded switch and of bmv2, by `hopsum bench dataplane`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hopsum.codec import best_table
from hopsum_evaluation.bench.dataplane import FAILURES, SLOTS, DataplaneSetting, describe
from hopsum_evaluation.bench.dataplane import run as measure
from hopsum_evaluation.charts import Plot, Series
from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.report.experiment import NotRunError, Result, Settings, Shown, ShownTable, Tell, figure

_PAIRS: Final = {
    "packed-bmv2": ("bmv2", "naive_bmv2"),
    "packed-interpreter": ("interpreter", "naive_interpreter"),
    "native-bmv2": ("socket", "bmv2"),
}
"""Subjects that a claim compares."""
_TEXTS: Final = {
    "packed-bmv2": "codes per second of the shipped program over one that works lane by lane: bmv2",
    "packed-interpreter": "codes per second of the shipped program over one that works lane by lane: interpreter",
    "native-bmv2": "codes per second over sockets: embedded switch in native code over bmv2 on veth pairs",
}
CLAIMS: Final = tuple(
    Claim(name, text, "docs/performance.md", Basis.OWN, 1.0, Relation.AT_LEAST) for name, text in _TEXTS.items()
)
_LABELS: Final = {
    "native": "native engine, in memory",
    "interpreter": "interpreter, in memory",
    "socket": "native switch, UDP",
    "loopback": "UDP without a switch",
    "bmv2": "bmv2, veth",
    "naive_interpreter": "lane by lane, interpreter",
    "naive_bmv2": "lane by lane, bmv2",
}
_WORKERS: Final = 4
_PARTS: Final = ("pipeline", "sockets", "bmv2", "naive")


def run(settings: Settings, tell: Tell) -> Result:
    """Measure the switches, which take turns. Raises NotRunError."""
    parts = settings.pick(("pipeline",), _PARTS, _PARTS)
    runs, seconds = settings.pick(2, 5, 7), settings.pick(0.05, 0.5, 1.0)
    seed = settings.stream("data", "dataplane") >> 32
    setting = DataplaneSetting(parts, _WORKERS, SLOTS, seed, best_table(_WORKERS).values)
    tell(0.0, f"{', '.join(parts)}: {runs} runs of {seconds:g} s each")
    try:
        findings = measure(setting, runs, seconds)
    except FAILURES as error:
        raise NotRunError(f"{type(error).__name__}: {error}") from error
    samples = {name: list(found) for name, found in findings.samples.items()}
    return {"updates_per_s": samples, "bench": describe(findings, setting, runs, 0.0)}


def show(result: Result) -> Shown:
    """Make a table, a plot and the samples of the claim from a result of `run`."""
    samples, bench = result["updates_per_s"], result["bench"]
    there = [name for name in _LABELS if name in samples]
    rates = {name: sorted(bench["lanes"] * rate / 1e6 for rate in samples[name]) for name in there}
    reasons = {
        claim: f"not measured: {', '.join(_LABELS[name] for name in pair if name not in samples)}"
        for claim, pair in _PAIRS.items()
    }
    series = [Series(_LABELS[name], list(range(1, len(found) + 1)), found) for name, found in rates.items()]
    title = "Codes per second of every run, slowest first"
    return Shown(
        tables=[_table(rates, bench["bound"])],
        plots=[Plot("dataplane-codes", title, "run", "M codes per second", series, log_y=True)],
        samples={claim: ratios(samples, *pair) for claim, pair in _PAIRS.items()},
        reasons=reasons,
    )


def ratios(samples: Mapping[str, Sequence[float]], above: str, below: str) -> list[float]:
    """Divide the rates of two subjects, run by run, since they took turns. Empty where one was not measured."""
    if above not in samples or below not in samples:
        return []
    return [one / other for one, other in zip(samples[above], samples[below], strict=True)]


def _table(rates: Mapping[str, Sequence[float]], bound: Mapping[str, Any]) -> ShownTable:
    rows = [
        [_LABELS[name], figure(found[len(found) // 2]), f"{figure(found[0])} to {figure(found[-1])}",
         bound[name]["text"] if name in bound else ""]
        for name, found in rates.items()
    ]  # fmt: skip
    return ShownTable("dataplane-codes", ("", "M codes/s, median", "all runs", "what bounds it"), rows)
