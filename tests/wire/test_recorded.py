# SPDX-License-Identifier: Apache-2.0
"""Messages that earlier versions sent are read as they were meant: hosts and controllers need not be of one version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .recorded import as_dict, messages, recorded

GONE = {"CreateJobRequest": {"digits"}}
"""Fields that later versions do not have: their numbers are reserved, and their values are not read."""
VERSIONS = sorted((Path(__file__).parent / "data").glob("messages-*.json"))


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.stem)
def test_every_message_of_a_version_is_read(version: Path) -> None:
    kinds = messages()
    for name, sent in json.loads(version.read_text()).items():
        assert name in kinds, f"{name} of {version.stem} is no message any more"
        read = kinds[name]()
        read.ParseFromString(bytes.fromhex(sent["bytes"]))
        kept = {field: value for field, value in sent["fields"].items() if field not in GONE.get(name, ())}
        assert as_dict(read) == kept, f"{name} of {version.stem} is read as something else"


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.stem)
def test_an_earlier_version_finds_what_it_knows(version: Path) -> None:
    """A reader of that version ignores new fields; those that it knows have their numbers and kinds."""
    now = recorded()
    for name, sent in json.loads(version.read_text()).items():
        known = {field: value for field, value in now[name]["fields"].items() if field in sent["fields"]}
        assert set(known) == set(sent["fields"]) - GONE.get(name, set()), name
        assert bytes.fromhex(sent["bytes"])[:1] == bytes.fromhex(now[name]["bytes"])[:1], name


def test_there_is_a_recording_with_every_message_that_a_version_had() -> None:
    assert VERSIONS
    first = json.loads(VERSIONS[0].read_text())
    assert {"JoinRequest", "HeartbeatRequest", "AwaitMembershipResponse", "CreateJobRequest"} <= set(first)
    assert all(sent["bytes"] for name, sent in first.items() if messages()[name].DESCRIPTOR.fields)
