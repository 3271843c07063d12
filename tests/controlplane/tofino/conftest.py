# SPDX-License-Identifier: Apache-2.0
"""A build of the Tofino program as its compiler and assembler leave it, but for the contents of the binary."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from hopsum_base.p4runtime import p4info_pb2
from hopsum_controlplane.devices.tofino import TofinoPipeline, add_port_setup, load_program
from hopsum_controlplane.p4info import P4Info
from hopsum_controlplane.program import HALF_WORD_KEYS, PAIRS

from .bf_runtime import BfRuntime, bf_runtime

BUILD = Path(__file__).resolve().parents[3] / "p4" / "build" / "tna"
CHIPS = ("tofino", "tofino2")
FILES = {"pipe/context.json": b'{"compiler": "p4c"}', "pipe/tofino.bin": bytes(range(256)) * 9}


@cache
def p4info_of(chip: str) -> P4Info:
    return P4Info.from_text((BUILD / f"{chip}.p4info.txtpb").read_text())


def of_one_word(p4info: P4Info) -> P4Info:
    """Return a P4Info with the lookups of one word in ingress and one in egress, and room for those of two jobs."""
    message = p4info_pb2.P4Info()
    message.CopyFrom(p4info.message)
    kept = [table for table in message.tables if not is_lookup(table) or ".word0." in table.preamble.name]
    del message.tables[:]
    message.tables.extend(kept)
    for table in message.tables:
        if is_lookup(table):
            table.size = 2 * PAIRS
    return P4Info(message)


def is_lookup(table: p4info_pb2.Table) -> bool:
    return [field.name for field in table.match_fields] == list(HALF_WORD_KEYS)


@cache
def bfrt_of(chip: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress((BUILD / f"{chip}.bfrt.json.gz").read_bytes()))
    return loaded


def bfrt_like(chip: str, p4info: P4Info) -> bytes:
    """Return the bfrt.json with the tables of a P4Info, and with their sizes."""
    sizes = {f"pipe.{table.name}": table.size for table in p4info.tables}
    tables = [
        table | {"size": sizes.get(table["name"], table.get("size"))}
        for table in bfrt_of(chip)["tables"]
        if table["table_type"] != "MatchAction_Direct" or table["name"] in sizes
    ]
    return json.dumps({"tables": tables}).encode()


def make_build(folder: Path, p4info: P4Info, chip: str = "tofino") -> Path:
    """Write a build of the program and return its .conf file."""
    for name, content in {**FILES, "bfrt.json": bfrt_like(chip, p4info)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "tofino.p4info.txtpb").write_text(text_format.MessageToString(p4info.message))
    pipeline = {
        "p4_pipeline_name": "pipe",
        "context": "pipe/context.json",
        "config": "pipe/tofino.bin",
        "pipe_scope": [0, 1, 2, 3],
        "path": ".",
    }
    program = {"program-name": "hopsum", "bfrt-config": "bfrt.json", "p4_pipelines": [pipeline]}
    conf = folder / "hopsum.conf"
    conf.write_text(json.dumps({"chip_list": [], "p4_devices": [{"device-id": 0, "p4_programs": [program]}]}))
    return conf


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_build(tmp_path_factory.mktemp("build"), of_one_word(p4info_of("tofino")))


@pytest.fixture(scope="module")
def tofino_pipeline(conf: Path) -> TofinoPipeline:
    return add_port_setup(load_program(conf), [1], (68, 192), {1: 100})


@pytest.fixture
def chip() -> Iterator[BfRuntime]:
    with bf_runtime() as serving:
        yield serving
