# SPDX-License-Identifier: Apache-2.0
"""Every check of a worker: it passes where all is well, and fails with the fix where the thing itself was broken."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hopsum.agent import Agent
from hopsum.protocol.worker import Timing
from hopsum.transport.offload import probe_offload
from hopsum_cli.diagnosis import DiagnosisReport, Status, examine
from hopsum_cli.diagnosis.host_checks import CHARGED_BYTES, judge_buffer
from hopsum_oracle.aggregator import ParentConfig
from hopsum_topologies.free_port import free_port
from hopsum_wire import Header, Kind, Op
from hopsum_wire.payload import LONGEST_BYTES

from ...support.diagnosis_rig import BRIEF, GENERATION, PATIENT, SLOTS, TABLE, Job, membership
from ...support.server import LOCALHOST, address_bits, job_for
from ...support.trains import loses

pytestmark = pytest.mark.system
WAIT_S = 60
CHECKS = [
    "membership", "rank", "address", "route", "mtu", "port", "switch", "gso", "generation", "slots", "peers", "buffer",
]  # fmt: skip
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="a raw socket needs root")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with ExitStack() as stack:
        yield lambda workers=2, **options: Job(stack, tmp_path, workers, **options)


def statuses(report: DiagnosisReport) -> dict[str, str]:
    assert [row.check for row in report.rows] == CHECKS
    assert all(row.fix for row in report.rows if row.status is Status.FAIL)
    return {row.check: row.status.value for row in report.rows}


def assert_only_failure(report: DiagnosisReport, check: str, skipped: str = "") -> None:
    expected = (
        dict.fromkeys(CHECKS, "pass") | {check: "fail"} | dict.fromkeys(filter(None, skipped.split(", ")), "skip")
    )
    assert statuses(report) == expected
    assert not report.good


AFTER_RANK = "address, route, mtu, port, switch, gso, generation, slots, peers"
AFTER_SWITCH = "gso, generation, slots"


def test_all_is_well_and_the_job_can_begin_afterwards(make: Callable[..., Job]) -> None:
    job = make()
    report = examine(job.write(), 1, patience=PATIENT)
    assert set(statuses(report).values()) == {"pass"}
    assert report.good
    assert report.subject == "rank 1 of job 'digits'"
    idle = {"idle": SLOTS, "waiting": 0, "unknown": 0, "newest_round": 0}
    assert report["slots"].facts == {**idle, "stragglers": {}, "closed": 0}
    assert report["mtu"].facts["needed_bytes"] == 1084
    with ExitStack() as stack:
        agents = [stack.enter_context(Agent(job.write(), rank, codec="fixed")) for rank in range(2)]
        futures = [agent.submit(np.full(5000, rank, np.float32)) for rank, agent in enumerate(agents)]
        assert all((future.result(WAIT_S).mean == 0.5).all() for future in futures)
        assert {reason for agent in agents for reason in agent._transport.shards[0].worker.statistics.ignored} == set()
    assert set(job.aggregator.drops) == set()
    assert json.loads(json.dumps(report.as_json()))["good"] is True


def test_only_probes_are_sent(make: Callable[..., Job]) -> None:
    heard: list[Header] = []

    def note(header: Header) -> Header:
        heard.append(header)
        return header

    job = make(hears=note)
    examine(job.write(), 0, patience=PATIENT)
    assert {(header.kind, header.worker, header.generation, header.length) for header in heard} == {
        (Kind.PROBE, 0, GENERATION, 0)
    }
    assert not job.aggregator.drops


def test_below_a_leaf_only_the_own_rack_is_missing(make: Callable[..., Job]) -> None:
    """Slot 0: the leaf lacks rank 1. Slot 1: its rack is complete. Nobody of the rack of ranks 2 and 3 is blamed."""
    job = make(4, known=False)
    for entry, leaf in zip(job.document["workers"], (0, 0, 2, 2), strict=True):
        entry["leaf"] = leaf
    rack = job_for(job.addresses[:2], generation=GENERATION, slots=SLOTS, table=tuple(range(16)))
    job.aggregator.add_job(replace(rack, parent=ParentConfig(0, 9, 0x020000000001, 0x0A0000F0)))
    for slot, ranks in ((0, (0,)), (1, (0, 1))):
        for rank in ranks:
            sent = Header(
                kind=Kind.UPDATE, op=Op.ADD32, worker=rank, slot=slot, generation=GENERATION, round=1, length=1024
            )
            ip, port = job.addresses[rank]
            job.aggregator.receive(rank, address_bits(ip), port, sent.pack() + bytes(1024))
    report = examine(job.write(), 0, patience=PATIENT)
    slots = report["slots"]
    assert_only_failure(report, "slots")
    assert slots.finding == (
        "6 idle, 2 waiting, newest round 1; for 0.05 s nothing of rank 1 has come to slots 0 (round 1), and no result "
        "has come from the leaf's parent for slots 1 (round 1), though no rank of this rack is missing"
    )
    assert f"look at rank 1 at {LOCALHOST}:{job.addresses[1][1]}" in slots.fix
    assert "run hopsum doctor at ranks 2, 3, below other leaves" in slots.fix
    assert (slots.facts["stragglers"], slots.facts["closed"]) == ({"1": 1}, 1)


@as_root
def test_with_a_running_worker(make: Callable[..., Job]) -> None:
    job = make()
    timing = Timing(retransmit_s=30.0, retransmit_max_s=30.0, deadline_s=60.0)
    with ExitStack() as stack:
        agents = [stack.enter_context(Agent(job.write(), rank, codec="fixed", timing=timing)) for rank in range(2)]
        first = agents[0].submit(np.full(5000, 1, np.float32))
        while not agents[0].statistics.traffic.bytes_sent:
            pass
        report = examine(job.write(), 0, patience=PATIENT)
        slots = report["slots"]
        assert_only_failure(report, "slots", "gso")
        assert "by a raw socket while the worker runs" in report["switch"].finding
        assert report["port"].facts == {"held": True, "pid": os.getpid()}
        assert slots.facts["stragglers"] == {"1": slots.facts["waiting"]}
        assert "nothing of rank 1 has come to slots 0 (round 1)" in slots.finding
        assert f"rank 1 at {LOCALHOST}:{job.addresses[1][1]}" in slots.fix
        second = agents[1].submit(np.full(5000, 2, np.float32))
        assert [(future.result(WAIT_S).mean == 1.5).all() for future in (first, second)] == [True, True]
        report = examine(job.write(), 0, patience=PATIENT)
        assert report.good
        assert report["slots"].facts["newest_round"] > 0
        assert not agents[0]._transport.shards[0].worker.statistics.ignored


def test_with_a_running_worker_without_root(make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("hopsum_cli.diagnosis.probe_client.RawProbeTransport", refuse)
    job = make()
    with Agent(job.write(), 0, codec="fixed"):
        report = examine(job.write(), 0, patience=PATIENT)
    assert report.good
    assert {check for check, status in statuses(report).items() if status == "skip"} == {
        "switch",
        *AFTER_SWITCH.split(", "),
    }
    assert "Address already in use" in report["switch"].finding
    assert "as root" in report["switch"].fix


@pytest.mark.skipif(not probe_offload().segment, reason="this kernel has no UDP_SEGMENT")
def test_a_way_that_loses_what_is_sent_together(make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    job = make(known=False)
    with loses(job.switch.address, lambda size, each: size > each) as (near, far):
        job.aggregator.add_job(job_for([far], generation=GENERATION, slots=SLOTS, table=TABLE))
        job.path.write_text(json.dumps(membership([job.addresses[0]], near)))
        report = examine(str(job.path), 0, patience=replace(PATIENT, answer_s=2.0))
        assert_only_failure(report, "gso")
        assert report["gso"].finding.startswith("0 of 48 PROBEs that were sent together have an answer")
        assert "HOPSUM_GSO=off" in report["gso"].fix
        assert "gso=off" in report["gso"].fix
        monkeypatch.setenv("HOPSUM_GSO", "off")
        assert examine(str(job.path), 0, patience=PATIENT)["gso"].status is Status.SKIP


def test_no_membership_file(tmp_path: Path) -> None:
    report = examine(str(tmp_path / "none.json"), 0, patience=PATIENT)
    assert_only_failure(report, "membership", f"rank, {AFTER_RANK}, buffer")
    assert "no membership file" in report["membership"].finding
    assert report["rank"].finding == "nothing to be learnt without membership"


def test_urls(make: Callable[..., Job]) -> None:
    job = make()
    assert examine(job.path.as_uri(), 0, patience=PATIENT).good
    assert examine(f"raw://eth0/digits?membership={job.path}", 0, patience=PATIENT).good
    for url, message in (
        (f"raw://eth0/other?membership={job.path}", "is for job 'other'"),
        ("memory://rack?workers=2", "memory:// has no membership file"),
    ):
        report = examine(url, 0, patience=PATIENT)
        assert_only_failure(report, "membership", f"rank, {AFTER_RANK}, buffer")
        assert message in report["membership"].finding


def test_no_such_rank_and_none_said(make: Callable[..., Job]) -> None:
    job = make()
    report = examine(job.write(), 2, patience=PATIENT)
    assert_only_failure(report, "rank", AFTER_RANK)
    assert report["rank"].finding.startswith("no rank 2: the job has ranks 0, 1; 2 of them have addresses of this host")
    report = examine(job.write(), patience=PATIENT)
    assert_only_failure(report, "rank", AFTER_RANK)
    assert report["rank"].finding.startswith("which worker?")
    job.document["workers"][0]["ip"] = "192.0.2.1"
    assert examine(job.write(), patience=PATIENT)["rank"].facts == {"rank": 1}


def test_an_address_that_is_not_here(make: Callable[..., Job]) -> None:
    job = make()
    job.document["workers"][0]["ip"] = "192.0.2.1"
    report = examine(job.write(), 0, patience=PATIENT)
    assert_only_failure(report, "address", AFTER_RANK.removeprefix("address, "))
    assert "192.0.2.1 is no address of this host, which has" in report["address"].finding
    assert "127.0.0.1 (lo)" in report["address"].finding


def test_a_stranger_has_the_port(make: Callable[..., Job]) -> None:
    job = make()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(job.addresses[0])
        report = examine(job.write(), 0, patience=PATIENT)
    assert_only_failure(report, "port", f"switch, {AFTER_SWITCH}")
    assert f"held by process {os.getpid()} (" in report["port"].finding
    assert f"kill {os.getpid()}" in report["port"].fix


def test_nobody_listens(make: Callable[..., Job]) -> None:
    job = make()
    closed = (LOCALHOST, free_port(socket.SOCK_DGRAM))
    job.document = membership(job.addresses, closed)
    report = examine(job.write(), 0, patience=BRIEF)
    assert_only_failure(report, "switch", AFTER_SWITCH)
    assert report["switch"].finding == f"{LOCALHOST}:{closed[1]}: port unreachable, no process listens there"


def test_a_switch_that_is_silent(make: Callable[..., Job]) -> None:
    job = make(known=False)
    report = examine(job.write(), 0, patience=BRIEF)
    assert_only_failure(report, "switch", AFTER_SWITCH)
    assert "is silent" in report["switch"].finding
    assert report["switch"].facts["causes"][0].startswith(f"generation {GENERATION} has ended")
    assert "(1) generation 41 has ended" in report["switch"].fix
    assert report["generation"].finding == "nothing to be learnt without switch"


def test_another_generation_answers(make: Callable[..., Job]) -> None:
    """No switch of ours does this: it is what a switch that ignores generations would do."""
    job = make(switch_generation=GENERATION + 1, hears=lambda header: replace(header, generation=GENERATION + 1))
    report = examine(job.write(), 0, patience=PATIENT)
    assert_only_failure(report, "generation", "slots")
    assert report["generation"].finding == "the switch answers for generation 42, the membership is of 41"


def test_fewer_slots_on_the_switch(make: Callable[..., Job]) -> None:
    report = examine(make(switch_slots=2).write(), 0, patience=replace(BRIEF, answer_s=1.5))
    assert report["slots"].status is Status.FAIL
    assert report["slots"].finding.startswith("6 of 8 slots gave no answer; 2 idle")
    assert report["slots"].facts["unknown"] == 6


def test_peers_that_do_not_listen(make: Callable[..., Job]) -> None:
    job = make(3)
    ports = [free_port() for _ in range(3)]
    for entry, port in zip(job.document["workers"], ports, strict=True):
        entry["side_port"] = port
    with socket.create_server((LOCALHOST, ports[1])):
        before = examine(job.write(), 0, patience=PATIENT)
        assert before.good, "the job has not begun"
        assert before["peers"].finding == "1 of 2 listen; the hosts of the others answer"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as worker:
            worker.bind(job.addresses[0])
            worker.connect(job.switch.address)
            report = examine(job.write(), 0, patience=PATIENT)
    assert report["peers"].status is Status.FAIL
    assert f"no process listens for rank 2 at {LOCALHOST}:{ports[2]}" in report["peers"].finding
    assert report["peers"].facts["refused"] == [2]


def test_a_buffer_that_is_too_small_for_the_window() -> None:
    assert judge_buffer(212992, 184).status is Status.PASS
    assert "sysctl -w net.core.rmem_max=4194304" in judge_buffer(212992, 184).fix
    assert judge_buffer(4194304, 2048).fix == ""
    failed = judge_buffer(212992, 185)
    assert failed.status is Status.FAIL
    assert "212992 of 4194304 bytes asked for, some 184 results; the window has 185" in failed.finding


def test_what_a_result_is_charged() -> None:
    """The kernel keeps as many datagrams of the largest size as the check believes, to a tenth."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far,
    ):
        here.bind((LOCALHOST, 0))
        here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        room = here.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        for _ in range(2 * room // CHARGED_BYTES):
            far.sendto(bytes(LONGEST_BYTES), here.getsockname())
        kept = 0
        while select.select([here], [], [], 0)[0]:
            kept += len(here.recv(LONGEST_BYTES)) == LONGEST_BYTES
    assert kept == pytest.approx(room / CHARGED_BYTES, rel=0.1)
