# SPDX-License-Identifier: Apache-2.0
"""The page: one HTML file that loads nothing, made from the JSON of a report alone."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final

from hopsum_evaluation.report.claims import Judged, Verdict
from hopsum_evaluation.report.collect import shown
from hopsum_evaluation.report.interval import CONFIDENCE
from hopsum_evaluation.report.sections import SECTIONS
from hopsum_evaluation.report.shown import Plot, Shown, ShownTable, figure

_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
h1{font-size:1.6rem}h2{margin-top:3rem;border-bottom:1px solid #ccc}h3{font-size:1rem;margin-bottom:.3rem}
table{border-collapse:collapse;margin:.5rem 0 1.5rem;font-size:.85rem;display:block;overflow-x:auto}
td,th{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top}
td:first-child,th:first-child,.claims td,.claims th{text-align:left}
th{background:#f4f4f4}figure{margin:1rem 0}img{max-width:100%}
.reproduced{color:#00623f;font-weight:600}.not-reproduced{color:#a32100;font-weight:600}.not-run{color:#666}
.small{color:#555;font-size:.85rem}
"""
MEANING: Final = (
    f"Ours is the mean over seeds with its {CONFIDENCE:.0%} interval (Student's t). A claim is reproduced if the whole "
    "interval satisfies its condition, and not reproduced otherwise, also where the run is too small to tell; without "
    "at least two samples it is not run."
)
CLAIM_HEADS: Final = ("verdict", "claim", "published", "ours", "samples", "source", "known from")


def make_page(report: dict[str, Any], draw: Callable[[Plot], str]) -> str:
    """Return the HTML of a report. `draw` makes an SVG document of a plot."""
    parts = {name: shown(report, name) for name in SECTIONS}
    title = f"hopsum report, {report['begun'][:10]}"
    body = [f"<h1>{escape(title)}</h1>", *(_paragraph(line) for line in origin(report)), _paragraph(MEANING)]
    body += [_table(summary(report, {name: judged for name, (_, judged) in parts.items()}))]
    for name, (part, judged) in parts.items():
        body += _section(name, part, judged, draw)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def origin(report: dict[str, Any]) -> list[str]:
    """Return in words what a report was made with."""
    where = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version)
    return [
        f"Begun {report['begun']}, {report['seconds']:,.0f} s; size {report['size']}, seed {report['seed']}, from "
        "which all randomness derives by name.",
        f"{where['processor']}, {where['cores']} cores, load before the run {where['load_1min']}; {where['system']}. "
        f"{versions}. Commit {report['commit'] or 'unknown'}; manifest of the P4 program "
        f"{(report['p4_manifest_sha256'] or 'unknown')[:16]}.",
    ]  # fmt: skip


def summary(report: dict[str, Any], judged: dict[str, list[Judged]]) -> ShownTable:
    """Return how many claims of each section have which verdict, and when, how long, beside what load it was run."""
    rows = []
    for name, found in judged.items():
        result = report["sections"].get(name, {})
        counts = (str(sum(each.verdict is verdict for each in found)) for verdict in Verdict)
        rows.append([
            SECTIONS[name].title, *counts, figure(result.get("seconds")), figure(result.get("load_1min"), 2),
            str(result.get("begun", report["begun"]))[:10] if result else "-",
            str(result.get("commit", report["commit"]) or "unknown")[:8] if result else "-",
            result.get("machine", report["machine"])["processor"] if result else "-",
        ])  # fmt: skip
    return ShownTable("Claims", ("", *Verdict, "seconds", "load before", "date", "commit", "processor"), rows)


def claim_row(judged: Judged) -> tuple[str, ...]:
    """Return the cells of a claim, in the order of CLAIM_HEADS."""
    claim = judged.claim
    ours = judged.reason
    if judged.ours is not None:
        interval = f"{figure(judged.ours.mean, 4)} ({figure(judged.ours.low, 4)} to {figure(judged.ours.high, 4)})"
        ours = f"{interval}: {judged.reason}" if judged.reason else interval
    count = str(len(judged.samples))
    return str(judged.verdict), claim.text, claim.condition, ours, count, claim.source, str(claim.basis)


def _section(name: str, part: Shown, judged: Sequence[Judged], draw: Callable[[Plot], str]) -> list[str]:
    made = [f'<h2 id="{name}">{escape(SECTIONS[name].title)}</h2>', *(_paragraph(line) for line in part.words)]
    made.append(_claims(judged))
    for plot in part.plots:
        image = b64encode(draw(plot).encode()).decode()
        made.append(f'<figure><img alt="{escape(plot.title)}" src="data:image/svg+xml;base64,{image}"></figure>')
    return made + [_table(table) for table in part.tables]


def _claims(judged: Sequence[Judged]) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in CLAIM_HEADS)
    rows = []
    for each in judged:
        verdict, *cells = claim_row(each)
        marked = f'<td class="{verdict.replace(" ", "-")}">{verdict}</td>'
        rows.append(f"<tr>{marked}{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    return f'<table class="claims"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _table(table: ShownTable) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    title = f"<h3>{escape(table.title)}</h3>"
    return f"{title}<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"
