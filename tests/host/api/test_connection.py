# SPDX-License-Identifier: Apache-2.0
"""URLs: what they open, what is said of those that open nothing, and the line about a long wait."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsum
from hopsum.agent import Agent, Communicator, Span
from hopsum.codec import CodecError
from hopsum.config import Config, ConfigError
from hopsum.connection import settings_of
from hopsum.connection.open_agent import codec_for_job
from hopsum.connection.url import UrlError
from hopsum.errors import AllReduceTimeoutError
from hopsum.notice import AFTER_S, WaitNotice, log_if_slow
from hopsum.transport.offload import PLAIN
from hopsum.transport.udp_link import UdpLink
from hopsum_wire.membership import MembershipError

from ...support.overlap import overlap_s
from ...support.processes import await_that
from ..torch.job import serve_job


@pytest.mark.parametrize(
    ("rank", "world", "refused"),
    [("0", "2", True), ("0", "1", False), ("1", "2", False), ("0", "8", False), ("x", "2", False)],
)
def test_a_job_that_torchruns_world_cannot_fill(
    monkeypatch: pytest.MonkeyPatch, rank: str, world: str, refused: bool
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    config = Config(url="file:///job.json", rank=0, codec="fixed", backend="numpy")
    if not refused:
        assert codec_for_job(config, 3).workers == 3
        return
    with pytest.raises(ConfigError, match=r"the job has 3 workers.* rank 0 of 2 \(WORLD_SIZE\): start 3 ranks"):
        codec_for_job(config, 3)


def _sum_over(urls: list[str]) -> None:
    jobs: list[Communicator] = [
        hopsum.connect(url, rank=rank, codec="fixed", backend="numpy") for rank, url in enumerate(urls)
    ]
    assert all(isinstance(job, Agent) for job in jobs)
    futures = [hopsum.allreduce(np.float32([rank, 2]), job, async_op=True) for rank, job in enumerate(jobs)]
    means = [future.result(60) for future in futures]
    for job in jobs:
        job.close()
    assert [mean.tolist() for mean in means] == [[0.5, 2], [0.5, 2]]


def test_a_switch_by_its_membership_file(tmp_path: Path) -> None:
    path = tmp_path / "membership with space.json"
    with serve_job(path, 2):
        quoted = path.as_uri()
        assert "%20" in quoted
        _sum_over([quoted, f"file://localhost{quoted.removeprefix('file://')}"])
        with pytest.raises(MembershipError, match="rank 2 is not in job 'ddp'"):
            hopsum.connect(path.as_uri(), rank=2)
        with pytest.raises(ConfigError, match=r"which of the 2 workers is this\? Pass rank="):
            hopsum.connect(path.as_uri())


def test_scapy_packets_in_place_of_a_socket(tmp_path: Path) -> None:
    path, seen = tmp_path / "membership.json", list[bool]()
    with serve_job(path, 1):
        pcap = tmp_path / "worker.pcap"
        with hopsum.connect(
            path.as_uri(),
            rank=0,
            backend="numpy",
            link="scapy",
            pcap=str(pcap),
            on_packet=lambda _, sent: seen.append(sent),
        ) as job:
            assert hopsum.allreduce(np.ones(3, np.float32), job).shape == (3,)
        assert True in seen
        assert False in seen
        assert pcap.stat().st_size > 24 + 2 * (16 + 74)
        with pytest.raises(ConfigError, match='only link="scapy" has packets to show'):
            hopsum.connect(path.as_uri(), rank=0, show=True)
    with pytest.raises(ConfigError, match=r'link="scapy" with URL .*: only file://, raw:// have it'):
        hopsum.connect("memory://a?workers=1", link="scapy")


def test_deadlines_reach_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "membership.json"
    with (
        serve_job(path, 2),
        hopsum.connect(path.as_uri(), rank=0, backend="numpy", deadline_s=0.3, retransmit_s=0.05) as job,
    ):
        with pytest.raises(AllReduceTimeoutError):
            hopsum.allreduce(np.ones(3, np.float32), job)
        assert settings_of(job).deadline_s == 0.3


def test_spans_of_time_and_how_datagrams_move(tmp_path: Path) -> None:
    path, spans = tmp_path / "membership.json", list[Span]()
    given: dict[str, Any] = {"rank": 0, "codec": "fixed", "backend": "numpy"}
    with serve_job(path, 1), hopsum.connect(path.as_uri(), gso="off", trace=spans.append, **given) as comm:
        assert hopsum.allreduce(np.float32([1, 2]), comm).tolist() == [1, 2]
        assert isinstance(comm, Agent)
        assert isinstance(comm._transport.shards[0].link, UdpLink)
        assert comm._transport.shards[0].link.offload == PLAIN
    assert {"prepare", "network MAX32", "encode", "network ADD32", "decode"} <= {span.stage for span in spans}


def test_all_reduces_strictly_one_after_the_other(tmp_path: Path) -> None:
    path, spans = tmp_path / "membership.json", list[Span]()
    given: dict[str, Any] = {"rank": 0, "codec": "fixed", "backend": "numpy", "trace": spans.append}
    with serve_job(path, 1), hopsum.connect(path.as_uri(), overlap=False, **given) as comm:
        futures = [hopsum.allreduce(np.ones(9000, np.float32), comm, async_op=True) for _ in range(4)]
        for future in futures:
            future.result(60)
    assert {span.number for span in spans} == {0, 1, 2, 3}
    assert overlap_s(spans) == 0
    for arguments in ({"overlap": False}, {"trace": print}):
        with pytest.raises(ConfigError, match="only workers at a switch have them"):
            hopsum.connect("memory://one-after-the-other?workers=1", rank=0, **arguments)


def test_a_missing_membership_file(tmp_path: Path) -> None:
    with pytest.raises(MembershipError, match="within 0 s"):
        hopsum.connect((tmp_path / "none.json").as_uri(), rank=0, membership_wait_s=0)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "no URL: pass one, or set HOPSUM_URL"),
        (
            "job.json",
            "has no scheme; there are file, hopsum, raw, memory, collective, hosts. for example file:///PATH",
        ),
        ("hopsun://h:1/j", "hopsun:// sums nowhere; did you mean hopsum?"),
        ("hopsum://h:99999/j", "Port out of range"),
        ("raw://eth0/j?member=x", "there is no parameter 'member'; did you mean membership?"),
        ("file://host/x.json", "a path on this machine has three slashes"),
        ("file:///x.json?rank=1", "there is no parameter 'rank'; file:// takes none; settings are arguments"),
        ("memory://a", r"an in-process group has a name and workers, memory://NAME\?workers=N"),
        ("memory://?workers=2", "an in-process group has a name"),
        ("memory://a?workers=2&workers=3", "workers twice"),
        ("memory://a?workers=two", "workers is 'two', no int"),
        ("memory://a?workers=65", "workers is 65, not 1 to 64"),
        ("memory://a?workers=2#x", "no fragment and no user name"),
        ("memory://a:80?workers=2", "memory:// takes no port"),
        ("raw:///digits?membership=x", r"on which interface\? raw://INTERFACE/JOB"),
        ("raw://eth0", r"add \?membership=PATH"),
        ("raw://eth0?membership=x&via=there", "via is 'there', no IPv4Address"),
        ("collective://mpi", "collective://gloo or collective://nccl"),
    ],
)
def test_urls_that_open_nothing(url: str, message: str) -> None:
    with pytest.raises(UrlError, match=message):
        hopsum.connect(url, rank=0)


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(CodecError, match="codec uhc has no option 'bit': its options are bits, lane_bits"):
        hopsum.connect("memory://a?workers=1", codec="uhc", codec_options={"bit": 8})
    with pytest.raises(ConfigError, match="did you mean rank"):
        hopsum.connect("memory://a?workers=1", ranks=0)
    with pytest.raises(ConfigError, match="only hosts:// and collective:// take a process group"):
        hopsum.connect("memory://a?workers=1", group=object())
    for url in ("file:///x.json", "raw://eth0?membership=x", "hopsum://h:1/j", "hosts://"):
        with pytest.raises(ConfigError, match=r"codec two-shot: .* no switch can; connect to collective://gloo"):
            hopsum.connect(url, codec="two-shot:bits=4", rank=0)
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        hopsum.conect  # noqa: B018


@pytest.mark.parametrize(("url", "group"), [("hosts://", ""), ("file:///x.json", "auto")])
def test_what_meets_over_torchs_store_says_that_torch_is_missing(
    monkeypatch: pytest.MonkeyPatch, url: str, group: str
) -> None:
    monkeypatch.setitem(sys.modules, "hopsum.meeting.rank_store", None)
    with pytest.raises(ConfigError, match=r"needs torch: pip install 'hopsum\[hosts\]'"):
        hopsum.connect(url, rank=0, local_group=group)


def test_the_front_door_needs_numpy_only() -> None:
    code = (
        "import hopsum, sys, numpy as np;"
        "light = 'hopsum.agent' not in sys.modules;"
        "job = hopsum.connect('memory://a?workers=1', backend='numpy', codec='fixed');"
        "assert hopsum.allreduce(np.ones(3), job).tolist() == [1, 1, 1];"
        "job.close();"
        "bad = [m for m in ('torch', 'numba', 'scapy', 'grpc') if m in sys.modules];"
        "sys.exit(', '.join(bad) or (None if light else 'import hopsum loads the agent'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_takes_long_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    notice = WaitNotice("rank 0", clock=lambda: now_s)
    notice.log("rank 1 to join", 60, "membership_wait_s")
    assert caplog.messages == []
    now_s += AFTER_S
    for left_s in (55, 50):
        notice.log("rank 1 to join", left_s, "membership_wait_s")
    notice.log("an answer", 40, "membership_wait_s")
    assert caplog.messages == [
        "rank 0: waiting for rank 1 to join, for 55 s more at most (membership_wait_s)",
        "rank 0: waiting for an answer, for 40 s more at most (membership_wait_s)",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}, "seen without any set-up"


def test_what_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    WaitNotice("rank 0", clock=lambda: 0.0).log("another", 1, "why", at_once=True)
    assert len(caplog.messages) == 1


def test_a_block_that_takes_long_says_so_and_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with log_if_slow("still at it", after_s=0.0):
        await_that(lambda: caplog.messages == ["still at it"], "the line")
    assert caplog.records[0].levelname == "INFO"


def test_a_block_that_ends_soon_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with log_if_slow("still at it", after_s=3600.0):
        pass
    assert caplog.messages == []
