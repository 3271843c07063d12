# SPDX-License-Identifier: Apache-2.0
"""Figures of `hopsum bench allreduce`: as JSON, a list over rates, and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hopsum.agent.timeline import overlap_s
from hopsum.communicator import Span
from hopsum_evaluation.bench.timing import commit, machine, versions
from hopsum_topologies import LinkCounts

if TYPE_CHECKING:
    from hopsum_evaluation.bench.allreduce_run import AllReduceSetting
    from hopsum_evaluation.bench.allreduce_worker import Measured


@dataclass(slots=True)
class RateFinding:
    """One subject at one rate."""

    subject: str
    rate: str | None
    """The rate in tc's words. None: not shaped."""
    rate_bits_per_s: float | None
    seconds: list[float] = field(default_factory=list)
    """The seconds of each run, the slowest rank's."""
    passed: list[list[LinkCounts]] = field(default_factory=list)
    """The counts of each run, by link."""
    peak_rss_bytes: list[int] = field(default_factory=list)
    """The peak since the process began, by rank."""
    ready_rss_bytes: int = 0
    """The resident bytes of a process with all imports and its vector, before its first all-reduce of that: the
    largest."""
    retransmits: int = 0
    spans: list[Span] = field(default_factory=list)
    """The spans of rank 0 in the last run."""
    worker_cpu_s: list[float] = field(default_factory=list)
    """Processor time, own code and kernel, of each run: mean over ranks."""
    switch_cpu_s: list[float] = field(default_factory=list)

    def add(self, done: Sequence[Measured], passed: list[LinkCounts], switch_cpu_s: float) -> None:
        """Take in one run: what every rank measured, and what passed its link."""
        self.seconds.append(max(measured.seconds for measured in done))
        self.passed.append(passed)
        self.peak_rss_bytes = [measured.peak_rss_bytes for measured in done]
        self.spans = done[0].spans
        self.retransmits += sum(measured.retransmits for measured in done)
        self.worker_cpu_s.append(fmean(sum(measured.cpu) for measured in done))
        self.switch_cpu_s.append(switch_cpu_s)

    def as_json(self) -> dict[str, Any]:
        """Return the figures of the subject."""
        report: dict[str, Any] = {
            "seconds": round(median(self.seconds), 4),
            "seconds_min": round(min(self.seconds), 4),
            "seconds_max": round(max(self.seconds), 4),
            "worker_cpu_s": round(median(self.worker_cpu_s), 4),
            "switch_cpu_s": round(median(self.switch_cpu_s), 2),
            "peak_rss_bytes": max(self.peak_rss_bytes),
            "ready_rss_bytes": self.ready_rss_bytes,
            "retransmits": self.retransmits,
            "dropped": sum(link.dropped for links in self.passed for link in links),
        }
        report["busiest_wire_bytes"] = round(
            fmean(max(max(link.wire_bytes_up, link.wire_bytes_down) for link in links) for links in self.passed)
        )
        for name in ("wire_bytes_up", "wire_bytes_down", "interface_bytes_up", "interface_bytes_down"):
            report[name] = round(self._mean(name))
        for way in ("up", "down"):
            used = None
            if self.rate_bits_per_s is not None:
                used = round(8 * self._mean(f"wire_bytes_{way}") / fmean(self.seconds) / self.rate_bits_per_s, 3)
            report[f"link_utilisation_{way}"] = used
        if self.spans:
            report["codec_beside_network_s"] = round(overlap_s(self.spans), 4)
            codec = [span.stop_s - span.start_s for span in self.spans if not span.stage.startswith("network")]
            report["codec_s"] = round(sum(codec), 4)
        return report

    def _mean(self, name: str) -> float:
        """Return the mean of a count over runs and workers' links."""
        workers = len(self.peak_rss_bytes)
        return fmean(getattr(link, name) for links in self.passed for link in links[:workers])


Findings = list[RateFinding]
GLOO = ("gloo-fp32", "gloo-fp16")
OTHERS = (*GLOO, "two-shot-4", "two-shot-8")
"""Subjects that need no switch, and torch. All of them run over gloo."""


def as_json(findings: Findings, setting: AllReduceSetting, elapsed_s: float) -> dict[str, Any]:
    """Return the report: under "rates" one entry per rate."""
    rates = []
    for rate in setting.rates:
        here = {found.subject: found.as_json() for found in findings if found.rate == rate}
        entry: dict[str, Any] = {
            "rate": rate or "unshaped",
            "rate_bits_per_s": next(found.rate_bits_per_s for found in findings if found.rate == rate),
            "subjects": here,
        }
        for ours, theirs in (("thc", "gloo-fp32"), ("thc", "gloo-fp16"), ("thc", "thc-no-overlap")):
            if ours in here and theirs in here:
                entry[f"speedup_over_{theirs}"] = round(here[theirs]["seconds"] / here[ours]["seconds"], 3)
        for found in here.values():
            found["busiest_bits_per_element"] = round(8 * found["busiest_wire_bytes"] / setting.elements, 3)
            found["speedup_over"] = {
                theirs: round(here[theirs]["seconds"] / found["seconds"], 3) for theirs in OTHERS if theirs in here
            }
        rates.append(entry)
    return {
        "benchmark": "allreduce",
        "elements": setting.elements,
        "tensor_bytes": 4 * setting.elements,
        "workers": setting.workers,
        "buckets": setting.buckets,
        "window": setting.window,
        "gso": setting.gso,
        "placement": setting.placement,
        "round_trip_s": setting.round_trip_s,
        "runs": setting.runs,
        "seed": setting.seed,
        "rates": rates,
        "machine": machine(),
        "versions": versions("hopsum", "numpy", "numba", "torch", "llvmlite"),
        "commit": commit(),
        "elapsed_s": round(elapsed_s, 1),
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report as a table for each rate."""
    what = f"{report['elements']:,} float32, {report['workers']} workers, placement {report['placement']}"
    console.print(f"all-reduce of {what}, medians; bits: of an element, in the busiest direction of a link")
    for entry in report["rates"]:
        console.print(_table(entry))
    where = report["machine"]
    console.print(f"{where['processor']}, {where['cores']} cores, load {where['load_1min']}, {report['elapsed_s']} s")


def _table(entry: dict[str, Any]) -> Table:
    """Return the subjects at one rate, a row each."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in (entry["rate"], "s", "min-max", "of thc", "MB up/down", "bits", "link used", "peak MB"):
        table.add_column(column, justify="left" if column == entry["rate"] else "right")
    thc = entry["subjects"].get("thc")
    for subject, found in entry["subjects"].items():
        used = [found["link_utilisation_up"], found["link_utilisation_down"]]
        table.add_row(
            subject,
            f"{found['seconds']:.3f}",
            f"{found['seconds_min']:.2f}-{found['seconds_max']:.2f}",
            f"{found['seconds'] / thc['seconds']:.2f}" if thc else "",
            f"{found['wire_bytes_up'] / 1e6:.0f}/{found['wire_bytes_down'] / 1e6:.0f}",
            f"{found['busiest_bits_per_element']:.2f}",
            "" if used[0] is None else f"{used[0]:.0%}/{used[1]:.0%}",
            f"{found['peak_rss_bytes'] / 1e6:.0f}",
        )
    return table
