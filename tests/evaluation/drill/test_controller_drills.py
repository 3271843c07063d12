# SPDX-License-Identifier: Apache-2.0
"""What drills of the controller look at, with faults that they have to see; and one of them at bmv2."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from hopsum.rpc.errors import ControllerError
from hopsum_controlplane import SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.cluster import ClusterConfig, JobRequest, JobState, PortRule, SwitchConfig
from hopsum_controlplane.cluster.records import JobRecord, Member, MemberPhase
from hopsum_controlplane.cluster.state_store import StoredState
from hopsum_controlplane.entries import Delete, Entity, Insert, Modify, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.jobs import Job
from hopsum_controlplane.plan import plan
from hopsum_controlplane.slots import SlotRange
from hopsum_controlplane.tables.address import switch_address
from hopsum_controlplane.testing import FakeDevice
from hopsum_evaluation.drill import controller_disk, controller_writes
from hopsum_evaluation.drill.base import CHECKS, DrillContext, DrillError
from hopsum_evaluation.drill.catalogue import DRILLS
from hopsum_evaluation.drill.command import main
from hopsum_evaluation.drill.controller_probe import edit, refusal
from hopsum_evaluation.drill.controller_state import differences
from hopsum_evaluation.drill.controller_writes import Deaths
from hopsum_evaluation.drill.crash_injection import TakeoverReport

pytestmark = pytest.mark.system
ENDPOINT = SwitchEndpoint("02:00:00:00:00:fe", "10.0.0.254")
SWITCH = SwitchConfig("s1", "native", "127.0.0.1:1", 0, ENDPOINT, (PortRule(1, IPv4Network("10.0.0.0/16")),))
CONFIG = ClusterConfig((SWITCH,), Path("state.sqlite"))


def running() -> JobRecord:
    """A job of two workers that runs."""
    request = JobRequest("train", 2, 16)
    members = tuple(
        Member(WorkerEndpoint(rank, 1, f"02:00:00:00:01:{rank:02x}", f"10.0.0.{rank + 1}", 4000), None, b"i", b"s")
        for rank in range(2)
    )
    waiting = JobRecord(request, b"digest", "s1", 0, SlotRange(0, 16), members=members)
    job = Job.at(waiting.spec(), ENDPOINT, 7, 0, SlotRange(0, 16), 16)
    inside = tuple(replace(member, phase=MemberPhase.IN) for member in members)
    return replace(waiting, state=JobState.RUNNING, job=job, members=inside)


@pytest.fixture
def record() -> JobRecord:
    return running()


@pytest.fixture
def device(record: JobRecord) -> FakeDevice:
    assert record.job is not None
    made = FakeDevice()
    made.write([Insert(entity) for entity in (switch_address(ENDPOINT), *plan(record.job).entities)])
    return made


def entry_of(device: FakeDevice, table: str) -> TableEntry:
    return device.read_table(table)[0]


def foreign(device: FakeDevice) -> None:
    device.write([Insert(TableEntry("jobs", {"generation": 5}, "job", {}))])


def left_group(device: FakeDevice) -> None:
    device.write([Insert(MulticastGroup(9, (Replica(1, 1),)))])


def missing(device: FakeDevice) -> None:
    device.write([Delete(entry_of(device, "workers"))])


def changed(device: FakeDevice) -> None:
    entry: Entity = entry_of(device, "rewrite")
    assert isinstance(entry, TableEntry)
    device.write([Modify(replace(entry, params={**entry.params, "dst_port": 1}))])


def test_books_and_switch_agree(record: JobRecord, device: FakeDevice) -> None:
    assert differences(CONFIG, StoredState((record,), 7), device) == []


@pytest.mark.parametrize(
    ("harm", "told"),
    [(foreign, "has jobs"), (left_group, "has multicast group 9"), (missing, "lacks workers"), (changed, "instead of")],
)
def test_every_difference_is_seen(
    record: JobRecord, device: FakeDevice, harm: Callable[[FakeDevice], None], told: str
) -> None:
    harm(device)
    (found,) = differences(CONFIG, StoredState((record,), 7), device)
    assert told in found


def test_what_is_not_settled_is_told(record: JobRecord, device: FakeDevice) -> None:
    assert differences(CONFIG, StoredState((replace(record, state=JobState.CHANGING),), 7), device) == [
        "job train is changing"
    ]
    assert len(differences(CONFIG, StoredState((), 7), device)) == len(device.entities) - 1


def judged(context: DrillContext, *founds: TakeoverReport | int, status: int = -signal.SIGKILL) -> Deaths:
    """What the drill makes of one controller after the other that said this."""
    testbed = type("Stage", (), {"context": context})()
    deaths = Deaths(testbed, 2, None)  # type: ignore[arg-type]
    for found in founds:
        deaths._judge([found], time.monotonic(), "join", 3, status)
    return deaths


SOUND = TakeoverReport([], [], [], {"train": 7, "victim": 9}, 0.0)


def test_controllers_that_leave_a_difference_are_seen(tmp_path: Path) -> None:
    context = DrillContext("native", tmp_path)
    half = SOUND._replace(before=["lacks workers"])
    assert judged(context, SOUND, half, SOUND).half_done == 1
    for found in (SOUND._replace(after=["lacks workers[...]"]), SOUND._replace(audited=["foreign: jobs[...]"])):
        with pytest.raises(DrillError, match="after the death before join 3, switch and database differ"):
            judged(context, found)
    with pytest.raises(DrillError, match="the job that trains has generation 8 instead of 7"):
        judged(context, SOUND, SOUND._replace(generations={"train": 8}))
    with pytest.raises(DrillError, match="the job that trains has generation 0"):
        judged(context, SOUND._replace(generations={}))
    with pytest.raises(DrillError, match="did not take over: exit status 1"):
        judged(context, 5, status=1)
    with pytest.raises(DrillError, match="ended with status 1 in join"):
        judged(context, SOUND, status=1)


def test_a_refusal_needs_the_right_words() -> None:
    def refuse() -> None:
        raise ControllerError("the database is full", "INTERNAL")

    assert refusal(refuse, "full") == "the database is full"
    with pytest.raises(DrillError, match="but not for 'primary'"):
        refusal(refuse, "primary")
    with pytest.raises(DrillError, match="not refused"):
        refusal(lambda: None, "full")


def test_a_configuration_without_the_text_is_not_edited(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("one two")
    edit(path, tmp_path / "b.toml", ("one", "1"), ("two", "2"))
    assert (tmp_path / "b.toml").read_text() == "1 2"
    with pytest.raises(DrillError, match="has no 'three'"):
        edit(path, path, ("three", "3"))
    assert path.read_text() == "one two"


def test_a_small_disk_is_full_soon_and_goes_with_its_process(tmp_path: Path) -> None:
    if reason := controller_disk.needs_tmpfs("native"):
        pytest.skip(reason)
    code = (
        "import errno, pathlib, sys; from hopsum_evaluation.drill.controller_disk import small_disk\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "with small_disk(folder):\n"
        "    try: (folder / 'ballast').write_bytes(bytes(64 << 20))\n"
        "    except OSError as error: print(error.errno == errno.ENOSPC)\n"
        "print(list(folder.iterdir()))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n[]\n"
    assert list(tmp_path.iterdir()) == []


def test_controllers_that_die_at_bmv2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = controller_writes.NAME
    if reason := DRILLS[name].needs("bmv2"):
        pytest.skip(reason)
    status = main([name, "--target", "bmv2", "--scale", "0.3", "--keep", str(tmp_path), "--json"])
    (report,) = json.loads(capsys.readouterr().out)["drills"]
    assert status == 0, report
    assert report["checks"] == dict.fromkeys(CHECKS, True)
    assert report["numbers"]["half_done"] > 0
    assert report["target"] == "bmv2"
