# SPDX-License-Identifier: Apache-2.0
"""The declarations of the programs of two architectures, as sets of lines that can be compared.

Read from P4Info: tables with keys, sizes and what their entries may call, counters, registers. Read from the sources:
the headers of a frame in order, and which of the shared constants a program uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hopsum_controlplane.p4info import P4Info
from hopsum_wire.p4runtime import p4info_pb2

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
