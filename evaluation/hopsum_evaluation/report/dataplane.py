# SPDX-License-Identifier: Apache-2.0
"""Section `dataplane`: codes per second of the switches and of a lane-by-lane program, see `hopsum bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.report.settings import NotRunError, Result, Settings, Tell
from hopsum_evaluation.report.shown import Plot, Series, Shown, ShownTable, figure

_OWN: Final = "docs/performance.md"
CLAIMS: Final = (
    Claim(
        "packed-bmv2", "codes per second of the shipped program over those of one that works lane by lane, bmv2",
        _OWN, Basis.OWN, 1.0, Relation.AT_LEAST,
    ),
    Claim(
        "packed-interpreter",
        "codes per second of the shipped program over those of one that works lane by lane, reference interpreter",
        _OWN, Basis.OWN, 1.0, Relation.AT_LEAST,
    ),
    Claim(
        "native-bmv2", "codes per second over sockets, embedded switch in native code over bmv2 behind veth pairs",
        _OWN, Basis.OWN, 1.0, Relation.AT_LEAST,
    ),
)  # fmt: skip
_RATIOS: Final = {
    "packed-bmv2": ("bmv2", "naive_bmv2"),
    "packed-interpreter": ("interpreter", "naive_interpreter"),
    "native-bmv2": ("socket", "bmv2"),
}
_LABELS: Final = {
    "native": "native engine, in memory",
    "interpreter": "interpreter, in memory",
    "socket": "native switch, UDP",
    "loopback": "UDP without a switch",
    "bmv2": "bmv2, veth",
    "naive_native": "lane by lane, native engine",
    "naive_interpreter": "lane by lane, interpreter",
    "naive_bmv2": "lane by lane, bmv2",
}
_WORKERS: Final = 4


def run(settings: Settings, tell: Tell) -> Result:
    """Measure the benchmarks of this section. Raises NotRunError where they cannot run here."""
    from hopsum.codec import best_table
    from hopsum_evaluation.bench.dataplane import FAILURES, SLOTS
    from hopsum_evaluation.bench.dataplane import run as measure
    from hopsum_evaluation.bench.report import describe
    from hopsum_evaluation.bench.subjects import DataplaneSetting

    parts = settings.pick(("pipeline",), ("pipeline", "sockets", "bmv2", "naive"),
                          ("pipeline", "sockets", "bmv2", "naive", "naive-native"))  # fmt: skip
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
    """Return what the page says of a result of `run`, and nothing else."""
    samples, bench = result["updates_per_s"], result["bench"]
    there = [name for name in _LABELS if name in samples]
    rates = {name: sorted(bench["lanes"] * rate / 1e6 for rate in samples[name]) for name in there}
    reasons = {
        claim: f"not measured: {', '.join(_LABELS[name] for name in pair if name not in samples)}"
        for claim, pair in _RATIOS.items()
    }
    versions = ", ".join(f"{name} {version}" for name, version in bench["versions"].items() if version)
    return Shown(
        words=[
            f"LOOKUP_ADD8 updates of {bench['lanes']} codes from {bench['workers']} workers; {bench['runs']} runs, the "
            "subjects taking turns, of which each claim compares the pairs. Workers and switches share this machine's "
            "cores. The other program has a table lookup and an addition for each of the codes (evaluation/naive); the "
            f"shipped one works on all of them at once. {versions}.",
        ],
        plots=[_plot(rates)],
        tables=[_table(rates, bench["bound"])],
        samples={claim: _ratios(samples, *pair) for claim, pair in _RATIOS.items()},
        reasons=reasons,
    )


def _ratios(samples: Mapping[str, Sequence[float]], above: str, below: str) -> list[float]:
    if above not in samples or below not in samples:
        return []
    return [one / other for one, other in zip(samples[above], samples[below], strict=True)]


def _plot(rates: Mapping[str, Sequence[float]]) -> Plot:
    series = [Series(_LABELS[name], list(range(1, len(found) + 1)), list(found)) for name, found in rates.items()]
    title = "Codes per second of every run, slowest first"
    return Plot("dataplane-codes", title, "run", "M codes per second", series, log_y=True)


def _table(rates: Mapping[str, Sequence[float]], bound: Mapping[str, Any]) -> ShownTable:
    rows = [
        [_LABELS[name], figure(found[len(found) // 2]), f"{figure(found[0])} to {figure(found[-1])}",
         bound[name]["text"] if name in bound else ""]
        for name, found in rates.items()
    ]  # fmt: skip
    return ShownTable("M codes per second", ("", "median", "all runs", "what bounds it"), rows)
