# SPDX-License-Identifier: Apache-2.0
"""The membership file: what the control plane writes is what a worker reads, and every fault has one message."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane import Job, JobSpec, SwitchEndpoint, WorkerEndpoint, job_membership, write_membership
from hopsum_controlplane.membership_file import write_membership_file
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_wire.generations import Decided, Resume
from hopsum_wire.membership import Endpoint, MembershipError, parse_membership, read_membership

TABLE = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 20)


def make_job() -> Job:
    workers = tuple(
        WorkerEndpoint(rank, rank + 1, f"02:00:00:00:01:{rank:02x}", f"10.0.0.{rank + 1}", 4000 + rank)
        for rank in (1, 0)
    )
    spec = JobSpec("train", workers, 64, {"table": TABLE})
    return Job(spec, SwitchEndpoint("02:00:00:00:00:aa", "10.0.0.254"), 77, 0, SlotRange(0, 64), group=1, window=32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "membership.json"


def test_what_the_control_plane_writes_is_read(path: Path) -> None:
    write_membership(make_job(), path, {1: ("127.0.0.1", 5555)})
    read = read_membership(path)
    assert (read.job, read.generation, read.slots, read.window, read.quorum, read.tables) == (
        "train",
        77,
        64,
        32,
        2,
        {"table": TABLE},
    )
    assert read.switch == Endpoint("10.0.0.254", 24677)
    assert [worker.rank for worker in read.workers] == [0, 1]
    assert read.worker(0).endpoint.address == ("10.0.0.1", 4000)
    assert read.worker(0).send_to == read.switch
    assert str(read.worker(1).send_to) == "127.0.0.1:5555"


def test_who_is_below_the_same_leaf(path: Path) -> None:
    write_membership_file(job_membership(make_job()), path)
    assert [read_membership(path).rack(rank) for rank in (0, 1)] == [(0, 1)] * 2, "one switch has all"
    write_membership_file(job_membership(make_job(), leaves={0: 0, 1: 1}), path)
    assert [read_membership(path).rack(rank) for rank in (0, 1)] == [(0,), (1,)]
    write_membership_file(job_membership(make_job(), leaves={1: 1}), path)
    assert [read_membership(path).rack(rank) for rank in (0, 1)] == [(0, 1), (1,)], "rank 0 is at the root"
    with pytest.raises(MembershipError, match=r"workers\[1\]\.leaf is 64, not an integer of 0 \.\. 63"):
        parse_membership(path.read_text().replace('"leaf": 1', '"leaf": 64'))


def test_side_channels_where_all_have_one(path: Path) -> None:
    write_membership(make_job(), path)
    assert read_membership(path).side_channels is None
    write_membership(make_job(), path, side_channels={1: ("127.0.0.1", 5001), 0: ("10.0.0.1", 5000)})
    assert read_membership(path).side_channels == {0: ("10.0.0.1", 5000), 1: ("127.0.0.1", 5001)}
    document = json.loads(path.read_text())
    del document["workers"][0]["side_port"]
    assert parse_membership(json.dumps(document)).side_channels is None


def test_a_file_that_comes_later_is_waited_for(path: Path) -> None:
    writer = threading.Timer(0.1, write_membership, (make_job(), path))
    writer.start()
    try:
        assert read_membership(path, wait_s=30).generation == 77
    finally:
        writer.join()


def test_a_file_that_never_comes(path: Path) -> None:
    with pytest.raises(MembershipError, match=r"no membership file .*membership\.json within 0\.1 s: the controller"):
        read_membership(path, wait_s=0.1)


def test_a_path_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MembershipError, match="cannot be read"):
        read_membership(tmp_path)


def test_a_rank_that_the_job_lacks(path: Path) -> None:
    write_membership(make_job(), path)
    with pytest.raises(MembershipError, match=r"rank 2 is not in job 'train': it has ranks 0 \.\. 1"):
        read_membership(path).worker(2)


def change(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return the change of one key; dots lead into objects, a number into a list."""

    def apply(document: dict[str, Any]) -> None:
        *way, last = key.split(".")
        target: Any = document
        for step in way:
            target = target[int(step) if step.isdigit() else step]
        if value is KeyError:
            del target[last]
        else:
            target[last] = value

    return apply


FAULTS: list[tuple[str, Any, str]] = [
    ("generation", KeyError, "generation is missing"),
    ("generation", 0, r"generation is 0, not an integer of 1 \.\. 4294967295"),
    ("generation", "7", "generation is '7', not an integer"),
    ("generation", True, "generation is True, not an integer"),
    ("job", "", "job is '', not a text"),
    ("slots", 4096, r"slots is 4096, not an integer of 1 \.\. 2048"),
    ("window", 65, r"window is 65, not an integer of 1 \.\. 64"),
    ("quorum", 3, r"quorum is 3, not an integer of 1 \.\. 2"),
    ("table", [0] * 15, "not 16 integers"),
    ("table", [256] * 16, "not 16 integers"),
    ("table16", [65536] * 16, "not 16 integers of 0..65535"),
    ("table4", [0] * 30, r"table4 is \[0, .*, not 16 integers of -128..127, then 15 thresholds of 1..127 that d"),
    ("table4", 7, "table4 is 7, not a list or null"),
    ("table3", [*[0] * 8, *[1] * 6, 128], "not 8 integers of -128..127, then 7 thresholds"),
    ("table3", [*[0] * 8, *[1] * 6, 0], "not 8 integers"),
    ("table2", [-129, 0, 0, 0, 1, 2, 3], "not 4 integers of -128..127, then 3 thresholds"),
    ("table2", [128, 0, 0, 0, 1, 2, 3], "not 4 integers"),
    ("table2", [0, 0, 0, 0, 1, 3, 2], r"table2 is \[0, 0, 0, 0, 1, 3, 2\], not 4 integers"),
    ("table2", [True, 0, 0, 0, 1, 2, 3], "not 4 integers"),
    ("table6", [*range(16)], r"table6 is of an older hopsum: .*LOOKUP_ADD6.* make the job again with a codec"),
    ("table", "none", "table is 'none', not a list or null"),
    *(("code_group", wrong, "code_group") for wrong in (0, 3, 1024, "64")),
    *(("ops", wrong, "no list of some of LOOKUP_ADD8") for wrong in ([], ["ADD64"], "ADD32", [3], [[]], None)),
    ("wire_version", 2, "is for wire version 2, this hopsum speaks 1"),
    ("switch", None, "switch is no JSON object"),
    ("switch.ip", "10.0.0", r"switch\.ip is '10\.0\.0', no IPv4 address"),
    ("switch.udp_port", 0, r"switch\.udp_port is 0"),
    ("workers", [], "workers is .*, not a list of 1 to 64 entries"),
    ("workers", [3], r"workers\[0\] is no JSON object"),
    ("workers.1.rank", 0, r"workers has ranks \[0, 0\]"),
    ("workers.1.rank", 2, r"workers has ranks \[0, 2\]"),
    ("workers.1.send_to", KeyError, r"workers\[1\]\.send_to is missing"),
    ("workers.1.send_to.udp_port", 70000, r"workers\[1\]\.send_to\.udp_port is 70000"),
    ("workers.1.side_port", 0, r"workers\[1\]\.side_port is 0, not an integer of 1 \.\. 65535"),
    ("workers.1.side_ip", "peer", r"workers\[1\]\.side_ip is 'peer', no IPv4 address"),
    ("workers.1.side_ip", "10.0.0.1", r"workers has side channels .*, several at the same address"),
]


@pytest.mark.parametrize(("key", "value", "message"), FAULTS)
def test_malformed(path: Path, key: str, value: Any, message: str) -> None:
    write_membership(make_job(), path, side_channels={0: ("10.0.0.1", 5000), 1: ("10.0.0.2", 5000)})
    document = json.loads(path.read_text())
    change(key, value)(document)
    path.write_text(json.dumps(document))
    with pytest.raises(MembershipError, match=message) as raised:
        read_membership(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is no JSON"), ("[" * 100_000, "is no JSON"), ("[]", "the document is no JSON object")],
)
def test_other_documents(text: str, message: str) -> None:
    with pytest.raises(MembershipError, match=f"membership.*{message}"):
        parse_membership(text)


def test_keys_of_older_and_newer_controllers(path: Path) -> None:
    write_membership(make_job(), path)
    document = json.loads(path.read_text())
    read = parse_membership(json.dumps({**document, "lease_s": 30}))
    assert read == replace(read, job="train")
    del document["table16"]
    assert parse_membership(json.dumps(document)) == read, "a controller before it"
    assert parse_membership(json.dumps({**document, "table6": None})) == read, "a job without results of 6 bits"


RESUME: dict[str, Any] = {
    "base": 64,
    "start": 200,
    "start_generation": 77,
    "allreduces": 9,
    "replaced": [1],
    "decided": [{"first": 70, "end": 80, "ranks": [0]}, {"first": 90, "end": 91, "ranks": [0, 1]}],
}


def resumed(path: Path, **changed: Any) -> str:
    write_membership(make_job(), path)
    return json.dumps(json.loads(path.read_text()) | {"resume": RESUME | changed})


def test_how_a_job_continues(path: Path) -> None:
    decided = (Decided(70, 80, (0,)), Decided(90, 91, (0, 1)))
    assert parse_membership(resumed(path)).resume == Resume(64, 200, 77, 9, (1,), decided)
    nobody = {"start": None, "start_generation": 0, "allreduces": None, "replaced": [], "decided": []}
    assert parse_membership(resumed(path, **nobody)).resume == Resume(64, None, 0, None, (), ())
    assert read_membership(path).resume is None
    assert parse_membership(path.read_text()[:-2] + ', "resume": null}').resume is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"base": 65}, "resume.base is 65, no multiple of the window 32"),
        ({"start": 63}, r"resume.start is 63, not an integer of 64 \.\."),
        ({"start": None}, "resume.start_generation is 77, not an integer of 0 .. 0"),
        ({"start_generation": 0}, "resume.start_generation is 0, not an integer of 1 .."),
        ({"allreduces": None}, "resume.allreduces is None"),
        ({"replaced": [2]}, r"resume.replaced is \[2\], not ranks of 0 .. 1, each once"),
        ({"replaced": []}, r"resume.replaced is \[\] with a start"),
        ({"decided": [{"first": 70, "end": 70, "ranks": [0]}]}, r"decided\[0\].end is 70"),
        ({"decided": [{"first": 70, "end": 71, "ranks": []}]}, r"decided\[0\].ranks is empty"),
        ({"decided": [{"first": 60, "end": 71, "ranks": [0]}]}, "begins before base 64"),
        ({"decided": RESUME["decided"][::-1]}, "is not sorted, overlaps"),
    ],
)
def test_what_no_controller_decides(path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(MembershipError, match=message):
        parse_membership(resumed(path, **changed))
