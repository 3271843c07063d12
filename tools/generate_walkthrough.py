# SPDX-License-Identifier: Apache-2.0
"""Generate docs/walkthrough.md by running it: every packet of one all-reduce, and what the switch does with it.

python tools/generate_walkthrough.py             write the page
python tools/generate_walkthrough.py --check     exit 1 with a diff if it is stale

tools/walkthrough_template.md has the text. `{{name}}` in it stands for a piece of the run, and a line
`{{quote FILE | BEGIN | END}}` for lines of a P4 source.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]

from hopsum_ptf.frames import hopsum_header, payload_of  # noqa: E402
from hopsum_wire import Kind, Op, unpack_codes  # noqa: E402
from hopsum_wire.payload import lanes  # noqa: E402
from p4_subset import write_or_compare  # noqa: E402
from walkthrough_parts import changed_lines, decided, entry_text, packet_lines, quote, trace_lines  # noqa: E402
from walkthrough_run import REPEATED, REPETITIONS, TABLE, Walk, run  # noqa: E402
from wire_page_parts import table  # noqa: E402

TARGET = ROOT / "docs" / "walkthrough.md"
TEMPLATE = ROOT / "tools" / "walkthrough_template.md"
ADMISSION = ("switch_address", "jobs", "workers", "lookup")
"""Tables that the page shows for the first packet only: every packet hits them."""

_QUOTE = re.compile(r"\{\{quote (.+)\}\}")
_PIECE = re.compile(r"\{\{([^{}]+)\}\}")
_ENTRIES_MEAN = {
    "switch_address": "what comes to this address and the service's UDP port is for the service",
    "jobs": "the generation lives; it has these slots, and so many workers complete a round",
    "workers": "the worker's bit, and where its packets come from",
    "lookup": "the values of the codes 0 to 15; the entry has them as coefficients of a polynomial",
    "rewrite": "where packets to the worker go",
}


def render(walk: Walk) -> str:
    """Return the page. Raises QuoteError, or KeyError for a missing piece."""
    _require_as_told(walk)
    pieces = {**_packets(walk), **_tables(walk), **_numbers(walk)}
    lines = [_filled(line, pieces) for line in TEMPLATE.read_text(encoding="utf-8").splitlines()]
    return "\n".join(lines) + "\n"


def _filled(line: str, pieces: Mapping[str, str]) -> str:
    quoted = _QUOTE.fullmatch(line)
    if quoted is not None:
        return "\n".join(quote(*quoted[1].split(" | ")))
    return _PIECE.sub(lambda match: pieces[match[1]], line)


def _require_as_told(walk: Walk) -> None:
    """Check that the run agrees with the text."""
    first, again, last, late = walk.updates
    assert first.frame == again.frame == late.frame, "worker 0 sends the same packet again"
    assert late.out == last.out[:1], "the late duplicate gets the RESULT that was lost"
    assert np.array_equal(walk.means[0], walk.means[1]), "both workers have the same mean"
    assert np.array_equal(walk.gradients[0, : len(REPEATED[0])], _decoded(walk, 0)), "the codes of worker 0 are exact"


def _decoded(walk: Walk, rank: int) -> list[float]:
    """Return the values of the first codes of a worker."""
    return [_step() * TABLE.values[code] - TABLE.bound for code in _codes(walk, rank)]


def _step() -> float:
    return 2 * TABLE.bound / TABLE.granularity


def _packets(walk: Walk) -> dict[str, str]:
    first, last = walk.updates[0].frame, walk.updates[2]
    (_, to_first), (_, to_second) = last.out
    traces = [trace_lines(trace, without=ADMISSION if number else ()) for number, trace in enumerate(walk.traces)]
    header = hopsum_header(first)
    return {
        "overview": "\n".join(_overview(walk)),
        "packet 1": "\n".join(packet_lines(first)),
        "packet 3": "\n".join(changed_lines(last.frame, first)),
        "result to worker 0": "\n".join(changed_lines(to_first, last.frame)),
        "result to worker 1": "\n".join(changed_lines(to_second, to_first)),
        **{f"trace {number}": "\n".join(lines) for number, lines in enumerate(traces, 1)},
        "copy": str((walk.job.slot_base + header.slot) * 2 + (header.round & 1)),
    }


def _overview(walk: Walk) -> Iterator[str]:
    yield "      worker 0          switch           worker 1"
    for number, (exchange, trace) in enumerate(zip(walk.updates, walk.traces, strict=True), 1):
        senders = {hopsum_header(exchange.frame).worker}
        yield f"{number:>3}      {_arrows(senders, '-- UPDATE ----->', '<----- UPDATE --')}   {decided(trace)}"
        receivers = {hopsum_header(frame).worker for _, frame in exchange.out}
        if receivers:
            yield f"         {_arrows(receivers, '<----- RESULT --', '-- RESULT ----->')}"


def _arrows(workers: set[int], left: str, right: str) -> str:
    """Return a line of the overview with the arrows of these workers."""
    sides = [arrow if rank in workers else " " * len(arrow) for rank, arrow in enumerate((left, right))]
    return f"|{'|'.join(sides)}|"


def _tables(walk: Walk) -> dict[str, str]:
    ranges = [_range(f"worker {rank}", "switch", exchange.frame) for rank, exchange in enumerate(walk.ranges)]
    ranges += [_range("switch", f"worker {hopsum_header(frame).worker}", frame) for _, frame in walk.ranges[-1].out]
    titles = ("from", "to", "kind", "op", "slot", "round", "first lane", "as float32")
    worker = ("code", "value")
    elements = ("element", "worker 0", *worker, "worker 1", *worker, "lane", "decoded mean", "true mean")
    return {
        "entries": "\n".join(table(("table", "key", "action", "meaning"), _entries(walk))),
        "ranges": "\n".join(table(titles, ranges)),
        "arithmetic": "\n".join(table(elements, _elements(walk))),
    }


def _entries(walk: Walk) -> Iterator[tuple[str, ...]]:
    for entry in walk.entries:
        yield f"`{entry.table}`", *entry_text(entry, TABLE.switch_values), _ENTRIES_MEAN[entry.table]
    for group in walk.groups:
        copies = ", ".join(f"port {replica.port} with instance {replica.instance}" for replica in group.replicas)
        yield "multicast", f"group {group.id}", copies, "a copy for each worker"


def _range(sender: str, receiver: str, frame: bytes) -> tuple[object, ...]:
    header = hopsum_header(frame)
    lane = _lanes(frame)[:1].astype(np.uint32)
    value = f"{lane.view(np.float32)[0]:.4f}"
    return sender, receiver, Kind(header.kind).name, Op(header.op).name, header.slot, header.round, hex(lane[0]), value


def _elements(walk: Walk) -> Iterator[tuple[object, ...]]:
    lanes_of_result = _lanes(walk.updates[2].out[0][1])
    sides = [list(zip(walk.gradients[rank].tolist(), _codes(walk, rank), strict=False)) for rank in (0, 1)]
    for number, pair in enumerate(zip(*sides, strict=True)):
        shown = [part for x, code in pair for part in (f"{x:g}", code, TABLE.values[code])]
        means = (walk.means[0][number], walk.gradients[:, number].mean())
        yield number, *shown, lanes_of_result[number], *(f"{mean:g}" for mean in means)


def _codes(walk: Walk, rank: int) -> list[int]:
    """Return the first codes of a worker, as many as there are different elements."""
    packed = np.frombuffer(payload_of(walk.updates[2 * rank].frame), np.uint8)
    return [int(code) for code in unpack_codes(packed)[: len(REPEATED[0])]]


def _lanes(frame: bytes) -> NDArray[Any]:
    return lanes(hopsum_header(frame).op, np.frombuffer(payload_of(frame), np.uint8))


def _numbers(walk: Walk) -> dict[str, str]:
    workers, elements = walk.gradients.shape
    values = [[TABLE.values[code] for code in _codes(walk, rank)] for rank in (0, 1)]
    pieces = {
        "slots": walk.job.slots,
        "generation": walk.job.generation,
        "generation in hexadecimal": hex(walk.job.generation),
        "elements": elements,
        "period": elements // REPETITIONS,
        "repetitions": REPETITIONS,
        "workers": workers,
        "first lanes": f"{' '.join(f'{value:02x}' for value in values[0][:4])}: {', '.join(map(str, values[0][:4]))}",
        "step": f"{_step():g}",
        "bound": f"{TABLE.bound:g}",
        "granularity": TABLE.granularity,
        "largest sum": workers * TABLE.granularity,
        "sum": f"{values[0][0]} + {values[1][0]} = {values[0][0] + values[1][0]}",
        "rounded": _rounded(REPEATED[1][0]),
        **_errors(walk),
    }
    return {name: str(piece) for name, piece in pieces.items()}


def _rounded(x: float) -> str:
    """Say how a number between two values of the table is rounded."""
    points = [_step() * value - TABLE.bound for value in TABLE.values]
    above = next(point for point in points if point > x)
    below = points[points.index(above) - 1]
    often = round((above - below) / (x - below))
    return f"{x:g} lies between {below:g} and {above:g}, and becomes {above:g} once in {often} times."


def _errors(walk: Walk) -> dict[str, str]:
    """Return the error of the decoded mean. All terms of the sums are exact."""
    true = walk.gradients.astype(np.float64).mean(axis=0)
    error = walk.means[0] - true
    average = np.abs(error.reshape(REPETITIONS, -1).mean(axis=0)).max()
    return {
        "error": f"{(error**2).sum() / (true**2).sum():.2%}",
        "largest": f"{np.abs(error).max():g}",
        "average": f"{average:.4f}",
    }


def main(argv: list[str] | None = None) -> int:
    """Write the page, or with --check compare it."""
    parser = argparse.ArgumentParser(description="generate the walk-through page by running it")
    parser.add_argument("--check", action="store_true", help="exit 1 with a diff if the page is stale")
    return write_or_compare(TARGET, render(run()), check=parser.parse_args(argv).check)


if __name__ == "__main__":
    sys.exit(main())
