# SPDX-License-Identifier: Apache-2.0
"""Recordings: all that a case wrote to a switch, sent it and got back, with the counters at its end.

One gzip-compressed JSON file for each case:

    {"case": "module.Class",
     "steps": [{"write": [P4Runtime Update in text form, ...]},
               {"port": 3, "frame": hex, "out": [[port, hex], ...]}, ...],
     "counters": {"drops": {"15": 1}, "job_events": {"0": 2}}}
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hopsum_ptf.port_links import OutputFrame

_SUFFIX = ".json.gz"


@dataclass(frozen=True)
class Write:
    """One batch of P4Runtime updates, each in protobuf's text form."""

    updates: tuple[str, ...]


@dataclass(frozen=True)
class Exchange:
    """One frame into the switch, and all frames out."""

    port: int
    frame: bytes
    out: tuple[OutputFrame, ...]


@dataclass
class Recording:
    """One case on one switch that started with empty tables, registers and counters."""

    case: str
    steps: list[Write | Exchange] = field(default_factory=list)
    counters: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Packets by counter and cell, without cells of 0."""

    @property
    def packets(self) -> tuple[int, int]:
        """Return the numbers of frames into the switch and out of it."""
        exchanges = [step for step in self.steps if isinstance(step, Exchange)]
        return len(exchanges), sum(len(step.out) for step in exchanges)

    def save(self, folder: Path) -> Path:
        """Write the file CASE.json.gz in a folder, and return its path. Equal recordings give equal bytes."""
        content = {
            "case": self.case,
            "steps": [_step_to_json(step) for step in self.steps],
            "counters": {
                name: {str(index): cells[index] for index in sorted(cells)}
                for name, cells in sorted(self.counters.items())
            },
        }
        path = folder / f"{self.case}{_SUFFIX}"
        # mtime 0: the same recording has the same bytes, so git sees a change only where there is one.
        path.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 9, mtime=0))
        return path


def load(path: Path) -> Recording:
    """Read the recording in a file that `save` wrote."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    counters = {name: {int(k): v for k, v in cells.items()} for name, cells in content["counters"].items()}
    return Recording(content["case"], [_step_from_json(step) for step in content["steps"]], counters)


def recordings(folder: Path) -> list[Path]:
    """Return the recordings in a folder in the order of their names."""
    return sorted(folder.glob(f"*{_SUFFIX}"))


def multiset(outputs: Sequence[OutputFrame]) -> dict[int, list[bytes]]:
    """Return the frames by port, sorted: two results are equal where outputs differ in the order of frames only."""
    ports: dict[int, list[bytes]] = {}
    # A switch keeps the order from one port to one port, but copies of one frame may leave in any order.
    for port, frame in sorted(outputs):
        ports.setdefault(port, []).append(frame)
    return ports


def _step_to_json(step: Write | Exchange) -> dict[str, object]:
    if isinstance(step, Write):
        return {"write": list(step.updates)}
    return {"port": step.port, "frame": step.frame.hex(), "out": [[o.port, o.frame.hex()] for o in step.out]}


def _step_from_json(step: Mapping[str, object]) -> Write | Exchange:
    match step:
        case {"write": list(updates)}:
            return Write(tuple(updates))
        case {"port": int(port), "frame": str(frame), "out": list(out)}:
            outputs = tuple(OutputFrame(out_port, bytes.fromhex(text)) for out_port, text in out)
            return Exchange(port, bytes.fromhex(frame), outputs)
    raise ValueError(f"not a step of a recording: {step}")
