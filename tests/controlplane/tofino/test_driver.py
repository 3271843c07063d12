# SPDX-License-Identifier: Apache-2.0
"""The tofino driver against a server that checks every message against the compiled bfrt.json (bf_runtime.py)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane import (
    ControlPlaneError,
    Job,
    JobSpec,
    SwitchController,
    SwitchEndpoint,
    WriteError,
)
from hopsum_controlplane.bfruntime.bfrt_schema import BfrtSchema
from hopsum_controlplane.bfruntime.chip import TOFINO, TOFINO2, TofinoFacts, guaranteed_cells, spread_slot_groups
from hopsum_controlplane.devices.device import Device, ensure_pipeline
from hopsum_controlplane.devices.drivers import check_target, open_device
from hopsum_controlplane.devices.tofino import TofinoDevice, TofinoPipeline, add_port_setup, load_program
from hopsum_controlplane.entries import Delete, Insert, Modify, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.entry_plan import plan
from hopsum_controlplane.errors import NotPrimaryError, SessionLostError
from hopsum_controlplane.job_spec import LeafEndpoint
from hopsum_controlplane.membership_file import job_membership
from hopsum_controlplane.p4info import Table, read_program
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_controlplane.tables import address, forward
from hopsum_controlplane.tables.lookup import half_words
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire import Op

from ..conftest import TABLE2, TABLE3, TABLE4
from .bf_runtime import DEVICE_ID, BfRuntime
from .conftest import FILES, bfrt_of, make_build, of_one_word, p4info_of

pytestmark = pytest.mark.system
TABLE16 = tuple(range(16))
MakeSpec = Callable[..., JobSpec]


@pytest.fixture
def device(chip: BfRuntime, tofino_pipeline: TofinoPipeline) -> Iterator[TofinoDevice]:
    with open_device("tofino", chip.address, DEVICE_ID) as device:
        assert ensure_pipeline(device, tofino_pipeline)
        yield device


@pytest.fixture
def controller(device: TofinoDevice, switch_endpoint: SwitchEndpoint) -> SwitchController:
    return SwitchController(device, switch_endpoint)


def half_word(device: Device, number: int = 0, **match: int) -> TableEntry:
    half = device.program.half_words[number]
    return TableEntry(half.table, {"table_id": 1, "c0": 0, "c1": 0, **match}, half.action, {"lanes": 0x0714})


def test_a_build_is_pushed(chip: BfRuntime, device: TofinoDevice, tofino_pipeline: TofinoPipeline, conf: Path) -> None:
    (config,) = chip.pushed
    assert config.p4_name == f"hopsum-{tofino_pipeline.cookie:016x}"
    assert config.bfruntime_info == (conf.parent / "bfrt.json").read_bytes()
    (profile,) = config.profiles
    assert (profile.profile_name, list(profile.pipe_scope)) == ("pipe", [0, 1, 2, 3])
    assert (profile.context, profile.binary) == (FILES["pipe/context.json"], FILES["pipe/tofino.bin"])
    assert not ensure_pipeline(device, tofino_pipeline)
    program = device.program
    device.close()
    with open_when_free(chip) as again:
        assert again.read_cookie() == tofino_pipeline.cookie
        assert again.program == program


def open_when_free(chip: BfRuntime, **options: Any) -> TofinoDevice:
    """Open the switch as soon as the previous session has ended."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return TofinoDevice(chip.address, DEVICE_ID, **options)
        except SessionLostError:
            assert time.monotonic() < deadline


def chip_entries(chip: BfRuntime, device: TofinoDevice, name: str) -> list[dict[str, Any]]:
    assert chip.tables is not None
    held = chip.tables.entries[chip.tables.named(name)["id"]]
    return [{"pipe": key[0], **device.encoding.decode_fixed_entry(name, entry)} for key, entry in held.items()]


def test_ports_queues_and_loops_are_set_up(chip: BfRuntime, device: TofinoDevice) -> None:
    """A front port with its speed, a loop port in loopback; of each loop port decided packets first, and with room."""
    ports = {each["$DEV_PORT"]: each for each in chip_entries(chip, device, "$PORT")}
    assert {port: each["$SPEED"] for port, each in ports.items()} == {1: "BF_SPEED_100G", 192: "BF_SPEED_100G"}
    assert (ports[1]["$FEC"], ports[1]["$N_LANES"], ports[1]["$PORT_ENABLE"]) == ("BF_FEC_TYP_RS", 4, True)
    assert "$LOOPBACK_MODE" not in ports[1]
    assert ports[192]["$LOOPBACK_MODE"] == "BF_LPBK_MAC_NEAR", "port 68 is in loopback by itself"
    queues = {
        (each["pipe"], each["pg_id"], each["pg_queue"]): each["max_priority"]
        for each in chip_entries(chip, device, "tf1.tm.queue.sched_cfg")
    }
    assert queues == {(0, 17, 0): "HIGH", (0, 17, 1): "LOW", (1, 16, 0): "HIGH", (1, 16, 1): "LOW"}
    rooms = chip_entries(chip, device, "tf1.tm.queue.buffer")
    assert {(each["pipe"], each["pg_queue"]) for each in rooms} == {(0, 0), (1, 0)}
    assert all(not each["tail_drop_enable"] for each in rooms)
    assert {each["guaranteed_cells"] for each in rooms} == {guaranteed_cells(TOFINO, 68)}
    loops = {entry.match["slot_bits"]: entry.params["port"] for entry in device.read_table("loop")}
    assert loops == {number: (68, 192)[number % 2] for number in range(64)}


def test_a_set_up_that_breaks_off_is_made_again(chip: BfRuntime, tofino_pipeline: TofinoPipeline) -> None:
    """The program is there and the entries of `loop` are not: the switch has no cookie."""

    def fail(number: int) -> None:
        raise RuntimeError(f"write {number}")

    with TofinoDevice(chip.address, DEVICE_ID) as device:
        chip.before_writes = fail
        with pytest.raises(ControlPlaneError, match="Write failed"):
            device.set_pipeline_config(tofino_pipeline)
        chip.before_writes = None
        assert device.read_cookie() is None
        assert ensure_pipeline(device, tofino_pipeline)
        assert device.read_cookie() == tofino_pipeline.cookie
        assert len(chip.pushed) == 2


def test_a_loop_port_of_a_pipe_that_is_not_there(chip: BfRuntime, conf: Path) -> None:
    """Many chips have two pipes of four."""
    with TofinoDevice(chip.address, DEVICE_ID) as device:
        with pytest.raises(ControlPlaneError, match=r"loop port 324 is not there; give .*, not of pipe 2"):
            device.set_pipeline_config(add_port_setup(load_program(conf), [1], (68, 324), {}))
        assert device.read_cookie() is None


def test_another_set_up_is_another_cookie(conf: Path, tofino_pipeline: TofinoPipeline) -> None:
    """Slots never move to another pipe under a job."""
    program = load_program(conf)
    others = [add_port_setup(program, [1], loops, speeds) for loops in ((68,), (192, 68)) for speeds in ({}, {1: 100})]
    assert len({each.cookie for each in (*others, tofino_pipeline)}) == 5


@pytest.mark.parametrize(
    ("chip_name", "ports", "share"),
    [
        ("tofino", (), {68: 64}),
        ("tofino", (68, 192, 196, 324, 448, 452), {68: 11, 192: 11, 196: 11, 324: 11, 448: 10, 452: 10}),
        ("tofino2", (6, 128, 256, 384), {6: 5, 128: 20, 256: 20, 384: 19}),
    ],
)
def test_slots_are_spread_by_speed(chip_name: str, ports: tuple[int, ...], share: dict[int, int]) -> None:
    facts = {"tofino": TOFINO, "tofino2": TOFINO2}[chip_name]
    given = spread_slot_groups(facts, ports)
    assert {port: given.count(port) for port in given} == share
    assert set(given[: len(set(given))]) >= {port for port, groups in share.items() if groups > 5}, "in turn"


@pytest.mark.parametrize(
    ("loops", "speeds", "told"),
    [
        ((), {1: 10, 2: 10}, None),
        ((), {1: 100}, "bring up to 100 Gbit/s of contributions, loop ports 68 carry 20: .* 192, 196, 324, 448, 452$"),
        (tuple(TOFINO.loop_gbps), {1: 100}, None),
        (tuple(TOFINO.loop_gbps), {1: 100, 2: 25}, "bring up to 125 .* carry 118: .* there are no more loop ports$"),
    ],
)
def test_more_than_the_loop_ports_carry_is_a_warning(
    conf: Path, caplog: pytest.LogCaptureFixture, loops: tuple[int, ...], speeds: dict[int, int], told: str | None
) -> None:
    add_port_setup(load_program(conf), [1], loops, speeds, "s2")
    warnings = [each.getMessage() for each in caplog.records]
    assert len(warnings) == (told is not None)
    for each in warnings:
        assert re.search(f"^switch 's2': front ports {told}", each)


@pytest.mark.parametrize(("facts", "carried_gbps"), [(TOFINO, 118), (TOFINO2, 433)])
def test_rates_are_those_of_the_page(facts: TofinoFacts, carried_gbps: int) -> None:
    assert facts.passes == 512 // read_program(p4info_of(facts.name)).code_group
    assert round(facts.carried_gbps(tuple(facts.loop_gbps))) == carried_gbps


@pytest.mark.parametrize(
    ("ports", "loops", "speeds", "message"),
    [
        ([1, 196], (), {}, "port 196 is one that the program loops through; workers use front ports of any pipe"),
        ([1], (68, 69), {}, "loop port 69; the program for tofino loops through 68, 192, 196, 324, 448, 452"),
        ([1], (68, 68), {}, "loop ports 68, 68; name each once"),
        ([1], (), {1: 400}, "port 1 with 400 Gbit/s; tofino has 10, 25, 40, 50, 100"),
    ],
)
def test_set_ups_that_cannot_work(
    conf: Path, ports: list[int], loops: tuple[int, ...], speeds: dict[int, int], message: str
) -> None:
    with pytest.raises(ControlPlaneError, match=message):
        add_port_setup(load_program(conf), ports, loops, speeds)


@pytest.mark.parametrize("chip_name", ["tofino", "tofino2"])
def test_the_schema_is_the_p4info(chip_name: str) -> None:
    """Names, numbers, widths and sizes that follow from bfrt.json are those that p4c wrote into the P4Info."""
    made, compiled = BfrtSchema(json.dumps(bfrt_of(chip_name)).encode()).p4info(), p4info_of(chip_name)
    assert {table.id: described(table) for table in made.tables} == {t.id: described(t) for t in compiled.tables}
    known = {action.id: action for action in compiled.actions}
    for action in made.actions:
        if not action.name.endswith("NoAction"):
            assert (action.alias, list(action.params)) == (known[action.id].alias, list(known[action.id].params))
    assert {each.alias: each.size for each in made.counters} == {each.alias: each.size for each in compiled.counters}
    assert read_program(made) == read_program(compiled)


def described(table: Table) -> tuple[object, ...]:
    return table.name, table.alias, table.size, table.entry_actions, list(table.keys)


@pytest.mark.parametrize("chip_name", ["tofino", "tofino2"])
def test_every_table_takes_an_entry(chip: BfRuntime, tmp_path: Path, chip_name: str, make_spec: MakeSpec) -> None:
    """Of the whole program: each table of half-words, those of jobs, the address, forwarding and its group."""
    whole = load_program(make_build(tmp_path, p4info_of(chip_name), chip_name))
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


def job_of(device: TofinoDevice, spec: JobSpec) -> Job:
    return Job.build(spec, ENDPOINT, 77, 5, SlotRange(32, spec.slots), code_group=device.program.code_group)


def installed_entries(device: TofinoDevice) -> dict[tuple[object, ...], object]:
    tables = [*device.program.job_tables, *(half.table for half in device.program.half_words), "switch_address", "l2"]
    found = [entry for table in tables for entry in device.read_table(table)]
    return {entity.key(): entity for entity in [*found, *device.read_groups()]}


def test_a_job_comes_and_goes(
    chip: BfRuntime, device: TofinoDevice, controller: SwitchController, make_spec: MakeSpec
) -> None:
    job = controller.create_job(make_spec())
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
    assert chip.writes == [1, 11, 1024], "half-words go last: packets look up in later passes than the first"


def test_a_controller_takes_over(make_spec: MakeSpec) -> None:
    device = FakeDevice(of_one_word(p4info_of("tofino")))
    controller = SwitchController(device, ENDPOINT)
    job = controller.create_job(make_spec())
    again = SwitchController(device, controller.switch, adopt=[job])
    assert [adoption.lost for adoption in again.adoptions.values()] == [False]
    device.write([Modify(half_word(device, c0=3, c1=4))])
    assert len(device.entities) == 1034
    assert again.audit().clean, "does not look at half-words"
    third = SwitchController(device, controller.switch, adopt=[job])
    assert "1 of 1033 entries changed" in third.adoptions[job.generation].reason, "looks at all once"
    assert list(device.entities) == [address.switch_address(controller.switch).key()]


def test_half_words_of_nobody_are_removed(device: TofinoDevice, switch_endpoint: SwitchEndpoint) -> None:
    device.write([Insert(half_word(device))])
    with pytest.raises(ControlPlaneError, match="1 entries of another controller are installed here"):
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
    chip: BfRuntime, device: TofinoDevice, wrong: dict[str, object], message: str
) -> None:
    chip.writes.clear()
    with pytest.raises(ControlPlaneError, match=message):
        device.write([Insert(half_word(device)), Insert(replace(half_word(device), **wrong))])
    assert chip.writes == []


def test_what_the_switch_refuses(device: TofinoDevice) -> None:
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


def test_a_full_table(device: TofinoDevice) -> None:
    """Room for the lookup tables of two jobs, and no more; the rest of the batch is written all the same."""
    size = device.encoding.p4info.tables[half_word(device).table].size
    keys = [{"table_id": n >> 8, "c0": n >> 4 & 15, "c1": n & 15} for n in range(size + 1)]
    entries = [half_word(device, **key) for key in keys]
    with pytest.raises(WriteError, match=f"1 of {size + 2} updates refused: update {size}") as error:
        device.write([Insert(entry) for entry in [*entries, half_word(device, 3)]])
    assert [failure.code for failure in error.value.failures] == ["RESOURCE_EXHAUSTED"]
    assert device.read_table(device.program.half_words[3].table) == [half_word(device, 3)]
    assert size == 2 * 256


def test_a_batch_is_written_in_parts(chip: BfRuntime, device: TofinoDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TofinoDevice, "write_updates", 100)
    chip.writes.clear()
    entries = [half_word(device, c0=n >> 4, c1=n & 15) for n in range(250)]
    device.write([Insert(entry) for entry in entries])
    assert chip.writes == [100, 100, 50]
    with pytest.raises(WriteError) as error:
        device.write([Delete(entry) for entry in entries[50:]] + [Insert(entries[0])] + [Delete(entries[60])])
    assert [failure.position for failure in error.value.failures] == [200, 201]
    assert len(error.value.may_be_installed()) == 200


def test_a_batch_that_ends_early_may_be_installed(
    chip: BfRuntime, device: TofinoDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch fails at the second part, and says nothing of its updates."""

    def fail(number: int) -> None:
        assert number == 1, "the second part"

    monkeypatch.setattr(TofinoDevice, "write_updates", 10)
    entries = [half_word(device, c1=n) for n in range(16)]
    chip.before_writes = fail
    chip.writes.clear()
    with pytest.raises(WriteError, match="Write of 16 updates ended without an answer") as error:
        device.write([Insert(entry) for entry in entries])
    assert error.value.failures == ()
    assert error.value.may_be_installed() == entries


def why_lost(device: TofinoDevice) -> str:
    """Return why the session ended, as soon as the client has heard of it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            device.read_cookie()
        except SessionLostError as error:
            return error.what
        except ControlPlaneError:
            continue  # the server knows the client no more
    return "not lost"


def test_a_session_that_ends_is_lost(chip: BfRuntime, device: TofinoDevice) -> None:
    """A batch that finds the session over was not sent."""
    entry = half_word(device)
    chip.end_streams()
    assert "the BF Runtime session ended: CANCELLED" in why_lost(device)
    writes = len(chip.writes)
    with pytest.raises(SessionLostError):
        device.write([Insert(entry)])
    assert len(chip.writes) == writes


def test_another_controller_has_the_switch(chip: BfRuntime, device: TofinoDevice) -> None:
    """The client that has the program keeps it while its session lasts, also from its own number."""
    with pytest.raises(NotPrimaryError, match="Client ID 7 trying to bind but Client ID 1 already owns this P4"):
        TofinoDevice(chip.address, DEVICE_ID, owner=7)
    with pytest.raises(SessionLostError, match="client 1 is not taken: INVALID_ARGUMENT"):
        TofinoDevice(chip.address, DEVICE_ID)
    device.write([Insert(half_word(device))])
    device.close()
    with open_when_free(chip, owner=7) as other:
        assert other.read_table(half_word(other).table) == [half_word(other)]


def test_a_foreign_program_is_pushed_over(chip: BfRuntime, tofino_pipeline: TofinoPipeline) -> None:
    """A switch whose software started a program of its own has no cookie."""
    with TofinoDevice(chip.address, DEVICE_ID) as device:
        device.set_pipeline_config(tofino_pipeline)
    assert chip.config is not None
    chip.config.p4_name = "basic_switching"
    with open_when_free(chip) as device:
        assert device.read_cookie() is None
        with pytest.raises(ControlPlaneError, match="runs no program of ours; push one"):
            device.read_table("jobs")
        assert ensure_pipeline(device, tofino_pipeline)


def test_groups(chip: BfRuntime, device: TofinoDevice) -> None:
    """A changed group gets new nodes before the old ones go. Copies of one instance share a node."""
    group = MulticastGroup(5, (Replica(1, 0), Replica(2, 0), Replica(130, 3)))
    device.write([Insert(group)])
    assert device.read_groups() == [group]
    other = MulticastGroup(5, (Replica(2, 0), Replica(7, 1), Replica(8, 2)))
    for each in (other, group, other):
        device.write([Modify(each)])
        assert device.read_groups() == [each]
    assert len(chip_entries(chip, device, "$pre.node")) == 3
    with pytest.raises(WriteError, match="ALREADY_EXISTS"):
        device.write([Insert(group)])
    with pytest.raises(WriteError, match="NOT_FOUND"):
        device.write([Delete(MulticastGroup(6))])
    device.write([Delete(MulticastGroup(5))])
    assert device.read_groups() == chip_entries(chip, device, "$pre.node") == []


def test_counters(chip: BfRuntime, controller: SwitchController, make_spec: MakeSpec) -> None:
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
        ({"table4": TABLE4}, "tofino has no LOOKUP_ADD_LOOKUP4; leave table4 out: take the codec with result_bits=8"),
        ({"table3": TABLE3}, "no LOOKUP_ADD_LOOKUP3; leave table3 out: take the codec with bits=4 and result_bits=8"),
        ({"table2": TABLE2}, "no LOOKUP_ADD_LOOKUP2; leave table2 out: take the codec with bits=4 and result_bits=8"),
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


def test_device_ids(chip: BfRuntime, device: TofinoDevice) -> None:
    with pytest.raises(ControlPlaneError, match="device id -1; the first chip of a switch is 0"):
        check_target("tofino", -1, Path("hopsum.conf"))
    assert device.where == f"switch 0 at {chip.address}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda conf: conf.unlink(), "cannot be read"),
        (lambda conf: conf.write_text("{"), "cannot be read"),
        (lambda conf: conf.write_text("{}"), "describes no program as the compiler writes it: KeyError"),
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
