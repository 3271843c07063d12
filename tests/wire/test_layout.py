# SPDX-License-Identifier: Apache-2.0
"""The generated layout against its sources and against the compiled program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum_wire import Header, _layout

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"


def load_tool(name: str) -> Any:
    spec = spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["generate_wire", "generate_dissector"])
def test_generated_files_are_fresh(name: str) -> None:
    command = [sys.executable, str(TOOLS / f"{name}.py"), "--check"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("const int<8> X = 1;", "headers.p4:1: outside of the subset"),
        ("const bit<8> X = 256;", "256 does not fit bit<8>"),
        ("const bit<8> X = 1 + 1;", "outside of the subset"),
        ("const bit<8> X = 1;\nconst bit<8> X = 2;", "headers.p4:2: X is declared twice"),
        ("header a_h {\n    bit<8> x;", "the last header is not closed"),
        ("header a_h {\n    bit<8> x;\n    bit<8> x;\n}", "x is declared twice"),
        ("header a_h {\n    varbit<8> x;\n}", "not a header field"),
        ("header a_h {\n    mac_t x;\n}", "unknown type mac_t"),
        ("/* a comment */", "outside of the subset"),
        ("struct s { bit<8> x; }", "outside of the subset"),
        ("#if 1", "outside of the subset"),
    ],
)
def test_generator_refuses_what_it_does_not_know(source: str, message: str) -> None:
    subset = load_tool("p4_subset")
    with pytest.raises(subset.SubsetError, match=message):
        subset.parse(source, "headers.p4", subset.Declarations())


def test_generator_refuses_headers_of_broken_bytes() -> None:
    generator = load_tool("generate_wire")
    declared = generator.Declarations()
    sys.modules["p4_subset"].parse("header a_h {\n    bit<7> x;\n}", "headers.p4", declared)
    with pytest.raises(generator.SubsetError, match="7 bits, which are no whole bytes"):
        generator.render(declared)


def test_the_wire_page_has_the_numbers_of_the_sources() -> None:
    page = (ROOT / "docs" / "wire.md").read_text()
    declared = load_tool("p4_subset").read_shared()
    values = {constant.name: constant.text for constant in declared.constants}
    shown = re.findall(r"^\| `([A-Z]\w+)` \| (\w+) \|", page, re.MULTILINE)
    assert len(shown) > 40
    assert dict(shown) == {name: values[name] for name, _ in shown}
    for prefix in ("KIND_", "FLAG_", "STATE_", "DROP_", "EVENT_"):
        assert {name for name in values if name.startswith(prefix)} <= dict(shown).keys()
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `([a-z]+)` \|", page, re.MULTILINE)
    fields = [(str(field.offset_bits // 8), str(field.bits), field.name) for field in _layout.HOPSUM_FIELDS]
    assert rows == fields


def compiled_headers() -> dict[str, list[tuple[str, int]]]:
    program = json.loads((ROOT / "p4" / "build" / "hopsum.json").read_text())
    return {kind["name"]: [(name, width) for name, width, *_ in kind["fields"]] for kind in program["header_types"]}


@pytest.mark.parametrize("header", sorted(_layout.HEADERS))
def test_layout_is_the_compiled_programs(header: str) -> None:
    declared = [(field.name, field.bits) for field in _layout.HEADERS[header]]
    assert compiled_headers()[header] == declared


def test_offsets_follow_from_widths() -> None:
    for layout in _layout.HEADERS.values():
        offset = 0
        for field in layout:
            assert field.offset_bits == offset
            offset += field.bits


def test_dtype_and_dataclass_have_the_layouts_fields() -> None:
    names = [field.name for field in _layout.HOPSUM_FIELDS]
    assert list(_layout.HOPSUM_DTYPE.names or ()) == names
    assert [field.name for field in fields(Header)] == names
    assert _layout.HOPSUM_DTYPE.itemsize == _layout.HOPSUM_BYTES == 32
    for field in _layout.HOPSUM_FIELDS:
        dtype, offset = (_layout.HOPSUM_DTYPE.fields or {})[field.name][:2]
        assert (dtype.itemsize * 8, offset * 8) == (field.bits, field.offset_bits)
        assert np.dtype(dtype).byteorder in (">", "|")
