# SPDX-License-Identifier: Apache-2.0
"""The figures of `hopsum bench dataplane`: as one JSON object, and as a table for people."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from hopsum_controlplane.artifacts import compiled_program
from hopsum_evaluation.bench import naive
from hopsum_evaluation.bench.startup import MEMORY_SLOTS
from hopsum_evaluation.bench.subjects import BMV2_SLOTS, PIPELINE_SLOTS, DataplaneSetting
from hopsum_evaluation.bench.timing import Rate, commit, machine, versions
from hopsum_evaluation.bench.traffic import CODES
from hopsum_topologies.bmv2_process import bmv2_versions

_CODES_KEYS = {
    "native": "native.pipeline_codes_per_s",
    "interpreter": "interpreter.pipeline_codes_per_s",
    "socket": "native.socket_codes_per_s",
    "socket_python": "native.socket_python_codes_per_s",
    "loopback": "loopback_codes_per_s",
    "bmv2": "bmv2.codes_per_s",
    "naive_native": "naive.native_pipeline_codes_per_s",
    "naive_interpreter": "naive.interpreter_pipeline_codes_per_s",
    "naive_bmv2": "naive.bmv2_codes_per_s",
    "one_engine": "shards.one_engine_codes_per_s",
    "two_engines": "shards.two_engines_codes_per_s",
}
_PACKETS_KEYS = {
    "socket": "native.packets_per_s",
    "socket_python": "native.python_packets_per_s",
    "loopback": "loopback_packets_per_s",
    "bmv2": "bmv2.packets_per_s",
    "naive_bmv2": "naive.bmv2_packets_per_s",
}
_SECONDS_KEYS = {"cold_start": "native.cold_start_s", "warm_start": "native.warm_start_s"}
_MEMORY_KEYS = tuple(f"native.{name}_bytes{how}" for name in ("rss", "peak") for how in ("", "_cold"))
_LABELS = {
    "native": "native engine",
    "interpreter": "interpreter",
    "socket": "native switch, UDP",
    "socket_python": "native switch, UDP in Python",
    "loopback": "UDP without a switch",
    "bmv2": "bmv2, veth",
    "naive_native": "naive, native engine",
    "naive_interpreter": "naive, interpreter",
    "naive_bmv2": "naive, bmv2",
    "one_engine": "native engine, on one core",
    "two_engines": "two of them, on two cores",
}


@dataclass(frozen=True, slots=True)
class Findings:
    """By subject: rates in UPDATEs per second (memcpy: codes, starts: seconds), and what explains them.

    `effort` and `busy` are what engines and sockets say of themselves, `memory` is by key and in bytes, `samples` are
    the rates of each run.
    """

    rates: Mapping[str, Rate]
    effort: Mapping[str, Mapping[str, float]]
    busy: Mapping[str, Mapping[str, float]]
    memory: Mapping[str, int]
    samples: Mapping[str, Sequence[float]]


def describe(findings: Findings, setting: DataplaneSetting, runs: int, seconds: float) -> dict[str, Any]:
    """Return what --json prints. A figure that was not measured is null."""
    rates, report = findings.rates, dict[str, Any]()
    for name, key in _CODES_KEYS.items():
        report |= _key(rates.get(name), key, CODES)
    for name, key in _PACKETS_KEYS.items():
        report |= _key(rates.get(name), key, 1)
    for name, key in _SECONDS_KEYS.items():
        rate = rates.get(name)
        report |= {key: None} if rate is None else rate.as_json(key, digits=3)
    return {
        **report,
        "native.compiled_port_gain": _gain(findings.samples, "socket", "socket_python"),
        "shards.two_engines_gain": _gain(findings.samples, "two_engines", "one_engine"),
        **{key: findings.memory.get(key) for key in _MEMORY_KEYS},
        **rates["memcpy"].as_json("memcpy_codes_per_s"),
        "bound": bounds(findings),
        "lanes": CODES,
        "workers": setting.workers,
        "slots": {
            "pipeline": PIPELINE_SLOTS, "sockets": setting.slots, "bmv2": BMV2_SLOTS, "naive": naive.SLOTS,
            "memory": MEMORY_SLOTS,
        },
        "runs": runs,
        "seed": setting.seed,
        "seconds": round(seconds, 2),
        "machine": machine(),
        "versions": {
            **versions("hopsum", "numpy", "llvmlite"),
            **(bmv2_versions() if {"bmv2", "naive_bmv2"} & set(rates) else {}),
        },
        "programs": _programs(),
        "commit": commit(),
    }  # fmt: skip


def bounds(findings: Findings) -> dict[str, dict[str, Any]]:
    """Return by subject the figures that say what bounds it, and `text`, which draws them together."""
    found: dict[str, dict[str, Any]] = {}
    for name, effort in findings.effort.items():
        ns = 1e9 / findings.rates[name].median
        text = (
            f"{ns:,.0f} ns an update and its share of replies, {effort['least_ns_per_packet']:,.0f} in the fastest"
            f" call; to copy both once takes {effort['copy_ns_per_packet']:.0f}"
        )
        found[name] = {"ns_per_packet": round(ns, 1), **effort, "text": text}
    for name, busy in findings.busy.items():
        switch, load = (busy[f"{side}_user"] + busy[f"{side}_system"] for side in ("switch", "load"))
        text = (
            f"switch {switch:.0%} of a core ({busy['switch_system']:.0%} in the kernel),"
            f" {busy['switch_ns_per_packet']:,.0f} ns an update and its share of replies;"
            f" workers {load:.0%} ({busy['load_system']:.0%}), {busy['load_ns_per_packet']:,.0f} ns"
        )
        if name == "socket" and "loopback" in findings.rates:
            share = findings.rates[name].median / findings.rates["loopback"].median
            text += f"; {share:.0%} of what the same datagrams reach without a switch"
        found[name] = {**busy, "text": text}
    return found


def show(report: dict[str, Any], console: Console) -> None:
    """Print the tables."""
    table = Table(
        title=f"LOOKUP_ADD8, {report['workers']} workers; median (min-max of {report['runs']})", title_justify="left"
    )
    for name in ("", "M codes/s", "updates/s"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, label in _LABELS.items():
        key, packets = _CODES_KEYS[name], _PACKETS_KEYS.get(name)
        if report[key] is not None:
            digits = 1 if report[key] > 1e6 else 3
            table.add_row(label, _range(report, key, 1e6, digits), _range(report, packets, 1, 0) if packets else "")
    table.add_row("memcpy", _range(report, "memcpy_codes_per_s", 1e6, 0), "")
    console.print(table)
    if report["shards.two_engines_gain"] is not None:
        console.print(f"two engines on two cores sum {report['shards.two_engines_gain']:.2f}x what one sums alone")
    for name, bound in report["bound"].items():
        console.print(f"{_LABELS[name]}: {bound['text']}")
    if report["native.cold_start_s"] is not None:
        _show_start(report, console)
    where, of = report["machine"], ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    console.print(f"{where['processor']}, {where['cores']} cores, load {where['load_1min']}, {where['system']}")
    console.print(f"{of}; seed {report['seed']}, commit {report['commit']}")


def _show_start(report: dict[str, Any], console: Console) -> None:
    table = Table(title=f"native switch process, {report['slots']['memory']} slots", title_justify="left")
    for name in ("", "until ready, s", "resident, MB", "at most, MB"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for label, key, how in (("warm", "native.warm_start_s", ""), ("cold", "native.cold_start_s", "_cold")):
        sizes = (f"{report[f'native.{name}_bytes{how}'] / 1e6:.0f}" for name in ("rss", "peak"))
        table.add_row(label, _range(report, key, 1, 2), *sizes)
    console.print(table)


def _programs() -> dict[str, str | None]:
    """Return the SHA-256 of each program's JSON."""
    found: dict[str, str | None] = {"hopsum": hashlib.sha256(compiled_program()[0].read_bytes()).hexdigest()}
    other = naive.naive_program()
    found["naive"] = None if other is None else hashlib.sha256(other[0].read_bytes()).hexdigest()
    return found


def _key(rate: Rate | None, key: str, factor: int) -> dict[str, Any]:
    if rate is None:
        return {key: None}
    return Rate(rate.median * factor, rate.low * factor, rate.high * factor).as_json(key)


def _gain(samples: Mapping[str, Sequence[float]], name: str, over: str) -> float | None:
    """Return how many times as fast a subject is as another: the median of the runs, which took turns."""
    if over not in samples:
        return None
    return round(median(one / other for one, other in zip(samples[name], samples[over], strict=True)), 3)


def _range(report: dict[str, Any], key: str, unit: float, digits: int) -> str:
    middle, low, high = (f"{report[name] / unit:,.{digits}f}" for name in (key, f"{key}_min", f"{key}_max"))
    return f"{middle} ({low}-{high})"
