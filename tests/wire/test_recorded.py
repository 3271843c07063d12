# SPDX-License-Identifier: Apache-2.0
"""Messages of earlier versions, P4Runtime's bindings, and the membership's format: what is written is read."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum_base.p4runtime import p4info_pb2, p4runtime_pb2, serialized_file
from hopsum_wire import CODE_GROUPS, MAX_SLOTS, MAX_WORKERS, Op
from hopsum_wire.generations import Decided, Resume
from hopsum_wire.membership import (
    Endpoint,
    JobMembership,
    RankEndpoint,
    format_membership,
    membership_document,
    parse_membership,
)

from .recorded import as_dict, messages, recorded

GONE = {"digits", "conditions", "hosts", "registered", "observers", "table6"}
"""Fields that later versions do not have: their numbers are reserved, and their values are not read."""
GONE_MESSAGES = {
    *("JobCondition", "RegisterSwitchRequest", "RegisterSwitchResponse"),
    *("DeregisterSwitchRequest", "DeregisterSwitchResponse"),
}
"""Messages that only such fields and methods had."""
VERSIONS = sorted((Path(__file__).parent / "data").glob("messages-*.json"))


def sent_by(version: Path) -> dict[str, Any]:
    """Return the recorded messages of a version by name, without what is gone."""

    def present(values: dict[str, Any]) -> dict[str, Any]:
        # Members have leases still, switches have not.
        gone = GONE | ({"lease_left_s"} if "registered" in values else set())
        return {name: value for name, value in values.items() if name not in gone}

    found = json.loads(version.read_text(), object_hook=present)
    return {name: sent for name, sent in found.items() if name not in GONE_MESSAGES}


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.stem)
def test_every_message_of_a_version_is_read(version: Path) -> None:
    kinds = messages()
    for name, sent in sent_by(version).items():
        assert name in kinds, f"{name} of {version.stem} is no message any more"
        read = kinds[name]()
        read.ParseFromString(bytes.fromhex(sent["bytes"]))
        assert as_dict(read) == sent["fields"], f"{name} of {version.stem} is read as something else"


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.stem)
def test_an_earlier_version_finds_what_it_knows(version: Path) -> None:
    """A reader of that version ignores new fields; those that it knows have their numbers and kinds."""
    now = recorded()
    for name, sent in sent_by(version).items():
        known = {field: value for field, value in now[name]["fields"].items() if field in sent["fields"]}
        assert set(known) == set(sent["fields"]), name
        assert bytes.fromhex(sent["bytes"])[:1] == bytes.fromhex(now[name]["bytes"])[:1], name


def test_there_is_a_recording_with_every_message_that_a_version_had() -> None:
    assert VERSIONS
    first = sent_by(VERSIONS[0])
    assert {"JoinRequest", "HeartbeatRequest", "AwaitMembershipResponse", "CreateJobRequest"} <= set(first)
    assert all(sent["bytes"] for name, sent in first.items() if messages()[name].DESCRIPTOR.fields)


REFUSED = """
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

class Refusal(MetaPathFinder):
    # As protobuf 4 and later: the stub's source is there, and executing it raises TypeError.
    armed = True

    def find_spec(self, name, path, target=None):
        if self.armed and name == "p4.v1.p4runtime_pb2":
            self.armed = False
            raise TypeError("Descriptors cannot be created directly.")

sys.meta_path.insert(0, Refusal())
from hopsum_base.p4runtime import p4info_pb2, p4runtime_pb2, p4runtime_pb2_grpc
assert not Refusal.armed or not sys.meta_path[0].armed
assert not hasattr(p4runtime_pb2, "_descriptor"), "the stub itself was executed"
from p4.v1.p4runtime_pb2 import Update
request = p4runtime_pb2.WriteRequest(device_id=3)
request.updates.add(type=Update.INSERT).entity.table_entry.table_id = 7
assert p4runtime_pb2_grpc.p4_dot_v1_dot_p4runtime__pb2 is p4runtime_pb2
assert p4info_pb2.P4Info().tables is not None
sys.stdout.write(request.SerializeToString().hex())
"""


def test_messages_made_from_descriptors_have_the_bytes_of_the_stubs() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    request = p4runtime_pb2.WriteRequest(device_id=3)
    request.updates.add(type=p4runtime_pb2.Update.INSERT).entity.table_entry.table_id = 7
    assert bytes.fromhex(done.stdout) == request.SerializeToString()


@pytest.mark.parametrize("module", [p4info_pb2, p4runtime_pb2])
def test_the_descriptor_in_a_stub_is_the_one_that_protobuf_has(module: object) -> None:
    descriptor = module.DESCRIPTOR  # type: ignore[attr-defined]
    name = descriptor.name.removesuffix(".proto").replace("/", ".") + "_pb2"
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    assert serialized_file(Path(spec.origin).read_text()) == descriptor.serialized_pb


def test_a_source_without_a_descriptor_is_refused() -> None:
    with pytest.raises(ValueError, match="no serialized_pb"):
        serialized_file("DESCRIPTOR = FileDescriptor(name='p4/v1/p4runtime.proto')")


PORTS = st.integers(1, 65535)
ADDRESSES = st.ip_addresses(v=4).map(str)
ENDPOINTS = st.builds(Endpoint, ADDRESSES, PORTS)
POSITIONS = st.integers(0, 1 << 40)


@st.composite
def resumes(draw: st.DrawFn, workers: int, window: int) -> Resume:
    """A continuation as the controller decides it: `decided` is sorted and disjoint, newcomers have a start."""
    base = draw(POSITIONS) * window
    ranks = st.lists(st.integers(0, workers - 1), min_size=1, unique=True).map(tuple)
    marks = sorted(draw(st.lists(POSITIONS.map(lambda at: base + at), unique=True, max_size=6)))
    decided = tuple(Decided(first, end, draw(ranks)) for first, end in zip(marks[::2], marks[1::2], strict=False))
    if draw(st.booleans()):
        start = base + draw(POSITIONS)
        return Resume(base, start, draw(st.integers(1, 100)), draw(POSITIONS), draw(ranks), decided)
    return Resume(base, None, 0, None, (), decided)


def tables(bits: int) -> st.SearchStrategy[tuple[int, ...]]:
    """A table of results that are codes: values, then thresholds."""
    values = st.lists(st.integers(-128, 127), min_size=1 << bits, max_size=1 << bits)
    thresholds = st.lists(st.integers(1, 127), min_size=(1 << bits) - 1, max_size=(1 << bits) - 1)
    return st.tuples(values, thresholds).map(lambda both: (*both[0], *sorted(both[1])))


TABLES = {
    "table": st.tuples(*[st.integers(0, 255)] * 16),
    "table16": st.tuples(*[st.integers(0, 65535)] * 16),
    "table4": tables(4),
    "table3": tables(3),
    "table2": tables(2),
}


@st.composite
def memberships(draw: st.DrawFn) -> JobMembership:
    """Any membership that a control plane can make."""
    count, slots = draw(st.integers(1, 5)), draw(st.integers(1, MAX_SLOTS))
    window = draw(st.integers(1, slots))
    side_ports = draw(st.none() | st.lists(PORTS, min_size=count, max_size=count, unique=True))
    workers = tuple(
        RankEndpoint(
            rank,
            draw(ENDPOINTS),
            draw(ENDPOINTS),
            None if side_ports is None else side_ports[rank],
            None if side_ports is None else draw(st.none() | ADDRESSES),
            draw(st.none() | st.integers(0, MAX_WORKERS - 1)),
        )
        for rank in range(count)
    )
    return JobMembership(
        job=draw(st.text(min_size=1, max_size=8)),
        generation=draw(st.integers(1, (1 << 32) - 1)),
        slots=slots,
        window=window,
        quorum=draw(st.integers(1, count)),
        tables=draw(st.fixed_dictionaries({}, optional=TABLES)),
        switch=draw(ENDPOINTS),
        workers=workers,
        resume=draw(st.none() | resumes(count, window)),
        code_group=draw(st.sampled_from(CODE_GROUPS)),
        ops=draw(st.frozensets(st.sampled_from(list(Op)), min_size=1)),
        side_key=draw(st.none() | st.binary(min_size=32, max_size=32)),
    )


@given(memberships(), st.sampled_from([None, 2]))
def test_workers_read_what_the_control_plane_writes(membership: JobMembership, indent: int | None) -> None:
    text = format_membership(membership, indent=indent)
    assert parse_membership(text) == membership
    assert json.loads(text) == json.loads(json.dumps(membership_document(membership)))


@given(memberships())
def test_what_every_switch_has_is_left_out(membership: JobMembership) -> None:
    document = membership_document(membership)
    assert ("ops" in document) == (membership.ops != frozenset(Op))
    assert ("code_group" in document) == (membership.code_group != 512)
    assert ("side_key" in document) == (membership.side_key is not None)
    assert ("resume" in document) == (membership.resume is not None)
