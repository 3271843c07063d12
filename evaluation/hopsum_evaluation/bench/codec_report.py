# SPDX-License-Identifier: Apache-2.0
"""The figures of `hopsum bench codec`: as one JSON object, and as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hopsum_evaluation.bench.codec_subjects import ACTIONS, Subject
from hopsum_evaluation.bench.published import ACTIONS as PUBLISHED_ACTIONS
from hopsum_evaluation.bench.timing import Rate, commit, machine, versions

COPY_BYTES = 8
"""The bytes of memcpy for each float32: read and written."""
_SHOWN = ("encode", "decode", "residual_read", "residual_write", "encode_feedback")


def describe(rates: Mapping[str, Rate], subjects: Sequence[Subject], seed: int) -> dict[str, Any]:
    """Return what --json prints, but for the setting: a row per codec, memcpy, the published worker or null."""
    return {
        "codecs": [_row(subject, rates, seed) for subject in subjects],
        "published": _published(rates),
        **rates["memcpy"].as_json("memcpy_elements_per_s"),
        "memcpy_bytes_per_s": round(rates["memcpy"].median * COPY_BYTES),
        "elements": subjects[0].x.size,
        "workers": subjects[0].codec.workers,
        "seed": seed,
        "machine": machine(),
        "versions": versions("hopsum", "numpy", "numba", "llvmlite", "torch"),
        "commit": commit(),
    }


def _row(subject: Subject, rates: Mapping[str, Rate], seed: int) -> dict[str, Any]:
    """Return rates of a codec's actions, what bounds them, and their ratios to the published worker's."""
    row, least = subject.facts(seed), subject.least_bytes()
    copied = rates["memcpy"].median * COPY_BYTES
    for action in ACTIONS:
        rate = rates[f"{subject.label} {action}"]
        row |= rate.as_json(f"{action}_elements_per_s")
        row[f"{action}_bytes_per_element"] = least[action]
        row[f"{action}_bytes_per_s"] = round(rate.median * least[action])
        row[f"{action}_of_memcpy"] = round(rate.median * least[action] / copied, 4)
        published = rates.get(f"published {action}")
        if action in PUBLISHED_ACTIONS:
            row[f"{action}_of_published"] = None if published is None else round(rate.median / published.median, 2)
    return row


def _published(rates: Mapping[str, Rate]) -> dict[str, float] | None:
    found: dict[str, float] = {}
    for action in PUBLISHED_ACTIONS:
        if rate := rates.get(f"published {action}"):
            found |= rate.as_json(f"{action}_elements_per_s")
    return found or None


def show(report: dict[str, Any], console: Console) -> None:
    """Print the tables."""
    console.print(_rates(report))
    console.print(_bounds(report))
    for row in report["threads"]:
        console.print(
            f"{row['codec']} on {row['threads']} threads: encode {_millions(row, 'encode_elements_per_s')}, "
            f"x {row['encode_of_one_thread']:.2f} of one; decode {_millions(row, 'decode_elements_per_s')}, "
            f"x {row['decode_of_one_thread']:.2f}",
            highlight=False,
        )
    console.print(_lossless(report["lossless"]), highlight=False)
    where = report["machine"]
    console.print(
        f"{where['processor']}, core {report['core']} of {where['cores']}, load {where['load_1min']}; one thread"
    )


def _lossless(row: dict[str, Any]) -> str:
    return (
        f"lossless on {row['threads']} threads: {row['elements']:,} elements, {row['density']:.0%} not zero; encode "
        f"{_millions(row, 'encode_elements_per_s')}, encode to mean {_millions(row, 'all_elements_per_s')}; "
        f"bytes up {row['bytes_of_dense']:.4f} of float32's, gamma d + 1/32 = {row['bytes_formula']:.4f}"
    )


def _rates(report: dict[str, Any]) -> Table:
    title = f"{report['workers']} workers, {report['elements']:,} elements; M elements/s, median (min-max of {{}})"
    table = _table(title.format(report["runs"]), "encode", "decode", "NMSE", "theory")
    for row in report["codecs"]:
        expected = "" if row["nmse_expected"] is None else f"{row['nmse_expected']:.5f}"
        table.add_row(f"{row['codec']} {row['backend']}", *_coded(row), f"{row['nmse']:.3g}", expected)
    table.add_section()
    if report["published"] is not None:
        table.add_row("published, torch", *_coded(report["published"]))
    table.add_row("memcpy", _millions(report, "memcpy_elements_per_s"))
    return table


def _bounds(report: dict[str, Any]) -> Table:
    """Return the table of bytes: what each action has to move, at which rate, beside memcpy and the published one."""
    title = f"bytes that must be moved, beside memcpy's {report['memcpy_bytes_per_s'] / 1e9:.1f} GB/s"
    table = _table(title, "M/s", "B each", "GB/s", "memcpy", "published")
    for row in report["codecs"]:
        for action in _SHOWN:
            ratio = row.get(f"{action}_of_published")
            table.add_row(
                f"{row['codec']} {row['backend']}: {action.replace('_', ' ')}",
                f"{row[f'{action}_elements_per_s'] / 1e6:,.0f}",
                f"{row[f'{action}_bytes_per_element']:g}",
                f"{row[f'{action}_bytes_per_s'] / 1e9:.2f}",
                f"{row[f'{action}_of_memcpy']:.0%}",
                "" if ratio is None else f"x {ratio:.1f}",
            )
        table.add_section()
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _coded(row: dict[str, Any]) -> tuple[str, str]:
    return _millions(row, "encode_elements_per_s"), _millions(row, "decode_elements_per_s")


def _millions(row: dict[str, Any], key: str) -> str:
    return f"{row[key] / 1e6:,.0f} ({row[f'{key}_min'] / 1e6:,.0f}-{row[f'{key}_max'] / 1e6:,.0f})"
