# SPDX-License-Identifier: Apache-2.0
"""The demo trains through the switch, its figures are right, and it detects sums that did not pass the switch."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("torch", reason="torch is not installed")

from hopsum_evaluation.demo import digits_network, training_demo
from hopsum_evaluation.demo.counted_testbed import DemoCounts
from hopsum_evaluation.demo.training_demo import DemoReport
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.local_cluster import InterfaceCounters
from hopsum_topologies.shaping import BURST_BYTES
from hopsum_topologies.worker_pool import WorkerDiedError

from ..support.printed import usage_error
from ..support.processes import run_hopsum
from ..support.targets import require_network

pytestmark = pytest.mark.system
PARAMETERS = 38282
HEADERS = 42 + 32


def run_demo(*arguments: str) -> dict[str, Any]:
    done = run_hopsum("demo", "--json", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("target", ["native", "bmv2"])
def test_demo_trains_through_the_switch(target: str) -> None:
    if target == "bmv2":
        require_network(target)
    # one bucket: 38 chunks of codes and one of ranges, each with all its headers, as many bytes either way
    passed = 38 * (HEADERS + 512) + HEADERS + 1024
    links = ("--parameters", str(PARAMETERS), "--rate", "20mbit") if target == "native" else ()
    report = run_demo("--target", target, "--workers", "2", "--steps", "40", *links)
    if report["rate_bits_per_s"] is not None:
        # What the links have to carry, less the bucket that they begin with.
        for step_s, step_bytes in ((report["step_s"], passed), (report["step_s_fp32"], 4 * PARAMETERS)):
            assert step_s >= (39 * step_bytes - BURST_BYTES) * 8 / 20e6 / 39
    assert report["replicas_equal"]
    assert report["counters_agree"]
    assert report["loss_last"] < 0.9 * report["loss_first"]
    assert report["nmse_mean"] == pytest.approx(report["nmse_theory"], rel=0.2)
    # and no more than was sent again and answered again, should the machine have stood still for a while
    events = report["switch_events"]
    again, answered = report["retransmits"] + events["probed"], events["answered"] + events["probed"] + events["stale"]
    assert 0 <= report["bytes_up"] - 2 * 40 * passed <= again * (HEADERS + 1024)
    from_peers = report["repaired"]
    assert -from_peers <= (report["bytes_down"] - 2 * 40 * passed) / (HEADERS + 1024) <= answered
    assert report["bytes_fp32_allreduce"] == 40 * 2 * 4 * PARAMETERS


@pytest.mark.parametrize("target", ["native", "mininet"])
def test_demo_trains_over_two_racks(target: str) -> None:
    require_network(target)
    report = run_demo("--target", target, "--topology", "two_rack", "--workers", "4", "--steps", "20")
    assert report["replicas_equal"]
    assert report["counters_agree"]
    assert report["nmse_mean"] == pytest.approx(report["nmse_theory"], rel=0.2)
    assert report["switch_events"]["added"] == 4 * 20 * 39
    events, uplinks = report["switch_events"], report["uplinks"]
    assert set(uplinks) == {"leaf1-spine", "leaf2-spine"}
    assert min(uplinks.values()) >= 20 * 39  # one frame for each chunk of both workers, and what was sent again
    assert events["closed"] == 2 * 20 * 39
    assert sum(uplinks.values()) <= events["closed"] + events["resent"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "star", "--loss", "0.1"], "--topology: its links say what is lost"),
        (["--topology", "star", "--quorum", "3"], "all workers complete a sum"),
        (["--target", "mininet"], "--target mininet: say which network"),
        (["--target", "bmv2", "--rate", "1gbit"], "--rate: links of one embedded switch only"),
        (["--rate", "0.5mbit"], "'0.5mbit': at least 1 Mbit/s"),
    ],
)
def test_what_does_not_go_with_a_topology(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in usage_error(capsys, training_demo.main, *arguments)


def test_a_topology_that_the_demo_cannot_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert training_demo.main(["--topology", "shared"]) == 1
    assert "topology 'shared' has 2 jobs: the demo is one" in capsys.readouterr().err
    assert training_demo.main(["--topology", "nowhere.json"]) == 1
    assert "nowhere.json cannot be read" in capsys.readouterr().err


def test_without_namespaces_it_is_said_that_no_gain_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(hosts: int, round_trip_s: float) -> None:
        raise TopologyError("no namespaces today")

    monkeypatch.setattr("hopsum_topologies.local_cluster.links_unavailable", lambda: None)
    monkeypatch.setattr("hopsum_topologies.local_cluster.Star", refuse)
    report = DemoReport("native", "thc", 2, 20, "digits", 1)
    plan = replace(training_demo.make_plan(report, tmp_path), rate_bits_per_s=1e6)
    training_demo.run(plan, report, Console(stderr=True))
    text = printed(report)
    assert "The gain is not shown" in text
    assert "(no namespaces today)" in text
    assert "times as fast" not in text
    assert report.as_json()["rate_bits_per_s"] is None


def printed(report: DemoReport) -> str:
    console = Console(width=80, record=True, file=StringIO())
    report.print(console)
    return console.export_text()


def test_the_first_table_has_the_gain_in_80_columns() -> None:
    report = DemoReport("native", "thc", 4, 100, "digits", 1, rate_bits_per_s=200e6, parameters=1_000_000)
    report.step_s, report.step_s_fp32, report.nmse_mean, report.nmse_theory = 0.08, 0.28, 0.005001, 0.005002
    report.counts = DemoCounts(InterfaceCounters(4 * 10**5, 10**9, 4 * 10**5, 10**9), {}, Counter(), 4 * 10**5, {})
    lines = printed(report).splitlines()
    assert lines[0].rstrip() == "4 workers, 100 steps, 1,000,000 parameters, digits, links of 200 Mbit/s"
    rows = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows[:2]] == [
        ["ms/step", "80", "280"], ["times as fast", "3.50", "1"],
    ]  # fmt: skip
    assert re.search(
        "^(oversubscribed: 4 workers and 1 switch share|[0-9]+ processors for 4 workers)", printed(report), re.M
    )
    # No cell of any table is broken over two lines.
    assert all(row[0].strip() for row in rows)


@pytest.mark.parametrize("status", [0, 1])
def test_a_user_becomes_root_of_namespaces_where_the_kernel_allows(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[tuple[str, ...]] = []
    (tmp_path / "unshare").write_text(f"#!/bin/sh\nexit {status}\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("os.execvp", lambda _, command: began.append(command))
    training_demo._become_root_of_namespaces()
    assert [command[-len(sys.orig_argv) :] for command in began] == [tuple(sys.orig_argv)] * (status == 0)


def test_gloo_in_place_of_the_switch_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import impostors

    monkeypatch.setattr(training_demo, "work", impostors.quiet_gloo)
    report = DemoReport("native", "thc", 2, 20, "digits", 1)
    training_demo.run(training_demo.make_plan(report, tmp_path), report, Console(stderr=True))
    assert report.replicas_equal
    assert report.interfaces.bytes_up == 0
    assert not report.all_through_switch
    assert not report.good


def test_missing_data_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum_evaluation.demo.digits_network.FASHION", Path("/nonexistent"))
    assert training_demo.main(["--data", "fashion"]) == 1
    assert "apt-get install dataset-fashion-mnist, or use the digits" in capsys.readouterr().err


class ScriptedPool:
    def __init__(self, messages: list[tuple[int, tuple[Any, ...]]]) -> None:
        self._messages = iter(messages)

    def receive(self) -> tuple[int, tuple[Any, ...]]:
        return next(self._messages)


@pytest.mark.parametrize("early", [False, True])
def test_a_worker_may_finish_before_the_others_but_not_before_its_last_word(tmp_path: Path, early: bool) -> None:
    report = DemoReport("native", "thc", 2, 20, "digits", 1)
    plan = training_demo.make_plan(report, tmp_path)
    last_words = [(0, ("baseline", 0.5)), (0, ("finished",)), (1, ("step", "fp32", 19, 0.1)), (1, ("baseline", 0.6))]
    pool: Any = ScriptedPool(last_words[1:] if early else last_words)
    with training_demo._progress(Console(stderr=True)) as progress:
        if early:
            with pytest.raises(WorkerDiedError, match="worker 0 sent 'finished' during fp32"):
                training_demo.gather_with_progress(pool, progress, plan, "fp32", "baseline")
        else:
            assert training_demo.gather_with_progress(pool, progress, plan, "fp32", "baseline") == [(0.5,), (0.6,)]


def test_fashion_reads_idx_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    contents = {
        "train-images-idx3": rng.integers(0, 256, (20, 28, 28), np.uint8),
        "train-labels-idx1": rng.integers(0, 10, 20, np.uint8),
        "t10k-images-idx3": rng.integers(0, 256, (6, 28, 28), np.uint8),
        "t10k-labels-idx1": rng.integers(0, 10, 6, np.uint8),
    }
    for name, array in contents.items():
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        data = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
        (tmp_path / f"{name}-ubyte.gz").write_bytes(gzip.compress(data))
    monkeypatch.setattr(digits_network, "FASHION", tmp_path)
    images = digits_network.load_images("fashion")
    assert np.array_equal(images.train_x.numpy()[:, 0] * 255, contents["train-images-idx3"])
    assert images.test_y.tolist() == contents["t10k-labels-idx1"].tolist()
