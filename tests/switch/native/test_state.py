# SPDX-License-Identifier: Apache-2.0
"""Lazy regions of machine code, neither cleared nor copied: wide headers and metadata, single packets and replicas."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopsum_switch.native.memory_layout import MemoryLayout
from hopsum_switch.state.copies import PortCopy

from ..core.builder import Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive
from .agreement import Pair

pytestmark = pytest.mark.system
SETTINGS = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
BITS = 600
SIZE = 2 + BITS // 8
RID = field("standard_metadata", "egress_rid")
GROUP = field("standard_metadata", "mcast_grp")
SPEC = field("standard_metadata", "egress_spec")
WIDE = [field(*name) for name in (("h", "w"), ("g", "w"), ("scalars", "p"), ("scalars", "q"))]
NARROW = [field(*name) for name in (("h", "a"), ("g", "a"), ("h", "b"), ("scalars", "m"))]
HEADERS: list[Json] = [{"type": "header", "value": name} for name in ("h", "g")]
CELLS = {"type": "register_array", "value": "wide"}
REPLICAS = [PortCopy(2, 7), PortCopy(3, 0), PortCopy(2, 9)]
EXPOSE = assign(
    field("h", "w"),
    expression("^", expression("^", WIDE[0], WIDE[1]), expression("+", expression("^", WIDE[2], WIDE[3]), RID)),
)


def program() -> ProgramBuilder:
    builder = build(("a", 8), ("b", 8), ("w", BITS))
    for name in ("p", "q"):
        builder.data["header_types"][3]["fields"].append([name, 2048, False])
    arrays = builder.data["register_arrays"]
    arrays.append({**arrays[0], "name": "wide", "id": 1, "bitwidth": 2048})
    return builder


def steps() -> st.SearchStrategy[Json]:
    wide, header = st.sampled_from(WIDE), st.sampled_from(HEADERS)
    value = st.one_of(
        wide,
        st.builds(expression, st.sampled_from("+-^"), wide, wide),
        st.builds(expression, st.just("+"), wide, st.sampled_from([RID, *NARROW])),
    )
    index = st.one_of(st.integers(0, 6).map(hexstr), st.sampled_from(NARROW[:3]))  # there are 4 cells
    return st.one_of(
        st.builds(assign, wide, value),
        st.builds(assign, wide, value),
        st.builds(assign, st.sampled_from(NARROW), st.sampled_from([*NARROW, *WIDE, RID])),
        st.builds(lambda target, at: primitive("register_read", target, CELLS, at), wide, index),
        st.builds(lambda at, new: primitive("register_write", CELLS, at, new), index, value),
        st.builds(primitive, st.sampled_from(["add_header", "remove_header"]), header),
        st.builds(lambda pair: primitive("assign_header", *pair), st.permutations(HEADERS)),
        st.builds(lambda: primitive("truncate", hexstr(40))),
    )


def frames() -> st.SearchStrategy[bytes]:
    low = st.binary(min_size=2, max_size=2).map(lambda two: bytes(byte & 7 for byte in two))
    whole = st.builds(lambda two, rest: two + rest, low, st.binary(min_size=SIZE - 2, max_size=SIZE + 20))
    return st.one_of(whole, whole, whole, st.binary(max_size=SIZE - 1))


@SETTINGS
@given(data=st.data(), group=st.booleans(), sent=st.lists(frames(), min_size=6, max_size=6))
def test_what_was_never_set_is_zero_and_replicas_share_nothing(data: Any, group: bool, sent: list[bytes]) -> None:
    builder = program()
    builder.primitives += data.draw(st.lists(steps(), max_size=5))
    builder.primitives.append(assign(GROUP if group else SPEC, hexstr(1)))
    builder.egress_primitives += data.draw(st.lists(steps(), max_size=5))
    builder.egress_primitives += data.draw(st.sampled_from([[], [EXPOSE]]))
    pair = Pair(builder.load())
    pair.both(lambda engine: engine.multicast.insert(1, REPLICAS))
    for engine in (pair.reference, pair.native):
        for number in range(4):
            engine.registers.write("wide", number, 3**900 << number)
    for frame in sent:
        pair.process(1, frame)
    pair.process_batch([(2, frame) for frame in sent])
    pair.same_state()


def test_wide_parts_are_lazy_and_only_what_egress_changes_is_saved() -> None:
    """The tests above would hold for a layout without any of it."""
    builder = program()
    builder.egress_primitives += [assign(WIDE[2], RID), assign(NARROW[0], RID)]
    builder.primitives.append(assign(WIDE[3], expression("+", WIDE[3], WIDE[2])))
    loaded = builder.load()
    layout, fields = MemoryLayout(loaded), {f.qualified: f for f in loaded.fields}
    regions = {name: layout.region(field) for name, field in fields.items()}
    assert {name for name, region in regions.items() if region} == {
        *(f"{header}.{name}" for header in "gh" for name in "abw"),
        "scalars.p",
        "scalars.q",
    }
    assert regions["h.a"] == regions["h.w"] != regions["g.w"]
    assert layout.changing_regions == [regions["h.a"], regions["scalars.p"]]
    assert len(layout.changing_words) == 5, "length, limit, exited, two flags"


@pytest.mark.parametrize("group", [False, True])
def test_fields_of_an_invalid_header_are_zero_in_replicas(group: bool) -> None:
    builder = program()
    builder.primitives += [primitive("remove_header", HEADERS[0]), assign(GROUP if group else SPEC, hexstr(1))]
    builder.egress_primitives += [primitive("add_header", HEADERS[1]), assign(WIDE[1], WIDE[0])]
    pair = Pair(builder.load())
    pair.both(lambda engine: engine.multicast.insert(1, REPLICAS))
    for output in pair.process(1, b"\xff" * SIZE):
        assert output.frame == bytes(2) + (b"\0" if group else b"\xff") * (SIZE - 2)


@pytest.mark.parametrize("op", ["add_header", "remove_header"])
def test_replicas_get_validity_and_narrow_fields_back(op: str) -> None:
    builder = program()
    builder.primitives.append(assign(GROUP, hexstr(1)))
    if op == "remove_header":
        builder.primitives.append(primitive("add_header", HEADERS[1]))
    builder.egress_primitives += [
        assign(NARROW[0], field("g", "$valid$")),
        primitive(op, HEADERS[1]),
        assign(NARROW[3], expression("+", NARROW[3], hexstr(1))),
        assign(NARROW[2], NARROW[3]),
    ]
    pair = Pair(builder.load())
    pair.both(lambda engine: engine.multicast.insert(1, REPLICAS))
    frame, size = bytes(range(SIZE)), SIZE * (2 if op == "add_header" else 1)
    was_valid = bytes([op == "remove_header"])
    for output in pair.process(1, frame):
        assert output.frame == (was_valid + b"\1" + frame[2:]).ljust(size, b"\0")
