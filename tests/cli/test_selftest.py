# SPDX-License-Identifier: Apache-2.0
"""`hopsum selftest` tells the truth on both targets, says which worker failed, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import UDP
from scapy.utils import rdpcap

from hopsum_evaluation.selftest import LinkPlan, work
from hopsum_topologies.bmv2_process import bmv2_unavailable
from hopsum_topologies.seat import Seat
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool
from hopsum_wire import Kind
from hopsum_wire.scapy import Hopsum, decode_hopsum

from ..support.processes import run_hopsum

pytestmark = pytest.mark.system


@pytest.mark.parametrize("target", ["native", "bmv2"])
def test_sums_are_numpys_and_counts_as_the_switch(target: str) -> None:
    if target == "bmv2" and (reason := bmv2_unavailable()):
        pytest.skip(reason)
    done = run_hopsum("selftest", "--target", target, "--workers", "3", "--elements", "5000", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["equal"], report["replicas_equal"], report["counters_agree"]) == (True, True, True)
    chunks = {name: found["chunks"] for name, found in report["ops"].items()}
    again = [f"LOOKUP_ADD_LOOKUP{bits}" for bits in (4, 3, 2)]
    narrow = dict.fromkeys(("ADD8", "LOOKUP_ADD8", *again, "OR"), 5)
    wide = {"LOOKUP_ADD16": 10} if target == "native" else {}  # bmv2 has no room for what its result grows by
    assert chunks == {**narrow, **wide, "ADD16": 10, "ADD32": 20, "MAX32": 20}
    assert report["switch_events"]["added"] == 3 * sum(chunks.values())
    assert report["switch_events"]["completed"] == sum(chunks.values())
    # 40 bytes of header below and in hopsum's own layer are not counted here: UDP payloads are
    lanes_and_codes = 60 * (32 + 1024) + 10 * (32 + 512) + 5 * (32 + 384) + (5 + sum(wide.values())) * (32 + 256)
    assert report["bytes_up"] >= 3 * lanes_and_codes


@pytest.mark.parametrize("target", ["native", "bmv2"])
def test_a_capture_of_scapy_packets_has_the_counts_of_the_switch(target: str, tmp_path: Path) -> None:
    if target == "bmv2" and (reason := bmv2_unavailable()):
        pytest.skip(reason)
    options = ("--workers", "2", "--elements", "2000", "--json", "--link", "scapy", "--pcap", str(tmp_path), "--show")
    done = run_hopsum("selftest", "--target", target, *options)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    layers: list[tuple[int, Any]] = []
    for rank in range(2):
        for packet in rdpcap(str(tmp_path / f"worker-{rank}.pcap")):
            decode_hopsum(packet[UDP])
            layers.append((rank, packet[Hopsum]))
    updates = [(rank, layer.slot, layer.round) for rank, layer in layers if layer.kind == Kind.UPDATE]
    results = [(rank, layer.slot, layer.round) for rank, layer in layers if layer.kind == Kind.RESULT]
    events = report["switch_events"]
    assert len(set(updates)) == events["added"]
    assert len(updates) - len(set(updates)) == report["retransmits"]
    assert len({(slot, round_) for _, slot, round_ in results}) == events["completed"]
    assert len(set(results)) == 2 * events["completed"]
    assert len(layers) == done.stderr.count(" -> ") + done.stderr.count(" <- ")


def test_only_scapy_packets_can_be_shown(tmp_path: Path) -> None:
    done = run_hopsum("selftest", "--show")
    assert done.returncode == 2
    assert "only --link scapy has packets to show; add --link scapy" in done.stderr
    (tmp_path / "file").touch()
    done = run_hopsum("selftest", "--link", "scapy", "--pcap", str(tmp_path / "file"))
    assert done.returncode == 2
    assert "File exists" in done.stderr


def test_sum_refuses_more_workers_than_a_lane_holds() -> None:
    done = run_hopsum("selftest", "--workers", "16")
    assert done.returncode == 2
    assert "argument --workers: '16': a whole number of 1 to 15" in done.stderr


def test_a_failed_worker_is_named_with_its_traceback() -> None:
    seats = [
        Seat(0, 1, "02:00:00:00:01:01", "127.0.0.1", ("127.0.0.1", 9)),
        Seat(1, 1, "02:00:00:00:01:01", "192.0.2.1", ("127.0.0.1", 9)),  # no address of this host
    ]
    plan = LinkPlan("udp", None, show=False)
    with WorkerPool(seats, work, plan) as pool, pytest.raises(WorkerDiedError, match=r"(?s)worker 1 failed:.*OSError"):
        pool.gather("bound")
    assert not any(process.is_alive() for process in pool.processes)
