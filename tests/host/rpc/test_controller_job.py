# SPDX-License-Identifier: Apache-2.0
"""hopsum:// URLs: workers that join, sum, hear that their generation has ended, and leave."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsum
from hopsum.agent import Communicator
from hopsum.codec import CodecError
from hopsum.config import ConfigError, resolve
from hopsum.connection.url import UrlError
from hopsum.errors import AllReduceTimeoutError
from hopsum.rpc.channel import ControllerError, ControllerUnreachableError, TlsError
from hopsum.rpc.controller_job import job_token, switch_address
from hopsum_controlplane.service.grpc_service import Service
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import MembershipError

from ...support.restartable_controller import close_all
from .desk import FIRST_GENERATION, NAME, TOKEN, Desk, desk_service

pytestmark = pytest.mark.system
Served = tuple[Desk, Service]


def _connect(service: Service, rank: int | None = None, **settings: Any) -> Communicator:
    given: dict[str, Any] = {"codec": "fixed", "token": TOKEN, "backend": "numpy", "deadline_s": 60.0, **settings}
    return hopsum.connect(f"hopsum://{service.address}/{NAME}", rank=rank, **given)


def _connect_all(service: Service, workers: int = 2, **settings: Any) -> list[Communicator]:
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda rank: _connect(service, rank, **settings), range(workers)))


def _sum(jobs: list[Communicator]) -> list[list[float]]:
    futures = [job.submit(np.float32([job.rank, 2])) for job in jobs]
    return [future.result(60).mean.tolist() for future in futures]


def located_at(send_to: tuple[str, int], *leaves: tuple[Any, ...]) -> pb.LocateResponse:
    def endpoint(address: tuple[str, int]) -> pb.Endpoint:
        return pb.Endpoint(ip=address[0], udp_port=address[1])

    below = [pb.LocateResponse.Leaf(send_to=endpoint(address), networks=networks) for address, *networks in leaves]
    return pb.LocateResponse(send_to=endpoint(send_to), workers=4, leaves=below)


def test_a_worker_finds_its_leaf() -> None:
    """By the address that it sends from: the longest prefix; what no leaf has is refused with what was tried."""
    first, second = ("127.0.0.1", 47500), ("127.0.0.1", 47501)
    located = located_at(first, (first, "127.0.1.0/24", "10.0.0.0/8"), (second, "127.0.1.64/26"))
    assert switch_address(located, "127.0.1.5") == first
    assert switch_address(located, "127.0.1.70") == second
    assert switch_address(located_at(first), "127.0.7.7") == first
    with pytest.raises(ConfigError, match=r"none of the job's leaves: it has 127\.0\.0\.1 towards 127\.0\.0\.1"):
        switch_address(located, "")
    away = located_at(("240.0.0.1", 1), (("240.0.0.1", 1), "10.0.0.0/8"))
    with pytest.raises(ConfigError, match=r"no address towards 240\.0\.0\.1, which has 10\.0\.0\.0/8"):
        switch_address(away, "127.0.1.5")  # nothing leads there from loopback


def test_workers_join_sum_and_leave(served: Served, token_file: Path) -> None:
    desk, service = served
    url = f"hopsum://{service.address}/{NAME}?token_file={token_file}"
    with ThreadPoolExecutor(2) as pool:
        jobs = list(pool.map(lambda _: hopsum.connect(url, codec="fixed", backend="numpy"), range(2)))
    assert sorted(job.rank for job in jobs) == [0, 1]
    assert _sum(jobs) == [[0.5, 2]] * 2
    desk.wait(lambda: {rank for rank, _, counts in desk.beats if counts.get("allreduces") == 1} == {0, 1})
    _, generation, counts = desk.beats[-1]
    assert generation == FIRST_GENERATION
    assert counts["bytes_sent"] > 0
    close_all(jobs)
    close_all(jobs)
    assert sorted(desk.left) == [0, 1]
    assert all(join.side_port and join.version for join in desk.joins)


def test_sums_need_no_controller(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    desk, service = served
    jobs = _connect_all(service)
    with caplog.at_level(logging.WARNING, "hopsum.rpc.lease"):
        service.close()
        with desk.changed:
            count = len(desk.beats)
        assert _sum(jobs) == [[0.5, 2]] * 2
        assert len(desk.beats) == count
        close_all(jobs)
    assert "left without saying so" in caplog.text
    assert TOKEN not in caplog.text


def test_ranks_that_do_not_come_are_named(served: Served) -> None:
    desk, service = served
    with pytest.raises(MembershipError, match=r"not complete within 0\.3 s: ranks 1 have not joined\. Start all"):
        _connect(service, 0, membership_wait_s=0.3)
    assert desk.left == [0]
    assert desk.members == {}


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"token": "another-token-of-nobody"}, ControllerError, "this is not the job's token"),
        ({"rank": 9}, ControllerError, "no rank 9"),
        ({"codec": "uhc", "codec_options": {"bits": 17}}, CodecError, "bits"),
        ({"ip": "192.0.2.1"}, OSError, "annot assign"),
    ],
)
def test_what_is_refused_holds_no_rank(
    served: Served, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    desk, service = served
    with pytest.raises(error, match=message) as raised:
        _connect(service, **settings)
    assert desk.members == {}
    assert TOKEN not in str(raised.value)
    assert "another-token" not in str(raised.value)


def test_workers_take_the_codec_that_the_job_records(served: Served) -> None:
    desk, service = served
    desk.codec, desk.codec_options = "lossless", '{"index": "bitmap"}'
    jobs = _connect_all(service, codec=None)
    assert [settings["codec"] for settings in (join.settings for join in desk.joins)] == [
        "lossless(index='bitmap')"
    ] * 2
    assert _sum(jobs) == [[0.5, 2]] * 2
    close_all(jobs)


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({"codec": "fixed"}, "codec fixed with options {}"),
        ({"codec": "lossless", "codec_options": {"index": "bloom"}}, "codec lossless with options {'index': 'bloom'}"),
    ],
)
def test_another_codec_than_the_jobs_is_refused_with_both_names(
    served: Served, settings: dict[str, Any], own: str
) -> None:
    desk, service = served
    desk.codec, desk.codec_options = "lossless", '{"index": "bitmap"}'
    with pytest.raises(ConfigError) as raised:
        _connect(service, **settings)
    assert "job 'ddp' was made for codec lossless with options {'index': 'bitmap'}" in str(raised.value)
    assert own in str(raised.value)
    assert desk.members == {}


def test_codec_of_another_table_gives_the_rank_back(served: Served) -> None:
    desk, service = served
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(_connect, service, rank, codec="uhc") for rank in range(2)]
        for future in futures:
            with pytest.raises(CodecError, match=r"was not made for codec .* with these options: .*hopsum job create"):
                future.result(60)
    desk.wait(lambda: sorted(desk.left) == [0, 1])


def test_no_controller_is_one_error_in_time() -> None:
    start = time.monotonic()
    with pytest.raises(ControllerUnreachableError, match=r"controller at 127\.0\.0\.1:1, without TLS, gave no answer"):
        hopsum.connect("hopsum://127.0.0.1:1/ddp", token="t", membership_wait_s=0.5)
    assert time.monotonic() - start < 60


def test_a_controller_that_comes_later_is_waited_for() -> None:
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", 0)) as early:
            host, port = early.getsockname()
            url = f"hopsum://{host}:{port}/{NAME}"
            joined = pool.submit(hopsum.connect, url, token=TOKEN, codec="fixed", backend="numpy")
            early.accept()[0].close()  # it has tried
        with desk_service(workers=1, listen=f"{host}:{port}"), joined.result(60) as job:
            assert job.allreduce(np.ones(3, np.float32)).mean.tolist() == [1, 1, 1]


def test_a_worker_that_ends_without_a_word_leaves() -> None:
    with desk_service(workers=1) as (desk, service):
        code = (
            "import hopsum, numpy as np;"
            f"url = 'hopsum://{service.address}/{NAME}';"
            f"job = hopsum.connect(url, token='{TOKEN}', codec='fixed', backend='numpy');"
            "assert job.allreduce(np.ones(3, np.float32)).mean.tolist() == [1, 1, 1]"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert desk.left == [0]


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("hopsum://127.0.0.1/ddp", UrlError, "hopsum://HOST:PORT/JOB"),
        ("hopsum://127.0.0.1:1/", UrlError, "hopsum://HOST:PORT/JOB"),
        ("hopsum://127.0.0.1:1/ddp", ConfigError, "a job is joined with its token"),
        ("hopsum://127.0.0.1:1/ddp?token_file=/none", ConfigError, "token file /none cannot be read"),
        ("hopsum://127.0.0.1:1/ddp?tls=maybe", UrlError, "tls is 'maybe', no on or off"),
        ("hopsum://127.0.0.1:1/ddp?tokens=x", UrlError, "did you mean token_file"),
    ],
)
def test_urls_that_do_not_fit(url: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hopsum.connect(url)


def test_tls_files_have_to_be_used() -> None:
    with pytest.raises(TlsError, match=r"a\.pem is for TLS, which is off"):
        hopsum.connect("hopsum://127.0.0.1:1/ddp?tls=off&ca=a.pem", token="t")
    with pytest.raises(TlsError, match="one of certificate_file and key_file"):
        hopsum.connect("hopsum://127.0.0.1:1/ddp", token="t", key_file="a.key")


def test_a_token_is_in_no_settings_message(tmp_path: Path) -> None:
    config = resolve({"token": TOKEN})
    assert TOKEN not in repr(config)
    with pytest.raises(ConfigError, match="argument token is of another kind: token is a text"):
        resolve({"token": 12345})
    path = tmp_path / "empty"
    path.write_text("two words\n")
    with pytest.raises(ConfigError, match="holds no token") as raised:
        hopsum.connect(f"hopsum://127.0.0.1:1/ddp?token_file={path}")
    assert "two words" not in str(raised.value)


def test_a_switch_that_nobody_reaches_is_the_error_in_time(served: Served) -> None:
    """Nothing comes from the switch, not even an ICMP answer, and the controller says that it does not reach it."""
    desk, service = served
    jobs = _connect_all(service)
    assert _sum(jobs) == [[0.5, 2]] * 2
    desk.switch._answer = lambda *_: None  # type: ignore[method-assign]
    futures = [job.submit(np.ones(3, np.float32)) for job in jobs]
    with desk.changed:
        count = len(desk.beats)
    desk.wait(lambda: len(desk.beats) > count + 4)
    assert not any(future.done() for future in futures), "silence alone is a slow rank's, and no error"
    for job in jobs:
        job._wait_s = 0.5  # type: ignore[attr-defined]
    desk.unreachable = "leaf1: no session"
    for rank, future in enumerate(futures):
        with pytest.raises(
            AllReduceTimeoutError, match=rf"rank {rank}: nothing came .* does not reach it either \(leaf1: no sess"
        ):
            future.result(60)
    close_all(jobs)


def test_a_token_that_others_can_read_is_warned_of(token_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    token_file.chmod(0o600)
    assert job_token(resolve(), str(token_file)) == TOKEN
    assert caplog.text == ""
    token_file.chmod(0o644)
    assert job_token(resolve(), str(token_file)) == TOKEN
    assert f"token file {token_file} has mode 0644: others can read it" in caplog.text
    assert TOKEN not in caplog.text
