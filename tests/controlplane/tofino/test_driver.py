# SPDX-License-Identifier: Apache-2.0
"""The tofino driver against a server that holds and checks the program's P4Info (stratum.py says what it is not)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hopsum_controlplane import (
    ControlPlaneError,
    Job,
    JobSpec,
    SwitchController,
    SwitchEndpoint,
    WorkerEndpoint,
    WriteError,
)
from hopsum_controlplane.devices.base import Device, PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.devices.p4runtime import P4RuntimeDevice
from hopsum_controlplane.devices.tofino import TofinoDevice, load_program
from hopsum_controlplane.entries import Delete, Insert, Modify, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.errors import NotPrimaryError
from hopsum_controlplane.jobs import LeafEndpoint
from hopsum_controlplane.membership import job_membership
from hopsum_controlplane.plan import plan
from hopsum_controlplane.slots import SlotRange
from hopsum_controlplane.tables import address, forward
from hopsum_controlplane.tables.lookup import half_words
from hopsum_controlplane.testing import FakeDevice
from hopsum_wire import Op

from .conftest import FILES, make_build, of_one_word, p4info_of
from .stratum import DEVICE_ID, BfPipelineConfig, Stratum

TABLE16 = tuple(range(16))
MakeSpec = Callable[..., JobSpec]


@pytest.fixture
def device(chip: Stratum, tofino_pipeline: PipelineConfig) -> Iterator[P4RuntimeDevice]:
    with open_device("tofino", chip.address, DEVICE_ID) as device:
        assert ensure_pipeline(device, tofino_pipeline)
        yield device


@pytest.fixture
def controller(device: P4RuntimeDevice, switch_endpoint: SwitchEndpoint) -> SwitchController:
    return SwitchController(device, switch_endpoint)


def half_word(device: Device, number: int = 0, **match: int) -> TableEntry:
    half = device.program.half_words[number]
    return TableEntry(half.table, {"table_id": 1, "c0": 0, "c1": 0, **match}, half.action, {"lanes": 0x0714})


def test_a_build_is_pushed_as_stratum_packs_it(
    chip: Stratum, device: P4RuntimeDevice, tofino_pipeline: PipelineConfig
) -> None:
    (config,) = chip.configs
    assert (config.p4_name, config.bfruntime_info) == ("hopsum", FILES["bfrt.json"])
    (profile,) = config.profiles
    assert (profile.profile_name, list(profile.pipe_scope)) == ("pipe", [0, 1, 2, 300])
    assert (profile.context, profile.binary) == (FILES["pipe/context.json"], FILES["pipe/tofino.bin"])
    assert config.SerializeToString() == tofino_pipeline.device_config, "nothing else, and in the canonical form"
    assert not ensure_pipeline(device, tofino_pipeline)
    with TofinoDevice(chip.address, DEVICE_ID, election_id=(2, 0)) as again:
        assert again.cookie() == tofino_pipeline.cookie
        assert again.program == device.program


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 1 << 21])
def test_lengths_of_any_size(tmp_path: Path, value: int) -> None:
    conf = make_build(tmp_path, p4info_of("tofino"))
    (tmp_path / "pipe/tofino.bin").write_bytes(bytes(value))
    (profile,) = BfPipelineConfig.FromString(load_program(conf).device_config).profiles
    assert profile.binary == bytes(value)


@pytest.mark.parametrize("chip_name", ["tofino", "tofino2"])
def test_every_table_takes_an_entry(chip: Stratum, tmp_path: Path, chip_name: str, make_spec: MakeSpec) -> None:
    """Of the whole program: each table of half-words, those of jobs, the address, forwarding and its group."""
    whole = load_program(make_build(tmp_path, p4info_of(chip_name)))
    with TofinoDevice(chip.address, DEVICE_ID) as device:
        device.set_pipeline_config(whole)
        wants = plan(job_of(device, make_spec()), device.program)
        last = [entity for entity in wants.tables if isinstance(entity, TableEntry) and entity.match["c1"] == 15]
        last = [entity for entity in last if entity.match["c0"] == 15]
        assert len(last) == len(device.program.half_words) == 2 * device.program.code_group // 2
        others = [*forward.l2({"02:00:00:00:01:07": 509}), *forward.broadcast([1, 2])]
        entities = [*last, *wants.support, *wants.admission, address.switch_address(ENDPOINT), *others]
        device.write([Insert(entity) for entity in entities])
        assert installed_entries(device) == {entity.key(): entity for entity in entities}
        device.write([Delete(entity) for entity in entities])
        assert installed_entries(device) == {}


ENDPOINT = SwitchEndpoint("02:00:00:00:00:aa", "10.0.0.254")


def job_of(device: P4RuntimeDevice, spec: JobSpec) -> Job:
    return Job.at(spec, ENDPOINT, 77, 5, SlotRange(32, spec.slots), code_group=device.program.code_group)


def installed_entries(device: P4RuntimeDevice) -> dict[tuple[object, ...], object]:
    tables = [*device.program.job_tables, *(half.table for half in device.program.half_words), "switch_address", "l2"]
    found = [entry for table in tables for entry in device.read_table(table)]
    return {entity.key(): entity for entity in [*found, *device.read_groups()]}


def test_a_job_comes_and_goes(
    chip: Stratum, device: P4RuntimeDevice, controller: SwitchController, make_spec: MakeSpec, observer: WorkerEndpoint
) -> None:
    job = controller.create_job(make_spec(observers=(observer,)))
    expected = [*plan(job, device.program).entities, address.switch_address(controller.switch)]
    assert installed_entries(device) == {entity.key(): entity for entity in expected}
    assert len(half_words(job, device.program)) == 4 * 256
    assert device.read_groups() == [MulticastGroup(1, (Replica(1, 0), Replica(2, 1), Replica(3, 2)))]
    assert (job.code_group, job_membership(job).code_group) == (4, 4)
    assert job_membership(job).ops == {Op.LOOKUP_ADD8, Op.ADD8, Op.ADD32, Op.OR, Op.MAX32}
    assert controller.audit().clean
    chip.writes.clear()
    controller.delete_job(job)
    assert list(installed_entries(device)) == [address.switch_address(controller.switch).key()]
    assert chip.writes == [1, 10, 1024], "half-words go last: packets look up in later passes than the first"


def test_a_controller_takes_over(make_spec: MakeSpec) -> None:
    device = FakeDevice(of_one_word(p4info_of("tofino")))
    controller = SwitchController(device, ENDPOINT)
    job = controller.create_job(make_spec())
    again = SwitchController(device, controller.switch, adopt=[job])
    assert [adoption.status.value for adoption in again.adoptions.values()] == ["running"]
    device.write([Modify(half_word(device, c0=3, c1=4))])
    assert len(device.entities) == 1034
    assert again.audit().clean, "does not look at half-words"
    third = SwitchController(device, controller.switch, adopt=[job])
    assert "1 of 1033 entries changed" in third.adoptions[job.generation].reason, "looks at all once"
    assert list(device.entities) == [address.switch_address(controller.switch).key()]


def test_half_words_of_nobody_are_removed(device: P4RuntimeDevice, switch_endpoint: SwitchEndpoint) -> None:
    device.write([Insert(half_word(device))])
    with pytest.raises(ControlPlaneError, match="1 entries of another controller stand here"):
        SwitchController(device, switch_endpoint)
    SwitchController(device, switch_endpoint, remove_existing=True)
    assert device.read_table(device.program.half_words[0].table) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"match": {"table_id": 256, "c0": 0, "c1": 0}}, r"table_id = 256 does not fit bit<8>"),
        ({"match": {"table_id": 1, "c0": 16, "c1": 0}}, r"c0 = 16 does not fit bit<4>"),
        ({"match": {"table_id": 1, "c0": 1}}, "no value for c1"),
        ({"params": {"lanes": 1 << 16}}, r"lanes = 65536 does not fit bit<16>"),
        ({"action": "admit"}, "no key of|no value for|no parameter"),
        ({"table": "leaves"}, "no table 'leaves'"),
    ],
)
def test_what_the_program_has_not_is_not_sent(
    chip: Stratum, device: P4RuntimeDevice, wrong: dict[str, object], message: str
) -> None:
    chip.writes.clear()
    with pytest.raises(ControlPlaneError, match=message):
        device.write([Insert(half_word(device)), Insert(replace(half_word(device), **wrong))])
    assert chip.writes == []


def test_what_the_switch_refuses(device: P4RuntimeDevice) -> None:
    """A refused update does not keep the others of its batch from being written."""
    admit = TableEntry("jobs", {"generation": 7}, "to_worker", dict.fromkeys(_PARAMS, 1))
    fixed = TableEntry("need", {"flags": 9}, "plain_need")
    batch = [
        Insert(half_word(device)), Insert(half_word(device)), Insert(admit), Insert(fixed),
        Delete(half_word(device, c0=9)), Insert(half_word(device, c1=1)), Modify(MulticastGroup(3)),
    ]  # fmt: skip
    with pytest.raises(WriteError) as error:
        device.write(batch)
    refused = {failure.position: failure.code for failure in error.value.failures}
    assert refused == {1: "ALREADY_EXISTS", 2: "INVALID_ARGUMENT", 3: refused[3], 4: "NOT_FOUND", 6: "NOT_FOUND"}
    assert len(device.read_table(half_word(device).table)) == 2


_PARAMS = ("src_mac", "dst_mac", "src_ip", "dst_ip", "dst_port")


def test_a_full_table(device: P4RuntimeDevice) -> None:
    """Room for the lookup tables of two jobs, and no more; the rest of the batch is written all the same."""
    size = device.p4info.tables[half_word(device).table].size
    keys = [{"table_id": n >> 8, "c0": n >> 4 & 15, "c1": n & 15} for n in range(size + 1)]
    entries = [half_word(device, **key) for key in keys]
    with pytest.raises(WriteError, match=f"1 of {size + 2} updates refused: update {size}") as error:
        device.write([Insert(entry) for entry in [*entries, half_word(device, 3)]])
    assert [failure.code for failure in error.value.failures] == ["RESOURCE_EXHAUSTED"]
    assert device.read_table(device.program.half_words[3].table) == [half_word(device, 3)]
    assert size == 2 * 256


def test_a_batch_is_written_in_parts(chip: Stratum, device: P4RuntimeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TofinoDevice, "write_updates", 100)
    chip.writes.clear()
    entries = [half_word(device, c0=n >> 4, c1=n & 15) for n in range(250)]
    device.write([Insert(entry) for entry in entries])
    assert chip.writes == [100, 100, 50]
    with pytest.raises(WriteError) as error:
        device.write([Delete(entry) for entry in entries[50:]] + [Insert(entries[0])] + [Delete(entries[60])])
    assert [failure.position for failure in error.value.failures] == [200, 201]
    assert len(error.value.may_be_installed()) == 200


def test_a_batch_that_ends_early_may_stand(
    chip: Stratum, device: P4RuntimeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client takes the switch between two parts."""
    monkeypatch.setattr(TofinoDevice, "write_updates", 10)
    entries = [half_word(device, c1=n) for n in range(16)]
    others: list[TofinoDevice] = []
    chip.before_writes = lambda number: (
        others.append(TofinoDevice(chip.address, DEVICE_ID, election_id=(9, 0))) if number == 2 else None
    )
    chip.writes.clear()
    with pytest.raises(WriteError, match="Write of 16 updates ended after 10") as error:
        device.write([Insert(entry) for entry in entries])
    assert error.value.failures == ()
    assert error.value.may_be_installed() == entries
    with pytest.raises(NotPrimaryError), others[0]:
        device.cookie()


def test_another_controller_has_the_switch(chip: Stratum, device: P4RuntimeDevice) -> None:
    with pytest.raises(
        NotPrimaryError, match=r"our election id \(0, 5\) is not the primary's; the highest so far is 1;"
    ):
        TofinoDevice(chip.address, DEVICE_ID, election_id=(0, 5))
    with TofinoDevice(chip.address, DEVICE_ID, election_id=(1, 1)) as other:
        with pytest.raises(NotPrimaryError):
            device.write([Insert(half_word(device))])
        other.write([Insert(half_word(device))])


def test_counters(chip: Stratum, controller: SwitchController, make_spec: MakeSpec) -> None:
    chip.count("HopsumIngress.slot.job_events", 0, 4)
    job = controller.create_job(make_spec(table=None))
    chip.count("HopsumIngress.slot.job_events", 0, 11)
    chip.count("HopsumIngress.slot.job_events", 5, 2)
    chip.count("HopsumIngress.drops", 8, 6)
    events = controller.job_counters(job)
    assert (events["added"], events["fault"], events["completed"]) == (7, 2, 0)
    assert {name: count for name, count in controller.drop_counters().items() if count} == {"unknown_generation": 6}


def test_what_the_program_cannot_is_refused(make_spec: MakeSpec) -> None:
    device = FakeDevice(of_one_word(p4info_of("tofino")), capabilities=TofinoDevice.capabilities)
    controller = SwitchController(device, ENDPOINT)
    leaf = LeafEndpoint(3, 9, "02:00:00:00:03:03", "10.0.3.254", (3,))
    for wrong, message in (
        ({"table16": TABLE16}, "the program of tofino has no LOOKUP_ADD16; leave table16 out"),
        ({"table6": (*range(16),)}, "of tofino has no LOOKUP_ADD6; leave table6 out: take the codec without result_"),
        ({"leaves": (leaf,)}, "the program of tofino knows no trees of switches"),
    ):
        with pytest.raises(ControlPlaneError, match=message):
            controller.create_job(make_spec(**wrong))
    jobs = [controller.create_job(make_spec(f"job{n}")) for n in range(device.program.lookups)]
    controller.create_job(make_spec("plain", table=None))
    writes = len(device.batches)
    with pytest.raises(ControlPlaneError, match="'more': 2 jobs have lookup tables, and the program has room for 2"):
        controller.create_job(make_spec("more"))
    assert len(device.batches) == writes
    controller.delete_job(jobs[1])
    assert controller.create_job(make_spec("more")).job_index == 1


def test_roles_and_ids(chip: Stratum) -> None:
    with pytest.raises(ControlPlaneError, match="device id 0; Stratum's begin at 1"):
        TofinoDevice(chip.address, 0)
    with pytest.raises(ControlPlaneError, match="sdn"):
        TofinoDevice(chip.address, DEVICE_ID, role="sdn")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda conf: conf.unlink(), "cannot be read"),
        (lambda conf: conf.write_text("{"), "cannot be read"),
        (lambda conf: conf.write_text("{}"), "describes no program as bf_pipeline_builder knows it: KeyError"),
        (lambda conf: conf.write_text('{"p4_devices": []}'), "0 programs"),
        (lambda conf: (conf.parent / "pipe/tofino.bin").unlink(), "names a file that cannot be read"),
        (lambda conf: (conf.parent / "tofino.p4info.txtpb").unlink(), "has 0 files"),
        (lambda conf: (conf.parent / "other.p4info.txtpb").touch(), "has 2 files"),
    ],
)
def test_builds_that_are_none(tmp_path: Path, change: Callable[[Path], object], message: str) -> None:
    conf = make_build(tmp_path, p4info_of("tofino"))
    change(conf)
    with pytest.raises(ControlPlaneError, match=f"hopsum.conf: {message}|{message}"):
        load_program(conf)
