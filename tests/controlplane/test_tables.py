# SPDX-License-Identifier: Apache-2.0
"""The builders: what a job puts on a switch, and that the compiled program knows all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hopsum_controlplane import ControlPlaneError, Job, JobSpec, SwitchEndpoint
from hopsum_controlplane.encoding import decode_entity, encode_entity
from hopsum_controlplane.entries import MulticastGroup, Replica, TableEntry
from hopsum_controlplane.p4info import P4Info
from hopsum_controlplane.slots import SlotRange
from hopsum_controlplane.tables import admit, forward, lookup, reply

EPOCH = 0x66554433


@pytest.fixture
def job(make_spec: Callable[..., JobSpec], switch_endpoint: SwitchEndpoint) -> Job:
    return Job(make_spec(workers=2), switch_endpoint, EPOCH, 5, SlotRange(32, 16), group=6, window=16)


def test_admit(job: Job) -> None:
    assert admit.jobs(job) == [
        TableEntry(
            "jobs",
            {"epoch": EPOCH},
            "job",
            {"job_index": 5, "slot_base": 32, "slots": 16, "quorum": 2, "group": 6},
        )
    ]
    assert admit.workers(job) == [
        TableEntry(
            "workers",
            {"epoch": EPOCH, "worker": rank},
            "admit",
            {"worker_bit": 1 << rank, "port": rank + 1, "address": 0x0A000001 + rank, "udp_port": 4000 + rank},
        )
        for rank in range(2)
    ]
    assert admit.switch_address(job.switch) == TableEntry("switch_address", {"address": 0x0A0000FE}, "local", {})


def test_reply(job: Job) -> None:
    assert reply.group(job) == [MulticastGroup(6, (Replica(1, 0), Replica(2, 1)))]
    assert reply.rewrite(job)[1] == TableEntry(
        "rewrite",
        {"epoch": EPOCH, "worker": 1},
        "to_worker",
        {
            "src_mac": 0x0200000000AA,
            "dst_mac": 0x020000000101,
            "src_ip": 0x0A0000FE,
            "dst_ip": 0x0A000002,
            "dst_port": 4001,
        },
    )


def test_lookup_broadcasts_the_table(job: Job) -> None:
    (entry,) = lookup.lookup(job)
    table = job.spec.table
    assert table is not None
    assert (entry.table, entry.match, entry.action) == ("lookup", {"epoch": EPOCH}, "load_table")
    assert sorted(entry.params) == sorted(f"{kind}{code}" for code in range(0, 16, 2) for kind in "tx")
    for code in range(0, 16, 2):
        assert entry.params[f"t{code}"].to_bytes(256, "big") == bytes([table[code]]) * 256
        difference = table[code] ^ table[code + 1]
        assert entry.params[f"x{code}"].to_bytes(256, "big") == bytes([difference]) * 256


def test_a_job_without_a_table_has_no_lookup(
    make_spec: Callable[..., JobSpec], switch_endpoint: SwitchEndpoint
) -> None:
    job = Job(make_spec(table=None), switch_endpoint, EPOCH, 0, SlotRange(0, 16), group=1, window=16)
    assert lookup.lookup(job) == []


def test_forward() -> None:
    assert forward.l2({"02:00:00:00:01:07": 3}) == [TableEntry("l2", {"dst": 0x020000000107}, "forward", {"port": 3})]
    assert forward.broadcast([1, 2]) == [
        MulticastGroup(65, (Replica(1, 0), Replica(2, 0))),
        TableEntry("l2", {"dst": 0xFFFFFFFFFFFF}, "flood", {"group": 65}),
    ]


def test_the_program_knows_every_entry(job: Job, p4info: P4Info) -> None:
    entities = [
        *admit.jobs(job),
        *admit.workers(job),
        admit.switch_address(job.switch),
        *lookup.lookup(job),
        *reply.rewrite(job),
        *reply.group(job),
        *forward.l2({"02:00:00:00:01:07": 3}),
        *forward.broadcast([1, 2]),
    ]
    for entity in entities:
        assert decode_entity(p4info, encode_entity(p4info, entity)) == entity


def test_the_program_has_room_for_every_job(p4info: P4Info) -> None:
    assert p4info.tables["jobs"].size >= 64
    assert p4info.tables["lookup"].size >= 64
    assert p4info.counters["job_events"].size >= 64 * 8
    assert p4info.counters["drops"].size >= 32


@pytest.mark.parametrize("mac", ["", "02:00:00:00:00", "01:00:00:00:00:01", "00:00:00:00:00:00", "02-00-00-00-00-01"])
def test_addresses_of_no_host_are_refused(mac: str) -> None:
    with pytest.raises(ControlPlaneError, match="MAC address"):
        forward.l2({mac: 1})
