# SPDX-License-Identifier: Apache-2.0
"""A network as an SVG: the middle at the top, everybody else a row below what leads there, jobs by colour."""

from __future__ import annotations

from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from hopsum_cli.topology.drawing import children, depths, link_words, root, seat_words
from hopsum_topologies.description import Link, Topology

COLUMN, ROW, MARGIN, TITLE, FOOT = 110, 120, 16, 56, 50
SWITCH_WIDTH, SWITCH_HEIGHT = 92, 40
HOST_WIDTH, HOST_HEIGHT = 84, 52
LEAST_WIDTH = 480
_JOBS: Final = ("#dbeafe", "#fde2e4", "#dcfce7", "#fef3c7")
_LINES: Final = ("#2563eb", "#be123c", "#15803d", "#b45309")
_STYLE: Final = """\
text { font-family: Helvetica, Arial, sans-serif; font-size: 13px; fill: #1f2937; text-anchor: middle }
.title { font-size: 16px; font-weight: bold; text-anchor: start }
.about, .legend { font-size: 12px; fill: #4b5563; text-anchor: start }
.small { font-size: 11px; fill: #4b5563 }
.name { font-weight: bold }"""


class NodePosition(NamedTuple):
    """The middle of a node."""

    x: float
    y: float


def drawing(topology: Topology) -> str:
    """Return the whole file."""
    places, width = layout(topology)
    height = max(place.y for place in places.values()) + HOST_HEIGHT / 2 + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}"'
        f' viewBox="0 0 {width:g} {height:g}">',
        f"<title>{escape(topology.name)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
        f'<text class="title" x="16" y="26">{escape(topology.name)}</text>',
        f'<text class="about" x="16" y="45">{escape(topology.summary)}</text>',
        *(_line(link, places) for link in topology.links),
        *(_link_text(link, places) for link in topology.links if link_words(link)),
        *(_switch(topology, switch, places[switch]) for switch in topology.switches),
        *(_host(topology, host, places[host]) for host in topology.hosts),
        *_legend(topology, height),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def layout(topology: Topology) -> tuple[dict[str, NodePosition], float]:
    """Return where every node stands and the width: hosts side by side in the tree's order, switches above theirs."""
    top = root(topology)
    depth = depths(topology, top)
    columns: dict[str, float] = {}
    used = [0]
    _place(topology, top, {top: 0}, columns, used)
    width = max(LEAST_WIDTH, 2 * MARGIN + COLUMN * used[0])
    left = (width - COLUMN * used[0]) / 2
    places = {
        node: NodePosition(left + COLUMN * (column + 0.5), TITLE + SWITCH_HEIGHT + ROW * depth[node])
        for node, column in columns.items()
    }
    return places, width


def _place(topology: Topology, node: str, known: dict[str, int], columns: dict[str, float], used: list[int]) -> float:
    """Give a node and all below it their columns. `used` counts those that hosts have taken."""
    below = children(topology, node, known)
    known.update(dict.fromkeys(below, 0))
    if not below:
        columns[node], used[0] = float(used[0]), used[0] + 1
    else:
        found = [_place(topology, child, known, columns, used) for child in below]
        columns[node] = (found[0] + found[-1]) / 2
    return columns[node]


def _line(link: Link, places: dict[str, NodePosition]) -> str:
    (x1, y1), (x2, y2) = (places[end] for end in link.ends)
    dashes = ' stroke-dasharray="5 4"' if link.loss else ""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#6b7280" stroke-width="1.5"{dashes}/>'


def _link_text(link: Link, places: dict[str, NodePosition]) -> str:
    """Put the words nearer to the lower end, where lines from one switch have parted.

    White below the words makes them readable on lines.
    """
    low, high = sorted((places[end] for end in link.ends), key=lambda place: -place.y)
    words = link_words(link)
    x, y = low.x + (high.x - low.x) * 0.45, low.y + (high.y - low.y) * 0.45 - 7 * len(words)
    width = 6.2 * max(map(len, words)) + 6
    lines = [
        f'<text class="small" x="{x:g}" y="{y + 11 + 14 * number:g}">{escape(line)}</text>'
        for number, line in enumerate(words)
    ]
    back = f'<rect x="{x - width / 2:g}" y="{y:g}" width="{width:g}" height="{14 * len(words)}" fill="#ffffff"/>'
    return "".join([back, *lines])


def _switch(topology: Topology, switch: str, place: NodePosition) -> str:
    x, y = place.x - SWITCH_WIDTH / 2, place.y - SWITCH_HEIGHT / 2
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{SWITCH_WIDTH}" height="{SWITCH_HEIGHT}" rx="9" fill="#374151"/>'
        f'<text class="name" x="{place.x:g}" y="{place.y - 2:g}" style="fill:#ffffff">{switch}</text>'
        f'<text class="small" x="{place.x:g}" y="{place.y + 13:g}" style="fill:#e5e7eb">{topology.ip(switch)}</text>'
    )


def _host(topology: Topology, host: str, place: NodePosition) -> str:
    words, job = seat_words(topology, host)
    fill, stroke = ("#f3f4f6", "#6b7280") if job is None else (_JOBS[job % len(_JOBS)], _LINES[job % len(_LINES)])
    x, y = place.x - HOST_WIDTH / 2, place.y - HOST_HEIGHT / 2
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{HOST_WIDTH}" height="{HOST_HEIGHT}" rx="4" fill="{fill}"'
        f' stroke="{stroke}" stroke-width="1.2"/>'
        f'<text class="name" x="{place.x:g}" y="{place.y - 10:g}">{host}</text>'
        f'<text class="small" x="{place.x:g}" y="{place.y + 5:g}">{topology.ip(host)}</text>'
        f'<text class="small" x="{place.x:g}" y="{place.y + 19:g}">{escape(words)}</text>'
    )


def _legend(topology: Topology, height: float) -> list[str]:
    words = "; ".join(f"job {job.name}: {len(job.workers)} workers" for job in topology.jobs)
    return [f'<text class="legend" x="16" y="{height - 14:g}">{escape(words)}</text>'] if words else []
