# SPDX-License-Identifier: Apache-2.0
"""Recordings of what bmv2 makes of random programs. Record anew, where simple_switch_grpc is installed:

    .venv/bin/python -m tests.switch.random_programs.recordings

Each file holds a whole case, so the generator may change. One gzip-compressed JSON object for each program:

    {"program": JSON text, "p4info": text form, "writes": [P4Runtime Update in text form, ...],
     "exchanges": [[port, frame in hex, [[port, frame in hex], ...]], ...]}

The outputs of a frame are sorted.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from google.protobuf import text_format
from p4.v1.p4runtime_pb2 import Update

from hopsum_base.p4runtime import p4info_pb2

from . import reference
from .cases import Case, random_case

DATA = Path(__file__).parent / "data"
SEEDS = range(2000, 2012)
FRAMES = 60
_SUFFIX = ".json.gz"


def save(path: Path, case: Case, outputs: Sequence[reference.Outputs]) -> None:
    """Write a case and what bmv2 made of it; the same content always gives the same bytes."""
    exchanges = [
        [port, frame.hex(), [[out_port, out.hex()] for out_port, out in outs]]
        for (port, frame), outs in zip(case.frames, outputs, strict=True)
    ]
    content = {
        "program": case.program.decode(),
        "p4info": text_format.MessageToString(case.info),
        "writes": [text_format.MessageToString(update) for update in case.writes],
        "exchanges": exchanges,
    }
    path.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 9, mtime=0))


def load(path: Path) -> tuple[Case, list[reference.Outputs]]:
    """Read a case and what bmv2 made of it."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    info = text_format.Parse(content["p4info"], p4info_pb2.P4Info())
    writes = [text_format.Parse(text, Update()) for text in content["writes"]]
    frames = [(port, bytes.fromhex(frame)) for port, frame, _ in content["exchanges"]]
    outputs = [[(port, bytes.fromhex(frame)) for port, frame in outs] for _, _, outs in content["exchanges"]]
    return Case(content["program"].encode(), info, writes, frames), list(outputs)


def recordings() -> list[Path]:
    """Return the files in the order of their names."""
    return sorted(DATA.glob(f"*{_SUFFIX}"))


def record() -> None:
    """Replace all recordings."""
    with tempfile.TemporaryDirectory() as folder, reference.running(Path(folder)) as switch:
        recorded = [(seed, case, switch.outputs(case)) for seed, case in cases()]
    DATA.mkdir(exist_ok=True)
    for path in recordings():
        path.unlink()
    for seed, case, outputs in recorded:
        save(DATA / f"{seed}{_SUFFIX}", case, outputs)


def cases() -> list[tuple[int, Case]]:
    """Return what is recorded, with its seeds."""
    return [(seed, random_case(seed, FRAMES, guarded=True)) for seed in SEEDS]


if __name__ == "__main__":
    record()
