# SPDX-License-Identifier: Apache-2.0
"""`hopsum doctor --controller`: each cause is really there, in a cluster in memory behind its service."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsum.diagnosis.controller_side import CHECKS, apart_s, examine_controller
from hopsum.diagnosis.rows import DiagnosisReport, Status
from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.jobs import JobsClient
from hopsum_cli.doctor import main
from hopsum_cli.operator import take_snapshot
from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster.errors import PipelineMismatchError
from hopsum_controlplane.devices.base import Device
from hopsum_controlplane.entries import TableEntry
from hopsum_controlplane.errors import NotPrimaryError, SessionLostError
from hopsum_controlplane.service.access import AdminToken
from hopsum_controlplane.service.server import Service
from hopsum_controlplane.testing import Failure, FakeDevice
from hopsum_wire import JOB_EVENTS, Drop, Event
from hopsum_wire.watch.snapshots import ControllerSnapshot

from ...controlplane.cluster.world import LEASE_S, Cluster, switch_config


class Practice:
    """A cluster with its service, and a doctor who looks twice; the clock is turned between the snapshots."""

    def __init__(self, folder: Path, opener: Callable[[], Device] | None = None, **options: Any) -> None:
        self.switch = FakeDevice()
        self.cluster = Cluster(folder, (switch_config(),), {"s1": opener or self.switch})  # type: ignore[dict-item]
        self.controller = self.cluster.start(**options)
        self.service = Service(self.controller, "127.0.0.1:0")
        self.channel = Channel(ControllerAddress.of(self.service.address))

    def close(self) -> None:
        self.channel.close()
        self.service.close()
        self.cluster.stop()

    def snapshot(self) -> ControllerSnapshot:
        return take_snapshot(JobsClient(self.channel), self.cluster.clock)

    def examine(
        self, meanwhile: Callable[[], None] = lambda: None, job: str | None = None, now_s: float | None = None
    ) -> DiagnosisReport:
        before = self.snapshot()
        self.cluster.clock.sleep(apart_s(before))
        meanwhile()
        now_s = self.cluster.clock.now_s if now_s is None else now_s
        return examine_controller(before, self.snapshot(), where="here", now_s=now_s, job=job)

    def break_switch(self, error: ControlPlaneError, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let everything that is read of the switch fail, and the controller notice."""

        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(self.switch, "read_counter", fail)
        monkeypatch.setattr(self.switch, "read_table", fail)
        self.snapshot()

    def count(self, event: Event, packets: int) -> None:
        self.switch.counters.setdefault("job_events", {})[event] = packets  # of job index 0
        assert event < JOB_EVENTS


@pytest.fixture
def practice(tmp_path: Path) -> Iterator[Practice]:
    made = Practice(tmp_path)
    yield made
    made.close()


def fails(report: DiagnosisReport, *checks: str) -> dict[str, Any]:
    """Assert that exactly these checks fail, each with a fix; return the first one's row as JSON has it."""
    failures = [row for row in report.rows if row.status is Status.FAIL]
    assert [row.check for row in failures] == list(checks), report.rows
    assert all(row.fix for row in failures)
    return next(each for each in report.as_json()["checks"] if each["check"] == checks[0])


def test_a_cluster_that_is_well(practice: Practice) -> None:
    crew = practice.cluster.run("train")
    practice.cluster.make("idle")  # nobody waits in it

    def work() -> None:
        practice.count(Event.COMPLETED, 8)
        for worker in crew:
            worker.beat(allreduces=1, datagrams_sent=8)

    report = practice.examine(work)
    assert report.good, report.rows
    assert tuple(row.check for row in report.rows if row.check != "job") == tuple(c for c in CHECKS if c != "job")
    assert report["slots"].finding.startswith("8 completed in")
    report = practice.examine(work, job="train")
    assert tuple(row.check for row in report.rows) == CHECKS
    assert report["job"].facts["state"] == "running"


@pytest.mark.parametrize(
    ("error", "check"),
    [
        (SessionLostError("no P4Runtime server answered", where="10.0.0.9:9559"), "switches"),
        (PipelineMismatchError("it runs a program with cookie 0x7, not ours"), "program"),
        (NotPrimaryError("our election id 1 is not the primary's"), "primary"),
    ],
)
def test_a_switch_with_a_condition(
    practice: Practice, monkeypatch: pytest.MonkeyPatch, error: ControlPlaneError, check: str
) -> None:
    practice.cluster.run("train")
    practice.break_switch(error, monkeypatch)
    report = practice.examine()
    row = next(row for row in report.rows if row.status is Status.FAIL)
    assert row.check == check
    assert error.what in row.finding
    assert row.facts == {"switches": ["s1"]}
    assert report["writing"].status is Status.FAIL
    assert report["drops"].status is Status.SKIP


def test_entries_that_somebody_else_writes(practice: Practice) -> None:
    practice.cluster.run("train")

    def write() -> None:
        entry = next(e for e in practice.switch.entities.values() if isinstance(e, TableEntry) and e.table == "jobs")
        foreign = TableEntry(entry.table, {**entry.match, "generation": 77}, entry.action, entry.params)
        practice.switch.entities[foreign.key()] = foreign
        practice.cluster.clock.sleep(practice.cluster.config.reconcile_interval_s)
        for worker in crew:
            worker.beat()
        practice.controller.tick()

    crew = practice.cluster.run("other")
    row = fails(practice.examine(write, job="other"), "entries")
    assert row["entries_repaired"] == {"s1": 1}
    assert "foreign: " in row["finding"]


def test_ranks_that_have_not_joined(practice: Practice) -> None:
    crew = practice.cluster.make("train", 4)
    crew[0].join()
    crew[2].join()
    row = fails(practice.examine(lambda: None), "members")
    assert row["missing"] == {"train": [1, 3]}
    assert "waits for ranks 1, 3; there are 2 of 4" in row["finding"]


def test_a_rank_of_another_wire_version(practice: Practice) -> None:
    crew = practice.cluster.make("train")
    crew[0].join()
    with pytest.raises(ControlPlaneError):
        crew[1].join(wire_version=99)
    report = practice.examine()
    fails(report, "members", "joins")
    assert "wire version 99" in report["joins"].finding
    assert "install the same hopsum" in report["joins"].finding


def test_refusals_that_are_over_fail_nothing(practice: Practice) -> None:
    crew = practice.cluster.make("train")
    with pytest.raises(ControlPlaneError):
        crew[0].join(wire_version=99)
    practice.cluster.clock.sleep(60)
    assert "1 refused, the last 61 s ago" in practice.examine()["joins"].finding
    for worker in crew:
        worker.join()
    for worker in crew:
        worker.membership()
        worker.leave()
    practice.cluster.clock.sleep(360)
    practice.controller.tick()
    assert practice.controller.job("train").missing_ranks == (0, 1)
    report = practice.examine()
    assert report["joins"].status is Status.PASS
    assert "1 refused, the last 7 min ago" in report["joins"].finding
    assert report["joins"].finding.endswith("that is over")


def test_a_refused_worker_that_nobody_waits_for_is_over_after_a_while(practice: Practice) -> None:
    crew = practice.cluster.make("train")
    with pytest.raises(ControlPlaneError):
        crew[0].join(wire_version=99)
    assert practice.examine()["joins"].status is Status.FAIL
    practice.cluster.clock.sleep(3600)
    assert practice.examine()["joins"].status is Status.PASS


def test_a_rank_that_left_is_named_and_not_called_silent(practice: Practice) -> None:
    crew = practice.cluster.run("train")
    for worker in crew:
        worker.beat(allreduces=1, datagrams_sent=10)
    crew[1].leave()
    report = practice.examine(lambda: crew[0].beat(allreduces=1, datagrams_sent=30, retransmits=20) and None)
    assert "rank 1 at 10.0.1.2:4001 has left" in fails(report, "quorum", "slots")["finding"]
    assert report["slots"].finding.endswith("nothing is complete, and rank 1 is gone")
    assert "start rank 1 again" in report["slots"].fix


def test_a_rank_that_was_given_up(practice: Practice) -> None:
    crew = practice.cluster.run("train")

    def fall_silent() -> None:
        for _ in range(3):
            practice.cluster.clock.sleep(LEASE_S / 3 + 0.1)
            crew[0].beat()
            practice.controller.tick()

    report = practice.examine(fall_silent)
    assert fails(report, "members", "leases")["missing"] == {"train": [0, 1]}
    assert report["leases"].facts["lost"] == {"train": [1]}
    assert "the lease of rank 1 ran out" in report["members"].fix


def test_a_rank_that_a_running_job_does_without(practice: Practice) -> None:
    crew = practice.cluster.run("train", 3, quorum=2)

    def fall_silent() -> None:
        for _ in range(3):
            practice.cluster.clock.sleep(LEASE_S / 3 + 0.1)
            for worker in (crew[0], crew[2]):
                worker.beat()
            practice.controller.tick()

    report = practice.examine(fall_silent)
    assert report.good
    assert report["leases"].facts["lost"] == {"train": [1]}
    assert "rank 1 of job 'train' at 10.0.1.2:4001 was evicted" in report["leases"].fix
    crew[0].leave()
    row = fails(practice.examine(crew[2].beat), "quorum")
    lost = "rank 1 at 10.0.1.2:4001 was evicted: it was silent for 10 s"
    assert f"rank 0 at 10.0.1.1:4000 has left; {lost}" in row["finding"]


def test_a_rank_that_is_about_to_be(practice: Practice) -> None:
    crew = practice.cluster.run("train")

    def miss() -> None:
        practice.cluster.clock.sleep(LEASE_S * 0.3)
        crew[1].beat()

    row = fails(practice.examine(miss), "leases")
    assert row["quiet"] == {"train": [0]}


def test_a_quorum_out_of_reach(practice: Practice) -> None:
    crew = practice.cluster.run("train", 3, quorum=2)
    crew[0].leave()
    assert practice.examine().good
    crew[2].leave()
    row = fails(practice.examine(crew[1].beat), "quorum")
    assert "1 workers are left" in row["finding"]
    assert "rank 0 at 10.0.1.1:4000 has left; rank 2 at 10.0.1.3:4002 has left" in row["finding"]


def test_a_rank_that_sends_nothing(practice: Practice) -> None:
    crew = practice.cluster.run("train", 3)
    for worker in crew:
        worker.beat(allreduces=4, datagrams_sent=100, retransmits=0)

    def hang() -> None:
        for worker in crew:
            waits = worker.rank != 1
            worker.beat(allreduces=4, datagrams_sent=100 + 20 * waits, retransmits=19 * waits)

    row = fails(practice.examine(hang), "slots")
    assert row["behind"] == {"train": [1]}
    assert "look at rank 1 at 10.0.1.2:4001" in row["fix"]


def test_ranks_that_all_send_in_vain(practice: Practice) -> None:
    crew = practice.cluster.run("train")

    def shout() -> None:
        practice.switch.counters["drops"] = {Drop.WRONG_PORT: 40}
        for worker in crew:
            worker.beat(allreduces=0, datagrams_sent=20, retransmits=19)

    report = practice.examine(shout)
    fails(report, "slots", "drops")
    assert report["slots"].facts["behind"] == {"train": []}
    assert report["drops"].facts["drops"] == {"wrong_port": 40}
    assert "another port of the switch" in report["drops"].fix


@pytest.mark.parametrize("reason", [reason for reason in Drop if reason is not Drop.NONE])
def test_every_drop_has_a_fix(practice: Practice, reason: Drop) -> None:
    def drop() -> None:
        practice.switch.counters["drops"] = {reason: 3}

    row = fails(practice.examine(drop), "drops")
    assert row["drops"] == {reason.name.lower(): 3}
    assert "see docs/protocol.md" not in row["fix"]


def test_generations_that_follow_one_another(practice: Practice) -> None:
    crew = practice.cluster.run("train")

    def fight() -> None:
        for _ in range(3):
            crew[1].start_again()
            crew[0].join()
            crew[0].membership()

    row = fails(practice.examine(fight), "generations")
    assert row["begun"] == {"train": 3}
    assert "rank 1 was started again" in row["fix"]


def test_a_switch_that_does_not_take_a_job(practice: Practice) -> None:
    crew = practice.cluster.make("train")
    practice.switch.fail(at=practice.switch.updates, failure=Failure.REFUSED)
    for worker in crew:
        worker.join()
    row = fails(practice.examine(), "writing")
    assert "1 of" in row["finding"]
    assert "updates refused" in row["finding"]


def test_a_clock_that_is_wrong(practice: Practice) -> None:
    crew = practice.cluster.run("train")
    generation = crew[0].generation
    row = fails(practice.examine(now_s=generation - 3600.0), "clock")
    assert row["ahead_s"] == {"train": 3600}


def test_a_job_that_is_not_there(practice: Practice) -> None:
    practice.cluster.make("train")
    report = practice.examine(job="rain")
    assert "there are: train" in fails(report, "job")["finding"]
    assert {row.status for row in report.rows[2:]} == {Status.SKIP}
    assert tuple(row.check for row in report.rows) == CHECKS


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_command(practice: Practice, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", practice.cluster.clock)  # generations are of that clock
    here = ("--controller", practice.service.address)
    practice.cluster.run("train")
    assert doctor(capsys, *here, "--stuck-after", "0")[0] == 0
    crew = practice.cluster.make("next")
    crew[1].join()
    code, report = doctor(capsys, *here, "--stuck-after", "0", "--job", "next")
    assert (code, report["good"], report["subject"]) == (1, False, f"controller at {here[1]}, job 'next'")
    assert main([*here, "--stuck-after", "0"]) == 1
    assert "members failed" in capsys.readouterr().out


def test_a_controller_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, report = doctor(capsys, "--controller", f"unix:{tmp_path}/nobody")
    assert code == 1
    assert [check["check"] for check in report["checks"]] == list(CHECKS)
    assert [check["status"] for check in report["checks"]] == ["fail"] + ["skip"] * (len(CHECKS) - 1)
    code, report = doctor(capsys, "--controller", f"unix:{tmp_path}/nobody", "--admin-token-file", f"{tmp_path}/none")
    assert "admin token file" in report["checks"][0]["finding"]


def test_an_administrator_without_the_token(practice: Practice, capsys: pytest.CaptureFixture[str]) -> None:
    with Service(practice.controller, "127.0.0.1:0", admin_tokens=[AdminToken("x" * 32)]) as service:
        code, report = doctor(capsys, "--controller", service.address)
        assert (code, report["checks"][0]["fix"]) == (1, "give --admin-token-file")


def test_one_of_two_sides(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # no context
    monkeypatch.delenv("HOPSUM_CONTROLLER", raising=False)
    for arguments, what in (
        ((), "give MEMBERSHIP or"),
        (("job.json", "--controller", "127.0.0.1:1"), "give either MEMBERSHIP or"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert f"{what} --controller" in capsys.readouterr().err
