# SPDX-License-Identifier: Apache-2.0
"""The checks of a host before a job by hosts://."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hopsum.codec.backends import COMPILED_VARIABLE
from hopsum.transport.offload import Offload
from hopsum_base.interfaces import Interface
from hopsum_cli.diagnosis import hosts_side
from hopsum_cli.diagnosis.hosts_side import examine_host
from hopsum_cli.diagnosis.rows import Status, skipped
from hopsum_cli.doctor import main as doctor

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "MASTER_ADDR", "HOPSUM_IP", "HOPSUM_GSO"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(COMPILED_VARIABLE, "0")


@pytest.fixture
def no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_side._HostExamination, "_switch", lambda _: skipped("switch", "a test"))


@pytest.mark.system
def test_a_host_on_which_a_job_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(["hosts://", "--timeout", str(PATIENCE_S), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row["check"]: row for row in told["checks"]}
    assert {row["status"] for row in rows.values()} == {"pass"}
    assert rows["address"]["finding"] == "127.0.0.1 on lo, since neither MASTER_ADDR nor GLOO_SOCKET_IFNAME is set"
    assert "other hosts do not reach a loopback address" in rows["address"]["fix"]


@pytest.mark.parametrize(
    ("variable", "value", "check", "words"),
    [
        ("HOPSUM_IP", "192.0.2.1", "address", r"ip '192\.0\.2\.1' is not this host's"),
        ("GLOO_SOCKET_IFNAME", "nowhere0", "address", "no interface with an IPv4 address on .*: nowhere0"),
        ("HOPSUM_LEASE_S", "long", "settings", "environment variable HOPSUM_LEASE_S is 'long'"),
    ],
)
def test_an_obstacle_fails_with_a_remedy_and_hides_what_follows(
    monkeypatch: pytest.MonkeyPatch, no_switch: None, variable: str, value: str, check: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    report = examine_host("hosts://", PATIENCE_S)
    assert [row.check for row in report.rows if row.status is Status.FAIL] == [check]
    assert report[check].fix
    assert report["ports"].status is Status.SKIP
    assert re.search(words, report[check].finding)


def test_the_reason_for_an_address_is_told(monkeypatch: pytest.MonkeyPatch, no_switch: None) -> None:
    for variable, value, why in (
        ("MASTER_ADDR", "127.0.0.1", "127.0.0.1 on lo, the source of the way to MASTER_ADDR 127.0.0.1"),
        ("GLOO_SOCKET_IFNAME", "lo", "127.0.0.1 on lo, of GLOO_SOCKET_IFNAME=lo"),
        ("HOPSUM_IP", "127.0.0.1", "127.0.0.1 on lo, the setting ip"),
    ):
        monkeypatch.setenv(variable, value)
        assert examine_host("hosts://", PATIENCE_S)["address"].finding == why


def test_a_narrow_interface_a_kernel_that_mangles_and_a_cache_that_is_no_use_fail(
    monkeypatch: pytest.MonkeyPatch, no_switch: None
) -> None:
    narrow = Interface("eth9", "127.0.0.1", True, 900)
    monkeypatch.setattr(hosts_side.interfaces, "interface_of", lambda _: narrow)
    monkeypatch.setattr(hosts_side, "probe_offload", lambda: Offload(segment=True, gro=True))
    monkeypatch.setattr(hosts_side, "gso_arrives", lambda *_, **__: False)
    monkeypatch.setattr(hosts_side, "compiled_is_wanted", lambda: True)

    def warn(*_: Any) -> None:
        logging.getLogger("hopsum.codec.backends.jit").warning("numba's cache in /full is no use (no space)")

    monkeypatch.setattr(hosts_side, "codec_of", warn)
    report = examine_host("hosts://", PATIENCE_S)
    assert report["mtu"].fix == "ip link set dev eth9 mtu 1500, on all hosts"
    assert "HOPSUM_GSO=off" in report["gso"].fix
    assert "/full is no use" in report["kernels"].finding
    assert not report.good


@pytest.mark.parametrize("url", ["hosts://?slot=3", "hosts://there", "hosts://?slots=many"])
def test_a_url_that_does_not_fit_is_one_failed_line(url: str, no_switch: None) -> None:
    report = examine_host(url, PATIENCE_S)
    assert report.rows[0].status is Status.FAIL
    assert {row.status for row in report.rows[1:]} == {Status.SKIP}
