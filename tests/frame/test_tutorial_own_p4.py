# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial-own-p4.md as its reader goes through it: every command and file, on addresses that are free here."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopsum_topologies.process import ManagedProcess

from ..support.reader import PATIENCE_S, Reader, await_end, end

pytestmark = [pytest.mark.system, pytest.mark.shell]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial-own-p4.md").read_text()
PORTS = {"9559": socket.SOCK_STREAM, "47501": socket.SOCK_DGRAM, "47502": socket.SOCK_DGRAM}
WORKERS = f"127.{1 + os.getpid() // 250 % 250}.{1 + os.getpid() % 250}."
"""Network of the workers, in place of the page's: of this process alone, because the program fixes their UDP port."""
SUMS, LARGEST = re.findall(r"`(kind 2 chunk 0 sums .*?)`", PAGE)
TAKE, SWITCH, ENTRIES, SEND, LOOK, CHANGE = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


def start(reader: Reader) -> ManagedProcess:
    """Start the switch of the page and write the entries."""
    switch = reader.open_terminal(SWITCH)
    switch.wait_for(lambda: "ready " in switch.log_text(), "the switch", PATIENCE_S)
    assert reader.type(ENTRIES).endswith("entries written\n")
    return switch


def send(reader: Reader) -> str:
    """Send both vectors; return what both ranks print."""
    first, second = SEND.splitlines()
    waiting = reader.open_terminal(first)
    trace = reader.folder / "trace.txt"
    waiting.wait_for(lambda: "packet 1:" in trace.read_text(), "its contribution", PATIENCE_S)
    printed = reader.type(second)
    assert await_end(waiting) == 0, waiting.log_text()
    assert waiting.log_text() == printed
    return printed


def shape(trace: str) -> str:
    """Return lines of a trace without what differs from run to run: the time and the workers' network."""
    return re.sub(r"\d+ us$|ip=0x\w+", "", trace, flags=re.MULTILINE)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    entries, worker = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with ExitStack() as stack:
        reader = Reader(tmp_path, stack, PORTS)
        for name, program in (("entries.py", entries), ("worker.py", worker)):
            program = re.sub(r"\b4750[12]\b", lambda found: reader.here(f":{found[0]}")[1:], program)
            (tmp_path / name).write_text(reader.here(program).replace("127.0.1.", WORKERS))
        reader.type(TAKE)
        yield reader


def test_a_program_of_the_course_adds_and_is_looked_into(reader: Reader) -> None:
    switch = start(reader)
    assert send(reader) == f"{SUMS}\n"
    looked = reader.type(LOOK)
    values = json.loads(looked[: looked.index("\n}\n") + 2])["registers"]["MyIngress.sums"]["values"]
    assert [int(value, 16) for value in values] == [11, 22, 33, 44, 55, 66, 77, 88]
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert shape(looked[looked.index("packet 1") :]) == shape(shown)
    assert end(switch) == 0


@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not installed")
def test_the_changed_program_keeps_the_largest(reader: Reader) -> None:
    reader.type(CHANGE)
    switch = start(reader)
    assert send(reader) == f"{LARGEST}\n"
    assert end(switch) == 0
