# SPDX-License-Identifier: Apache-2.0
"""The controller's page in a browser: two jobs, as they change; who is behind; and when nobody answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsum_controlplane.web import WebServer
from hopsum_controlplane.web.page_state import PageState
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire import Drop, Event
from hopsum_wire.watch.heartbeat import NAMES

from ..cluster.world import Cluster, switch_config
from .browser import Browser, find_browser

PROGRAM = find_browser()
pytestmark = [pytest.mark.system, pytest.mark.skipif(PROGRAM is None, reason="no Chromium on PATH")]
JOB = "document.querySelector('[data-name={}]')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(str(PROGRAM), tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def switch() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def cluster(tmp_path: Path, switch: FakeDevice) -> Iterator[Cluster]:
    made = Cluster(tmp_path, (switch_config(),), {"s1": switch})
    made.start()
    yield made
    made.stop()


@pytest.fixture
def server(cluster: Cluster) -> Iterator[WebServer]:
    with WebServer(cluster.controller, "127.0.0.1:0", fresh_s=0, clock=cluster.clock) as found:
        yield found


def text(browser: Browser, name: str) -> str:
    return str(browser.value(f"{JOB.format(name)}.innerText"))


def rows(browser: Browser, job: str, kind: str) -> list[str]:
    found: list[str] = browser.value(
        f"[...{JOB.format(job)}.querySelectorAll('tr.{kind}')].map(row => row.dataset.rank + ' ' + row.innerText)"
    )
    return found


def test_two_jobs_as_they_change_and_who_is_behind(
    browser: Browser, cluster: Cluster, switch: FakeDevice, server: WebServer
) -> None:
    train, other = cluster.run("train", 3), cluster.run("other", 3)
    cluster.make("next", 2)
    browser.go(server.url)
    browser.wait_for("document.querySelectorAll('.card.job').length == 3", "three jobs")
    assert browser.value("document.getElementById('status').innerText") == "live"
    assert "48 of 2048 slots used" in text(browser, "s1")
    assert "No worker has joined" in text(browser, "next")
    assert browser.value(f"{JOB.format('next')}.querySelectorAll('.wait, .bad').length") == 0  # nothing is wrong
    assert "3/3" in text(browser, "train")

    cluster.clock.sleep(6)
    switch.counters["job_events"] = {cluster.controller.job("other").job_index * 8 + Event.COMPLETED: 60}
    switch.counters["drops"] = {Drop.UNKNOWN_GENERATION: 1234}
    for worker in train:
        worker.beat(datagrams_sent=9.0 * (worker.rank != 2), retransmits=8.0 * (worker.rank != 2))
    for worker in other:
        took_s = 0.05 if worker.rank else 0.01
        worker.beat(
            **{"allreduces": 6, "elements": 60_000, "seconds": 6 * took_s, "codes_lookup_add8": 61_440},
            **{"bytes_sent": 48_000, "error_squares": 3.0, "vector_squares": 200.0},
            **{"steps": 6, "step_seconds": 1.0, "wait_seconds": 0.37},
        )
    browser.wait_for(f"{JOB.format('train')}.innerText.includes('makes no progress')", "the job that stands still")
    assert "It makes no progress: the others wait for rank 2." in text(browser, "train")
    (row,) = rows(browser, "train", "behind")
    assert row.startswith("2 ")
    assert "the others wait for it" in row
    (row,) = rows(browser, "other", "late")
    assert row.startswith("0 ")
    assert "comes last" in row
    shown = text(browser, "other")
    for figure in ("30 k", "30.7 k", "lookup add8", "24 kB/s", "36.7 ms", "0.015", "37 %", "0.15\u00d7"):
        assert figure in shown.replace("\u00a0", " "), (figure, shown)
    assert "1.23 k" in text(browser, "s1").replace("\u00a0", " ")
    assert browser.complaints == []


def test_when_the_controller_does_not_answer(browser: Browser, cluster: Cluster, server: WebServer) -> None:
    cluster.run("train")
    browser.go(server.url)
    browser.wait_for("document.querySelectorAll('.card.job').length == 1", "the job")
    assert browser.value("document.getElementById('silence').hidden")
    server.close()
    browser.wait_for("!document.getElementById('silence').hidden", "that nobody answers")
    assert "The controller does not answer" in browser.value("document.getElementById('silence').innerText")
    assert browser.value("document.getElementById('status').innerText") == "no answer"
    assert browser.value("document.querySelectorAll('.card.job').length") == 1, "what was known is still shown"
    server.start()
    browser.wait_for("document.getElementById('silence').hidden", "that it is back")
    assert browser.value("document.getElementById('main').className") == ""
    browser.complaints.clear()  # of the connections that were refused


def test_an_answer_of_another_version_is_told_apart(
    browser: Browser, cluster: Cluster, server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.run("train")
    monkeypatch.setattr(PageState, "document", lambda _: {"seconds": 1, "switches": [], "jobs": [{}]})
    browser.go(server.url)
    browser.wait_for("document.getElementById('status').innerText == 'reload'", "that it cannot be shown")
    assert "cannot show the controller's answer" in browser.value("document.getElementById('silence').innerText")
    monkeypatch.undo()
    monkeypatch.setattr(cluster.controller, "jobs", lambda **_: 1 / 0)
    browser.wait_for("document.getElementById('silence').innerText.includes('status 500')", "the error")
    monkeypatch.undo()
    browser.wait_for("document.getElementById('status').innerText == 'live'", "that it is well again")
    browser.complaints.clear()  # of the answer with status 500


@pytest.mark.parametrize("dark", [False, True])
def test_words_are_text_and_fit_a_phone(
    browser: Browser, cluster: Cluster, server: WebServer, monkeypatch: pytest.MonkeyPatch, dark: bool
) -> None:
    name = "a" * 64
    crew = cluster.run(name, 8)
    hurt = "<img src=x onerror=document.title='hurt'><script>document.title='hurt'</script>" + "x" * 300
    monkeypatch.setattr(type(cluster.controller._reconcilers["s1"]), "condition", hurt)
    browser.look(360, 740, dark=dark)
    browser.go(server.url)
    browser.wait_for("document.querySelectorAll('.note.bad').length > 1", "the condition")
    cluster.clock.sleep(6)
    for worker in crew:
        seconds = 9.876 * (1 + worker.rank)
        worker.beat(**{**dict.fromkeys(NAMES, 123_456_789.0), "allreduces": 17, "seconds": seconds})
    browser.wait_for(f"{JOB.format(name)}.innerText.includes('lookup add8')", "the rates")
    assert hurt in text(browser, "s1")
    assert browser.value("document.title") == "hopsum"
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert browser.value("document.documentElement.scrollWidth") <= 360
    back = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back.removeprefix("rgb(").removesuffix(")").split(","))) < 3 * 64) == dark
    assert browser.complaints == []
