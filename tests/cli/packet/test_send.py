# SPDX-License-Identifier: Apache-2.0
"""`hopsum packet send`: packets from arguments, to the embedded switch with its program."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scapy.utils import rdpcap

from hopsum_cli.packet.packet_command import main
from hopsum_cli.packet.packet_exchange import PacketError, parse_arguments, values_of
from hopsum_topologies import LocalCluster
from hopsum_topologies.free_port import free_port
from hopsum_wire import Header, Kind, Op
from hopsum_wire._layout import HOPSUM_FIELDS
from hopsum_wire.payload import pack_codes
from hopsum_wire.scapy import Hopsum

from ...support.printed import usage_error
from ...support.processes import await_that

PATIENCE_S = 60.0


class Bed(NamedTuple):
    """A switch with a job of two workers."""

    generation: int
    switch: str
    workers: tuple[str, ...]
    captures: Path


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    captures = tmp_path / "pcap"
    ports = [free_port(socket.SOCK_DGRAM) for _ in range(2)]
    with LocalCluster(2, extra=("--pcap", str(captures))) as cluster:
        job = cluster.create_job("byhand", [[("127.0.0.1", port)] for port in ports], {}, slots=8)
        to, number = cluster.switch.service
        yield Bed(job.generation, f"{to}:{number}", tuple(f"127.0.0.1:{port}" for port in ports), captures)


def send(capsys: pytest.CaptureFixture[str], bed: Bed, rank: int, *words: str, answers: int = 1) -> Any:
    """Send a packet and await so many answers; none within a fifth of a second where there is to be none."""
    fields = [f"generation={bed.generation}", f"worker={rank}", *words]
    arguments = ["send", *fields, "--to", bed.switch, "--from", bed.workers[rank], "--json"]
    arguments += ["--wait", str(PATIENCE_S), "--answers", str(answers)] if answers else ["--wait", "0.2"]
    assert main(arguments) == 0
    return json.loads(capsys.readouterr().out)


def test_a_round_by_hand(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    said = send(capsys, bed, 0, "slot=3", "lanes=100,0x10,3", answers=0)
    assert said["answers"] == []
    sent = said["sent"]
    assert (sent["kind"], sent["op"], sent["flags"]) == ("UPDATE", "ADD32", [])
    assert (sent["count"], sent["length"]) == (256, 1024)
    assert sent["lanes"] == [100, 16, 3] + [0] * 253

    (state,) = send(capsys, bed, 0, "kind=PROBE", "slot=3")["answers"]
    assert (state["kind"], state["held"], state["contributors"], state["count"]) == ("STATE", 1, 0b01, 1)

    (result,) = send(capsys, bed, 1, "slot=3", "lanes=1,2,0xffffffff")["answers"]
    assert (result["kind"], result["contributors"]) == ("RESULT", 0b11)
    assert result["lanes"][:4] == [101, 18, 2, 0]

    assert send(capsys, bed, 0, "slot=3", "kind=update", "round=3", answers=0)["answers"] == []
    (stale,) = send(capsys, bed, 1, "slot=3")["answers"]
    assert (stale["kind"], stale["round"], stale["held"]) == ("STALE", 1, 3)

    path = bed.captures / "port1.pcapng"
    await_that(lambda: len(rdpcap(str(path))) == 9)  # a frame is recorded when it has left
    packets = [frame[Hopsum] for frame in rdpcap(str(path))]
    assert {packet.generation for packet in packets} == {bed.generation}
    kinds = Counter(Kind(packet.kind).name for packet in packets)
    assert kinds == {"UPDATE": 4, "PROBE": 1, "STATE": 1, "RESULT": 2, "STALE": 1}


@pytest.mark.parametrize(
    ("words", "header", "payload"),
    [
        ([], Header(kind=Kind.UPDATE, op=Op.ADD32, round=1, count=256, length=1024), bytes(1024)),
        (["kind=PROBE", "worker=0x3"], Header(kind=Kind.PROBE, worker=3, round=1), b""),
        (
            ["kind=RESULT", "op=OR", "lanes=255"],
            Header(kind=Kind.RESULT, op=Op.OR, round=1, count=8192, length=1024),
            b"\xff" + bytes(1023),
        ),
        (["op=ADD16", "count=1", "flags=FLUSH"], Header(1, 1, 1, Op.ADD16, round=1, count=1, length=1024), bytes(1024)),
        (
            ["kind=9", "payload=00ff", "length=7", "version=0"],
            Header(0, 9, 0, Op.ADD32, round=1, count=256, length=7),
            b"\0\xff",
        ),
        (["op=200"], Header(kind=Kind.UPDATE, op=200, round=1), b""),
        (["op=3", "payload="], Header(kind=Kind.UPDATE, op=3, round=1), b""),
    ],
)
def test_arguments(words: Sequence[str], header: Header, payload: bytes) -> None:
    assert parse_arguments(words) == (header, payload)


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_sums_that_were_looked_up_again_are_codes(bits: int) -> None:
    """RESULT has codes like UPDATE, and PARTIAL has lanes."""
    op, most = f"LOOKUP_ADD_LOOKUP{bits}", (1 << bits) - 1
    for kind, word, numbers, size in (
        ("UPDATE", "codes", [1, 0, most], 128 * bits),
        ("RESULT", "codes", [1, 0, most], 128 * bits),
        ("PARTIAL", "lanes", [1, 0, 255], 1024),
    ):
        header, payload = parse_arguments([f"kind={kind}", f"op={op}", f"{word}={','.join(map(str, numbers))}"])
        assert (header.length, len(payload)) == (size, size)
        assert values_of(Hopsum(header.pack() + payload))[word] == [*numbers, *1021 * [0]]
        assert len(parse_arguments([f"kind={kind}", f"op={op}"]).payload) == size
        with pytest.raises(PacketError, match=f"{numbers[2] + 1} does not fit in"):
            parse_arguments([f"kind={kind}", f"op={op}", f"{word}={numbers[2] + 1}"])


@pytest.mark.parametrize(
    ("op", "lane_bits", "bits"),
    [("LOOKUP_ADD8", 8, 4), ("LOOKUP_ADD16", 16, 4), ("LOOKUP_ADD_LOOKUP4", 8, 4), ("LOOKUP_ADD_LOOKUP3", 8, 3)],
)
def test_codes_are_packed_as_the_program_wants_them(op: str, lane_bits: int, bits: int) -> None:
    import numpy as np

    header, payload = parse_arguments([f"op={op}", "codes=1,6,0,7"])
    codes = np.zeros(header.count, np.uint8)
    codes[:4] = 1, 6, 0, 7
    assert payload == pack_codes(codes, lane_bits, bits=bits).tobytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["slot"], "'slot' is not KEY=VALUE"),
        (["slit=3"], "'slit' is no key of a packet"),
        (["slot=3", "slot=4"], "slot is given twice, as '3' and as '4'"),
        (["slot=70000"], "slot = 70000 does not fit in 16 bits"),
        (["slot=x"], "'x' is not a number"),
        (["kind=UPDTE"], "or one of UPDATE, RESULT"),
        (["lanes=1", "payload=00"], "lanes and payload both say"),
        (["payload=0"], "must be hexadecimal bytes"),
        (["lanes=4294967296"], "4294967296 does not fit in 32 bits"),
        (["op=ADD8", "lanes=" + "1," * 1025], "1025 are given, a payload has 1024"),
        (["op=ADD8", "codes=1"], "ADD8 carries lanes and no codes"),
        (["op=0", "lanes=1"], "op 0 has no lanes or codes"),
    ],
)
def test_arguments_that_are_wrong(words: Sequence[str], message: str) -> None:
    with pytest.raises(PacketError) as refused:
        parse_arguments(words)
    assert message in str(refused.value)


def test_every_field_of_the_header_is_a_key() -> None:
    words = [f"{field.name}=1" for field in HOPSUM_FIELDS]
    assert parse_arguments(words).header == Header(*[1] * len(HOPSUM_FIELDS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dst_ip=1.2.3.4", "--to", "127.0.0.1:9"], "'dst_ip' is no key of a packet"),
        (["--to", "127.0.0.1:9", "--from", "192.0.2.1:0"], "192.0.2.1:0 -> 127.0.0.1:9: "),
    ],
)
def test_a_packet_that_cannot_be_sent(
    arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["send", *arguments]) == 1
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


@pytest.mark.parametrize("wrong", [["--answers", "0"], ["--wait", "-1"], ["--wait", "nan"], ["--wait", "inf"]])
def test_a_wait_without_an_end_or_for_no_answer_is_refused(
    wrong: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"argument {wrong[0]}: " in usage_error(capsys, main, "send", "--to", "127.0.0.1:9", *wrong)


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port(socket.SOCK_DGRAM)
    assert main(["send", "--to", f"127.0.0.1:{port}", "--wait", str(PATIENCE_S)]) == 1
    assert f"no process listens at UDP 127.0.0.1:{port}" in capsys.readouterr().err
