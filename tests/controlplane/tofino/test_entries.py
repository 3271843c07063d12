# SPDX-License-Identifier: Apache-2.0
"""The builders on the Tofino program: golden entries of BF Runtime, and what a lookup table costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from hopsum_base.p4runtime import p4info_pb2
from hopsum_controlplane import ControlPlaneError, Job, JobSpec, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.bfruntime.bfrt_encoding import BfrtEncoding, make_update
from hopsum_controlplane.bfruntime.bfrt_messages import UpdateType, new_message
from hopsum_controlplane.bfruntime.bfrt_schema import BfrtSchema
from hopsum_controlplane.entries import Entity, MulticastGroup, TableEntry
from hopsum_controlplane.entry_plan import decides_sums, plan
from hopsum_controlplane.p4info import P4Info, read_program
from hopsum_controlplane.program import HALF_WORD_KEYS, V1MODEL, Program
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_controlplane.tables import address, forward, lookup

from .bf_runtime import CHIP_TABLES
from .conftest import CHIPS, bfrt_of, of_one_word, p4info_of

TABLE = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 20)
WORKERS = tuple(
    WorkerEndpoint(rank, 128 + 4 * rank, f"02:00:00:00:01:{rank:02x}", f"10.0.0.{rank + 1}", 4000 + rank)
    for rank in range(2)
)
JOB = Job.build(
    JobSpec("job", WORKERS, 16, {"table": TABLE}, quorum=2),
    SwitchEndpoint("02:00:00:00:00:aa", "10.0.0.254"),
    0x66554433,
    5,
    SlotRange(32, 16),
)


def shown(program: Program) -> list[Entity]:
    """Return all but half-words, and of those codes 3 and 15 in the first table of ingress and the second of egress."""
    wants = plan(JOB, program)
    half_words = [entry for entry in wants.tables if isinstance(entry, TableEntry)]
    pair = [entry for entry in half_words if (entry.match["c0"], entry.match["c1"]) == (3, 15)]
    others = [*forward.l2({"02:00:00:00:01:07": 508}), *forward.broadcast([128, 132])]
    egress = next(entry for entry in pair if entry.table.startswith("HopsumEgress.lookup_words.word0.lookup_right"))
    return [pair[0], egress, *wants.support, *wants.admission, address.switch_address(JOB.switch), *others]


def encoding_of(chip: str) -> BfrtEncoding:
    return BfrtEncoding(BfrtSchema(json.dumps(bfrt_of(chip)).encode(), json.dumps({"tables": CHIP_TABLES}).encode()))


def inserted(encoding: BfrtEncoding, entity: Entity) -> list[Any]:
    if not isinstance(entity, MulticastGroup):
        return [encoding.encode_update(UpdateType.INSERT, entity)]
    nodes = encoding.plan_nodes(entity)
    entries = [
        *(encoding.encode_node(number, *node) for number, node in nodes.items()),
        encoding.encode_group(entity.id, [*nodes]),
    ]
    return [make_update(UpdateType.INSERT, entry) for entry in entries]


@pytest.mark.parametrize("chip", CHIPS)
def test_entries_on_the_wire(chip: str) -> None:
    """Some lookups are ternary, and have a mask and a priority."""
    encoding = encoding_of(chip)
    request = new_message("WriteRequest")
    for entity in shown(read_program(encoding.p4info)):
        request.updates.extend(inserted(encoding, entity))
    golden = text_format.Parse(
        Path(__file__).with_name(f"entries.{chip}.txtpb").read_text(), new_message("WriteRequest")
    )
    assert text_format.MessageToString(request) == text_format.MessageToString(golden)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_lookup_table_costs(chip: str) -> None:
    """256 entries for each table of half-words; a batch of them is a megabyte or two."""
    encoding = encoding_of(chip)
    program = read_program(encoding.p4info)
    wants = plan(JOB, program)
    assert len(wants.tables) == 256 * len(program.half_words)
    assert len(program.half_words) == program.code_group
    sizes = [len(inserted(encoding, entity)[0].SerializeToString()) for entity in wants.tables[::37]]
    assert 55 <= sum(sizes) / len(sizes) <= 66
    assert all(decides_sums(entity) for entity in wants.tables)


def test_half_words_are_the_table_of_the_job() -> None:
    program = read_program(of_one_word(p4info_of("tofino")))
    entries = lookup.half_words(JOB, program)
    assert len({entry.key() for entry in entries}) == len(entries) == 4 * 256
    for entry in entries:
        assert tuple(entry.match) == HALF_WORD_KEYS
        number, c0, c1 = entry.match.values()
        assert number == JOB.job_index + 1
        assert divmod(entry.params["lanes"], 256) == (TABLE[c0], TABLE[c1])
    assert lookup.half_words(JOB, V1MODEL) == []


def test_software_switches_are_written_as_before() -> None:
    assert plan(JOB, V1MODEL) == plan(JOB)
    assert plan(JOB).steps == (plan(JOB).support, plan(JOB).admission)
    assert read_program(P4Info(p4info_pb2.P4Info())).job_tables == ("jobs", "workers", "lookup", "rewrite")
    assert not read_program(p4info_of("tofino")).supports_trees


def test_programs_with_halves_that_do_not_fit() -> None:
    message = p4info_pb2.P4Info()
    message.CopyFrom(of_one_word(p4info_of("tofino")).message)
    egress = [
        table for table in message.tables if table.preamble.name.endswith("Egress.lookup_words.word0.lookup_left")
    ]
    message.tables.remove(egress[0])
    with pytest.raises(ControlPlaneError, match="looks up 4 in HopsumIngress, 2 in HopsumEgress codes a pass"):
        read_program(P4Info(message))
    message.CopyFrom(of_one_word(p4info_of("tofino")).message)
    words = next(table for table in message.tables if table.preamble.name.endswith("word0.lookup_left"))
    words.action_refs.add(id=message.actions[0].preamble.id)
    with pytest.raises(ControlPlaneError, match="has entries with 2 actions, not with one"):
        read_program(P4Info(message))
