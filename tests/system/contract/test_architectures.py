# SPDX-License-Identifier: Apache-2.0
"""One contract, two programs: v1model's and Tofino's differ where DIFFERENCES says why, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from hopsum_base.p4runtime import p4info_pb2
from hopsum_controlplane.devices.tofino import OPS
from hopsum_controlplane.p4info import P4Info, read_program
from hopsum_wire import CODE_GROUPS, MAX_SLOTS, Op, _layout, up_bytes
from hopsum_wire._layout import CODES8_BYTES, LANES_BYTES

TREES = "a Tofino switch is a root: trees of switches are the software switches'"
LOSS = "the loss simulator is for networks in software; a chip's ports lose nothing on purpose"
WIDE = "no 16-bit lanes: a register holds four lanes of 8 bits, or one of 32"
REQUANTIZED = (
    "no operation on wide fields, and results are harvested pass by pass: codes of several passes share a byte"
)
HALF_WORDS = "no operation on wide fields: two codes are looked up at a time, exactly, in place of a polynomial"
ONE_TABLE_EACH = "checks side by side in tables that collect, judged by one: a chain of ifs is a chain of stages"
SLOT = "a register is accessed once a packet, by an action that a table picks; the decision table is the same"
HALVES = "registers of 32 bits: bitmaps of 64 workers are two"
PASSES = "a packet takes several passes, and what follows one is a table"
UNIT = "an access to a register is an action of a table that is picked by the operation"

DIFFERENCES = {
    "v1model: table *gress_loss.loss": LOSS,
    "v1model: counter *gress_loss.lost of 512": LOSS,
    "v1model: table tree_peers.*": TREES,
    "v1model: table parent_rewrite.parent_rewrite": TREES,
    "v1model: entry of admit.jobs: leaf_job(*)": TREES,
    "v1model: entry of lookup.lookup: load_table16(*)": WIDE,
    "v1model: entry of lookup.lookup: load_table3(*)": REQUANTIZED,
    "v1model: entry of lookup.lookup: load_table2(*)": REQUANTIZED,
    "v1model: table requantize.requantize": REQUANTIZED,
    "v1model: entry of lookup.lookup: load_table8(c0: 2048, *, c15: 2048)": HALF_WORDS,
    "tna: entry of lookup.lookup: load_table8(table_id: 8)": HALF_WORDS,
    "tna: table lookup_words.word[*].lookup_left": HALF_WORDS,
    "tna: table lookup_words.word[*].lookup_right": HALF_WORDS,
    "v1model: size of lookup.lookup: 320": WIDE,
    "tna: size of lookup.lookup: 64": WIDE,
    "v1model: default of admit.jobs: unknown_generation()": ONE_TABLE_EACH,
    "tna: default of admit.jobs: NoAction()": ONE_TABLE_EACH,
    "v1model: default of admit.workers: unknown_worker()": ONE_TABLE_EACH,
    "tna: default of admit.workers: NoAction()": ONE_TABLE_EACH,
    "tna: table admit.validate_header": ONE_TABLE_EACH,
    "tna: table admit.admission": ONE_TABLE_EACH,
    "v1model: key of slot.decide: *": SLOT,
    "tna: key of slot.decide: *": SLOT,
    "v1model: size of slot.decide: 1024": SLOT,
    "tna: size of slot.decide: 16": SLOT,
    "tna: entry of slot.decide: op_mismatch()": SLOT,
    "tna: entry of slot.decide: report(*)": SLOT,
    "tna: table slot.*": SLOT,
    "v1model: register slot.seen": HALVES,
    "tna: register slot.seen_*": HALVES,
    "v1model: register slot.contributors": HALVES,
    "tna: register slot.contributors_*": HALVES,
    "v1model: register aggregate.values[*]": UNIT,
    "tna: register aggregate.word[*].values": UNIT,
    "tna: table aggregate.word[*].access": UNIT,
    "tna: table loop.loop": PASSES,
    "tna: table ingress_pass.next_pass": PASSES,
    "tna: table egress_pass.next_half": PASSES,
    "tna: table reply.reply_header": PASSES,
}
"""Differences in P4Info, by pattern."""

CONSTANTS = {
    "OP_LOOKUP_ADD16": WIDE,
    "OP_ADD16": WIDE,
    "OP_LOOKUP_ADD_LOOKUP4": REQUANTIZED,
    "OP_LOOKUP_ADD_LOOKUP3": REQUANTIZED,
    "OP_LOOKUP_ADD_LOOKUP2": REQUANTIZED,
    "KIND_PARTIAL": TREES,
    "DROP_BAD_CONTRIBUTORS": TREES,
    "STATE_CLOSED": TREES,
    "EVENT_CLOSED": TREES,
    "EVENT_RESENT": TREES,
    "EVENT_TAKEN": TREES,
    "EVENT_KNOWN": TREES,
    "EVENT_RELAYED": TREES,
    "DROP_SIMULATED": LOSS,
    "DROP_TRUNCATED": "the chip's parser drops what ends before its headers, uncounted; a cut payload goes unnoticed",
    "DROP_BAD_VALUE": "lanes are seen in later passes only, when their packet has been taken: no top bit is refused",
    "EVENT_FAULT": "tags are read and written at once: nothing tells that an overwritten round was collecting",
}
"""Shared constants that v1model's program names and Tofino's does not."""

HEADERS = {
    "arp": "the switch answers no ARP on Tofino: its workers have a static neighbour entry",
    "icmp": "nor echo requests",
    "pass": "what the deciding pass wrote; in front of a frame inside the switch, never on the wire",
}
"""Headers that one program has alone, besides payloads."""


@pytest.fixture(scope="module", params=["tofino", "tofino2"])
def chip(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tna(chip: str) -> P4Info:
    return P4Info.from_text((P4 / "build" / "tna" / f"{chip}.p4info.txtpb").read_text())


def explained(line: str) -> bool:
    return any(fnmatchcase(line, pattern) for pattern in DIFFERENCES)


def test_differences_are_explained(tna: P4Info) -> None:
    found = differences(P4Info.from_text((P4 / "build" / "hopsum.p4info.txtpb").read_text()), tna)
    assert sorted(line for line in found if not explained(line)) == [], "explain them, or make the programs agree"
    stale = [pattern for pattern in DIFFERENCES if not any(fnmatchcase(line, pattern) for line in found)]
    assert stale == [], "these differences are no more"


def test_shared_constants_are_used_by_both() -> None:
    assert constants_used("v1model") - constants_used("tna") == set(CONSTANTS), "explain them, or use them"
    assert constants_used("tna") <= constants_used("v1model")
    shared = own_constants("shared")
    for architecture in ("v1model", "tna"):
        assert not own_constants(architecture) & shared, "shared constants are declared once"


def test_headers_down_to_hopsum_are_the_shared_ones() -> None:
    """Same types under the same names in the same order: payloads follow, and they are each program's own."""
    below = {name: list(headers(name)) for name in ("v1model", "tna")}
    shared = own_layouts("shared")
    common = {name: [each for each in members if each[0] in shared] for name, members in below.items()}
    alone = {name for _, name in common["v1model"]} ^ {name for _, name in common["tna"]}
    assert [each for each in common["v1model"] if each[1] not in alone] == common["tna"]
    payloads = {"codes8", "codes16", "codes3", "codes2", "codes", "lanes"}
    others = {name for members in below.values() for kind, name in members if kind not in shared}
    assert alone | (others - payloads) == set(HEADERS), "explain them, or have them in both"
    for architecture in ("v1model", "tna"):
        assert not own_layouts(architecture) & shared, "shared headers are declared once"
        assert '#include "../shared/headers.p4"' in sources(architecture)


def test_halves_of_passes_make_whole_payloads(chip: str, tna: P4Info) -> None:
    """Two halves a pass, PASSES of them: all codes, all lanes, a row for every copy and pass."""
    program = read_program(tna)
    half, copies = program.code_group, 2 * MAX_SLOTS
    assert half in CODE_GROUPS
    passes, rest = divmod(2 * CODES8_BYTES, 2 * half)
    assert rest == 0
    assert "#define PASSES (512 / CODES_HALF)" in sources("tna")
    assert passes == 512 // half
    rows = {each.size for each in tna.message.registers if each.preamble.name.endswith(".values")}
    words = sum(each.preamble.name.endswith(".values") for each in tna.message.registers)
    assert rows == {copies * passes}
    assert words * 4 * passes == LANES_BYTES
    assert {each.size for each in tna.message.registers if ".slot." in each.preamble.name} == {copies}


def test_payload_sizes_of_admission_are_the_wires() -> None:
    """Payload bytes in the entries of `validate_header`, for each op that the driver declares."""
    entries = re.findall(r"KIND_UPDATE,[^,]+, OP_(\w+), LENGTHS\((\w+)\)\)\s*:\s*update", sources("tna"))
    sizes = {name: getattr(_layout, payload_bytes) for name, payload_bytes in entries}
    wanted = {op.name: up_bytes(op) for op in OPS}
    assert sizes == wanted
    assert {f"OP_{op.name}" for op in set(Op) - set(OPS)} == {name for name in CONSTANTS if name.startswith("OP_")}


ROOT = Path(__file__).resolve().parents[3]
P4 = ROOT / "p4"
_KINDS = p4info_pb2.MatchField.MatchType
_NUMBERED = re.compile(r"(word|lanes|values|sums)\d+")
_SHARED = re.compile(r"\b(?:DROP|EVENT|OP|KIND|FLAG|STATE)_[A-Z0-9_]+\b")
_OWN = re.compile(r"^(?:const\s+[\w<>]+\s+|#define\s+)(\w+)", re.MULTILINE)
_HEADERS = re.compile(r"struct\s+headers_t\s*\{(.*?)\}", re.DOTALL)
_MEMBER = re.compile(r"(\w+)\s+(\w+);")
_LAYOUT = re.compile(r"^\s*(?:header|struct)\s+(\w+)", re.MULTILINE)
_COMMENT = re.compile(r"//.*")


def differences(v1model: P4Info, tna: P4Info) -> set[str]:
    """Return a line for everything that the control plane sees of one program alone, words of many instances once.

    What belongs to a table that one program has alone is not told apart.
    """
    tables = {"v1model": _tables(v1model), "tna": _tables(tna)}
    found: set[str] = set()
    for one, other in (("v1model", "tna"), ("tna", "v1model")):
        for name, lines in tables[one].items():
            found |= {f"{one}: {line}" for line in lines - tables[other][name]} if name in tables[other] else set()
            found |= {f"{one}: table {name}"} if name not in tables[other] else set()
    arrays = {"v1model": _arrays(v1model), "tna": _arrays(tna)}
    found |= {f"v1model: {line}" for line in arrays["v1model"] - arrays["tna"]}
    return found | {f"tna: {line}" for line in arrays["tna"] - arrays["v1model"]}


def _arrays(p4info: P4Info) -> set[str]:
    message = p4info.message
    lines = {f"counter {_name(each.preamble)} of {each.size}" for each in message.counters}
    return lines | {f"register {_name(each.preamble)}" for each in message.registers}


def _tables(p4info: P4Info) -> dict[str, set[str]]:
    tables: dict[str, set[str]] = {}
    for table in p4info.message.tables:
        tables.setdefault(_name(table.preamble), set()).update(_table(p4info, table))
    return tables


def _table(p4info: P4Info, table: p4info_pb2.Table) -> Iterator[str]:
    name = _name(table.preamble)
    yield f"size of {name}: {table.size}"
    for field in table.match_fields:
        yield f"key of {name}: {field.name}, {field.bitwidth} bits, {_KINDS.Name(field.match_type).lower()}"
    for ref in table.action_refs:
        action = p4info.actions.by_id(ref.id)
        params = ", ".join(f"{param.name}: {param.bits}" for param in action.params)
        scope = "default" if ref.scope == p4info_pb2.ActionRef.DEFAULT_ONLY else "entry"
        yield f"{scope} of {name}: {action.name.rpartition('.')[2]}({params})"


def _name(preamble: p4info_pb2.Preamble) -> str:
    """Return the name in its control: ingress or egress shows in what is there, and words are all alike."""
    return _NUMBERED.sub(r"\1*", str(preamble.name).partition(".")[2])


def sources(architecture: str) -> str:
    """Return the program of an architecture, without comments."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((P4 / architecture).glob("*.p4"))]
    return _COMMENT.sub("", "\n".join(texts))


def headers(architecture: str) -> list[tuple[str, str]]:
    """Return (type, name) of the members of struct headers_t in order."""
    (body,) = _HEADERS.findall(sources(architecture))
    return [(kind, name) for kind, name in _MEMBER.findall(body)]


def constants_used(architecture: str) -> set[str]:
    """Return the shared constants of the protocol that a program names."""
    text = sources(architecture)
    return {name for name in _SHARED.findall(text) if name not in _OWN.findall(text)}


def own_layouts(architecture: str) -> set[str]:
    """Return the headers and structs that a program declares itself."""
    return set(_LAYOUT.findall(sources(architecture)))


def own_constants(architecture: str) -> set[str]:
    """Return the constants and macros that a program declares itself."""
    return set(_OWN.findall(sources(architecture)))
