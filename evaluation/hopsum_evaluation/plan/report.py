# SPDX-License-Identifier: Apache-2.0
"""The predictions of `hopsum plan`: one JSON object for programs, a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from hopsum.plan import CodecChoice, Prediction
from hopsum.plan.setting import LEAST_BITS_PER_S, MOST_BITS_PER_S
from hopsum.plan.step import AGGREGATORS, COMPUTE
from hopsum_evaluation.plan.forecast import Forecast
from hopsum_evaluation.plan.units import said_rate, said_time

WIDE: Final = 100
"""Columns of a terminal that has room for what binds the all-reduce of a step that computing binds."""
_FP32, _FP16 = "ring fp32", "ring fp16"


def as_json(found: Forecast, plots: list[str]) -> dict[str, Any]:
    """Return what --json prints."""
    return {
        "job": asdict(found.job),
        "predictions": [_prediction(each, found) for each in found.predictions],
        "refused": found.refused,
        "choices": [asdict(each) | {"busier_bits": each.busier_bits} for each in found.choices],
        "costs": found.costs.as_json(),
        "plots": plots,
    }


def _prediction(each: Prediction, found: Forecast) -> dict[str, Any]:
    elements = found.job.elements
    return {
        "method": each.method,
        "step_s": each.step_s,
        "allreduce_s": each.allreduce_s,
        "exposed_s": each.exposed_s,
        "speedup_over_ring_fp32": found.step_s(_FP32) / each.step_s,
        "speedup_over_ring_fp16": found.step_s(_FP16) / each.step_s,
        "computing_share": found.job.compute_s / each.step_s,
        "binds": each.binds,
        "allreduce_binds": each.allreduce_binds,
        "busy_s": dict(each.busy_s),
        "up_bytes": each.traffic.up_bytes,
        "down_bytes": each.traffic.down_bytes,
        "up_bytes_per_element": each.traffic.up_bytes / elements,
        "down_bytes_per_element": each.traffic.down_bytes / elements,
        "chunks": each.traffic.chunks,
        "worker_cpu_s": each.worker_cpu_s,
        "aggregator_cpu_s": each.aggregator_cpu_s,
        "wins_bits_per_s": found.wins.get(each.method),
    }


def show(found: Forecast, console: Console) -> None:
    """Print the table, at which rates methods win, and where the costs come from."""
    console.print(_table(found, console.width >= WIDE))
    console.print(
        "Predicted. reduce: one all-reduce. B up, down: bytes per element on a worker's link, in whole frames.",
        highlight=False,
    )
    best = found.job.compute_s / found.step_s(_FP32)
    console.print(
        f"{best:.1%} of a step with ring fp32 is computing: no method can be more than "
        f"{1 / best:.3g} times as fast." if best else "Nothing is computed: speed-ups are those of the all-reduce.",
        highlight=False,
    )  # fmt: skip
    for name, reason in found.refused.items():
        console.print(f"{name}: not possible: {reason}", highlight=False)
    console.print(choices_table(found.choices, found.job.workers, found.job.link_bits_per_s))
    if found.wins:
        console.print(_wins(found))
    console.print("costs, one core:", highlight=False)
    for origin, names in found.costs.origins().items():
        console.print(f"  {', '.join(names)}: {origin}", highlight=False, soft_wrap=True)
    console.print("switch: assumed to add as fast as its links; no hardware was measured.", highlight=False)


def _table(found: Forecast, wide: bool) -> Table:
    job = found.job
    title = (
        f"{job.elements:,} elements, {job.workers} workers, links of {said_rate(job.link_bits_per_s)}, computing "
        f"{said_time(job.compute_s)}" + (f", {job.overlap:.0%} of it overlapped" if job.overlap else "")
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("step", "x fp32", "x fp16", "reduce", "B up", "down"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("binds", no_wrap=True)
    group = ""
    for each in found.predictions:
        before, (group, _, name) = group, each.method.partition(" ")
        if before not in ("", group):
            table.add_section()
        aggregated = group in AGGREGATORS
        if aggregated and before != group:
            table.add_row(group)
        table.add_row(
            f"  {name}" if aggregated else each.method,
            said_time(each.step_s),
            f"{found.step_s(_FP32) / each.step_s:.2f}",
            f"{found.step_s(_FP16) / each.step_s:.2f}",
            said_time(each.allreduce_s),
            f"{each.traffic.up_bytes / job.elements:.2f}",
            f"{each.traffic.down_bytes / job.elements:.2f}",
            each.binds if each.binds != COMPUTE or not wide else f"{COMPUTE}; {each.allreduce_binds}",
        )
    return table


def choices_table(choices: Sequence[CodecChoice], workers: int, bits_per_s: float) -> Table:
    """Return the choices of codec thc with their bits and errors. Those on the Pareto front have a star."""
    title = f"thc for {workers} workers: bits of an element against the error of the mean; *: no other beats both"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("", "up", "down", "NMSE", "of one worker", f"1 M at {said_rate(bits_per_s)}"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in choices:
        table.add_row(
            each.codec,
            "*" if each.on_front else "",
            f"{each.up_bits:.2f}",
            f"{each.down_bits:.2f}",
            f"{each.nmse:.4f}",
            f"{each.worker_nmse:.4f}",
            said_time(each.link_s(10**6, bits_per_s)),
        )
    return table


def _wins(found: Forecast) -> Table:
    table = Table(title="links on which the all-reduce is shorter", title_justify="left", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    table.add_column("", no_wrap=True)
    table.add_column(f"than {_FP32}")
    table.add_column(f"than {_FP16}")
    for method, rings in found.wins.items():
        table.add_row(method, said_ranges(rings[_FP32]), said_ranges(rings[_FP16]))
    return table


def said_ranges(ranges: list[tuple[float, float]]) -> str:
    """Return ranges of rates in words."""
    return ", ".join(_range(low, high) for low, high in ranges) or "none"


def _range(low: float, high: float) -> str:
    if low <= LEAST_BITS_PER_S:
        return "all" if high >= MOST_BITS_PER_S else f"up to {said_rate(high)}"
    return f"from {said_rate(low)}" + ("" if high >= MOST_BITS_PER_S else f" to {said_rate(high)}")
