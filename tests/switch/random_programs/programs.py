# SPDX-License-Identifier: Apache-2.0
"""Random v1model programs in bmv2's JSON form, small enough to compile in about a second."""

from __future__ import annotations

import random

from ..core.builder import ALIASES, ERRORS, STANDARD_FIELDS, Json
from ..core.builder import field as field_json
from .parsers import OWN_ERROR, random_parser
from .pipelines import Code, PipelineMaker
from .shape import (
    CHECKSUM,
    COPY,
    METADATA,
    PARSED_BITS,
    REPORT,
    SIGNED_METADATA,
    Shape,
    constant,
    is_valid,
    random_shape,
)

ALGORITHMS = ("crc16", "crc32", "crcCCITT", "csum16", "identity", "xor16")
VERIFIED, UPDATED = "verified", "updated"
UNUSED = (
    "enums",
    "extern_instances",
    "field_lists",
    "header_stacks",
    "header_union_stacks",
    "header_union_types",
    "header_unions",
    "learn_lists",
    "meter_arrays",
    "parse_vsets",
)
"""Sections that bmv2 wants even if they are empty."""


def random_program(rng: random.Random, *, guarded: bool) -> tuple[Shape, Json]:
    """Return what a program consists of, and the program; see `Shape`."""
    shape, code = random_shape(rng, guarded=guarded), Code()
    ingress = PipelineMaker(rng, shape, code, egress=False).pipeline(rng.randrange(3, 6))
    egress = PipelineMaker(rng, shape, code, egress=True).pipeline(rng.randrange(1, 3))
    calculations, checksums = _checksums(rng, shape)
    data: Json = {
        "program": "random.p4",
        "__meta__": {"version": [2, 23], "compiler": "random"},
        **_headers(shape),
        "errors": [
            *([name, number] for number, name in enumerate([*ERRORS, "ParserInvalidArgument"])),
            ["Own", OWN_ERROR],
        ],
        "parsers": [random_parser(rng, shape)],
        "deparsers": [{"name": "deparser", "id": 0, "order": [REPORT, "h0", COPY, *shape.parsed[1:]]}],
        "counter_arrays": _counters(shape, code),
        "register_arrays": [
            {"name": array.name, "id": number, "size": array.size, "bitwidth": array.bits}
            for number, array in enumerate(shape.registers)
        ],
        "calculations": calculations + _hashes(rng, shape, len(calculations)),
        "checksums": checksums,
        "actions": code.actions,
        "pipelines": [ingress, egress],
        "field_aliases": [
            [f"{group}.{name}", ["standard_metadata", name]] for group, names in ALIASES.items() for name in names
        ],
    }
    return shape, {**data, **{name: [] for name in UNUSED}}


def _headers(shape: Shape) -> Json:
    metadata = [[name, bits, name in SIGNED_METADATA] for name, bits in (*METADATA, PARSED_BITS)]
    types = [("scalars_t", metadata), ("standard_metadata", STANDARD_FIELDS)]
    types += [(f"{name}_t", [list(f) for f in fields]) for name, fields in shape.headers.items() if name != COPY]
    instances = [("scalars", "scalars_t"), ("standard_metadata", "standard_metadata")]
    instances += [(name, "h0_t" if name == COPY else f"{name}_t") for name in shape.headers]
    return {
        "header_types": [{"name": name, "id": i, "fields": fields} for i, (name, fields) in enumerate(types)],
        "headers": [
            {"name": name, "id": i, "header_type": kind, "metadata": i < 2, "pi_omit": True}
            for i, (name, kind) in enumerate(instances)
        ],
    }


def _counters(shape: Shape, code: Code) -> list[Json]:
    found = [{"name": array.name, "size": array.size, "is_direct": False} for array in shape.counters]
    return [{**counter, "id": number} for number, counter in enumerate([*found, *code.direct_counters])]


def checksum_inputs(shape: Shape) -> list[str]:
    """Return the names of the fields of `h1` that its checksum covers, in order."""
    return [f.name for f in shape.headers["h1"] if f.name != CHECKSUM]


def _checksums(rng: random.Random, shape: Shape) -> tuple[list[Json], list[Json]]:
    """Return calculations and checksums: `h1` is verified, and updated in half of the programs."""
    inputs: list[Json] = [{"type": "field", "value": ["h1", name]} for name in checksum_inputs(shape)]
    update = [*inputs, _constant(rng, 16)]
    if rng.random() < 0.5:
        update.append({"type": "payload", "value": None})
    calculations = [
        {"name": VERIFIED, "id": 0, "algo": "csum16", "input": inputs},
        {"name": UPDATED, "id": 1, "algo": rng.choice(["csum16", "csum16", "crc16", "xor16"]), "input": update},
    ]
    wanted = [VERIFIED] + ([UPDATED] if rng.random() < 0.5 else [])
    checksums = [
        {
            "name": f"checksum_{name}",
            "id": number,
            "target": ["h1", CHECKSUM],
            "type": "generic",
            "calculation": name,
            "verify": name == VERIFIED,
            "update": name == UPDATED,
            "if_cond": is_valid("h1"),
        }
        for number, name in enumerate(wanted)
    ]
    return calculations, checksums


def _constant(rng: random.Random, bits: int) -> Json:
    """Return an input of a calculation, with all of its digits: bmv2 counts them."""
    return {"type": "hexstr", "value": f"{constant(rng, bits):#0{2 + bits // 4}x}", "bitwidth": bits}


def _hashes(rng: random.Random, shape: Shape, first: int) -> list[Json]:
    found = []
    for number, name in enumerate(shape.hashes):
        inputs: list[Json] = []
        if rng.random() < 0.4:
            inputs += [{"type": "field", "value": ["h0", f.name]} for f in shape.headers["h0"]]
        for metadata, _ in rng.sample(METADATA, rng.randrange(1, 4)):
            inputs.append(field_json("scalars", metadata))
        if rng.random() < 0.3:
            inputs.append(_constant(rng, 24))
        found.append({"name": name, "id": first + number, "algo": rng.choice(ALGORITHMS), "input": inputs})
    return found
