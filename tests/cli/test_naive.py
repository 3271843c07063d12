# SPDX-License-Identifier: Apache-2.0
"""evaluation/naive behind the control plane of the shipped program."""

from __future__ import annotations

import pytest

from hopsum_controlplane import JobSpec, SwitchController, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.entries import TableEntry
from hopsum_controlplane.p4info import P4Info
from hopsum_evaluation.bench.naive import NaiveDevice, naive_program
from hopsum_ptf.fake_device import FakeDevice

TABLE = (0, 1, 2, 3, 5, 7, 9, 11, 13, 15, 18, 21, 24, 27, 29, 30)


@pytest.fixture
def fake() -> FakeDevice:
    """A switch that checks names and widths against the program's P4Info."""
    program = naive_program()
    assert program is not None
    return FakeDevice(P4Info.from_file(program[1]))


def test_a_job_gets_its_table_in_every_lane_and_nothing_twice(fake: FakeDevice) -> None:
    controller = SwitchController(NaiveDevice(fake), SwitchEndpoint("02:00:00:00:00:fe", "10.0.0.254"))
    workers = tuple(WorkerEndpoint(r, r + 1, f"02:00:00:00:01:{r:02x}", f"10.0.0.{r + 1}", 6000) for r in range(2))
    job = controller.create_job(JobSpec("job", workers, 8, TABLE))
    found = {
        (entry.table, entry.match["code"]): (entry.action, entry.params["value"])
        for entry in fake.entities.values()
        if isinstance(entry, TableEntry) and entry.table.startswith("lookup")
    }
    lanes = [f"{lane:03x}" for lane in range(1024)]
    assert found == {(f"lookup{i}", code): (f"set{i}", value) for i in lanes for code, value in enumerate(TABLE)}
    others = {entry.table for entry in fake.entities.values() if isinstance(entry, TableEntry)}
    assert {"switch_address", "jobs", "workers", "rewrite"} <= others
    controller.delete_job(job)
    assert fake.read_table("jobs") == []
