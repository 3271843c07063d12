# SPDX-License-Identifier: Apache-2.0
"""Recorded traffic of a switch, in the form of p4lang's exercises, played to the engine.

A recording is a folder, at any depth, with `logs/NAME-p4runtime-requests.txt` and `pcaps/NAME-ethPORT_in.pcap` and
`..._out.pcap`: what the exercises' P4Runtime library and bmv2 write for each switch. To replay one of your own:

    cd tests && python -m switch.programs.replay X.json X.p4info.txtpb FOLDER [NAME]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from google.protobuf import text_format
from scapy.layers.l2 import Ether
from scapy.utils import rdpcap, wrpcap

from hopsum_base.p4runtime import p4runtime_pb2
from hopsum_switch.engine import Engine, Output
from hopsum_switch.p4runtime.entities import write_update
from hopsum_switch.p4runtime.p4info_index import parse_p4info
from hopsum_switch.p4runtime.pipeline_config import PipelineManager, verify
from hopsum_switch.ports.dataplane import Dataplane

_REQUEST = re.compile(r"^\[[^\]]*\] /p4\.v1\.P4Runtime/Write\n---\n(.*?)^---$", re.DOTALL | re.MULTILINE)
_CAPTURE = "{name}-eth{port}_{way}.pcap"


def replay(program: Path, p4info: Path, folder: Path, name: str = "s1") -> list[str]:
    """Play a switch's requests, then its frames in the order of their times. Return a line for each difference."""
    checked = verify(parse_p4info(p4info.read_text()), program.read_bytes())
    with closing(Dataplane()) as unused:
        target = PipelineManager(unused, Engine).make(checked)
    for log in folder.rglob(f"{name}-p4runtime-requests.txt"):
        for text in _REQUEST.findall(log.read_text()):
            for update in text_format.Parse(text, p4runtime_pb2.WriteRequest()).updates:
                write_update(target, update)
    entered = [(float(packet.time), port, bytes(packet)) for port, packet in _packets(folder, name, "in")]
    sent: dict[int, list[bytes]] = {}
    for _, port, frame in sorted(entered):
        for output in target.engine.process(port, frame):
            sent.setdefault(output.port, []).append(output.frame)
    recorded: dict[int, list[bytes]] = {}
    for port, packet in _packets(folder, name, "out"):
        recorded.setdefault(port, []).append(bytes(packet))
    return [line for port in sorted({*sent, *recorded}) for line in _differences(port, sent, recorded)]


def record(
    folder: Path, updates: Sequence[p4runtime_pb2.Update], frames: Iterable[tuple[int, bytes, list[Output]]]
) -> None:
    """Write a recording of switch s1: its requests, and for each frame its port and what the switch sent for it."""
    (folder / "logs").mkdir(parents=True)
    (folder / "pcaps").mkdir()
    request = p4runtime_pb2.WriteRequest(device_id=1, updates=updates)
    head = "\n[2026-11-27 12:00:00.000] /p4.v1.P4Runtime/Write\n---\n"
    (folder / "logs" / "s1-p4runtime-requests.txt").write_text(f"{head}{request}---\n")
    captures: dict[str, list[Ether]] = {}
    for number, (port, frame, outputs) in enumerate(frames):
        for way, at, data in (("in", port, frame), *(("out", output.port, output.frame) for output in outputs)):
            packet = Ether(data)
            packet.time = 1 + number / 1000
            captures.setdefault(_CAPTURE.format(name="s1", port=at, way=way), []).append(packet)
    for file, packets in captures.items():
        wrpcap(str(folder / "pcaps" / file), packets, linktype=1)


def _packets(folder: Path, name: str, way: str) -> Iterable[tuple[int, Ether]]:
    for path in sorted(folder.rglob(_CAPTURE.format(name=name, port="*", way=way))):
        found = re.search(r"-eth(\d+)_", path.name)
        assert found is not None
        yield from ((int(found[1]), packet) for packet in rdpcap(str(path)))


def _differences(port: int, sent: dict[int, list[bytes]], recorded: dict[int, list[bytes]]) -> Iterable[str]:
    ours, theirs = sent.get(port, []), recorded.get(port, [])
    if len(ours) != len(theirs):
        yield f"port {port}: {len(ours)} frames, {len(theirs)} recorded"
    for number, (mine, wanted) in enumerate(zip(ours, theirs, strict=False)):
        if mine != wanted:
            yield f"port {port}, frame {number}: {mine.hex()}, recorded {wanted.hex()}"


if __name__ == "__main__":
    found = replay(*(Path(argument) for argument in sys.argv[1:4]), *sys.argv[4:5])
    print("\n".join(found) or "equal")
    sys.exit(bool(found))
