# SPDX-License-Identifier: Apache-2.0
"""Intel's model of Tofino 1 for the cases: a driver of a switch that executes what the assembler wrote.

The control plane is the Tofino driver's, with the compiled program's P4Info. The model's harness (hopsum_model) takes
entries, injects frames and tells what leaves. Every case has a process of its own, since registers cannot be cleared
otherwise.

The testbed's ports are in pipe 0 and the loop port is 192, in pipe 1. The default, 68, will not do: the model keeps a
frame that comes back there in a queue that the harness's `wait` does not see.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from hopsum_controlplane.devices.base import PipelineConfig
from hopsum_controlplane.devices.tofino import TofinoDevice
from hopsum_controlplane.entries import CounterValue, DefaultAction, Delete, Modify, MulticastGroup, Update
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.p4info import P4Info
from hopsum_controlplane.program_reader import read_program
from hopsum_controlplane.testing import FakeDevice
from hopsum_model import groups
from hopsum_model.context import constant_entries, find_table, repaired, without_constants
from hopsum_model.errors import ModelError
from hopsum_model.harness import HARNESS, Harness, LeftFrame, find_harness, parse_counters
from hopsum_model.tables import ModelTables
from hopsum_ptf.tna import p4info_of, regroup, run_here, told_cells

ASSEMBLED: Final = "HOPSUM_TOFINO_ASSEMBLED"
"""The environment variable that names the folder with tofino.bin and context.json."""
_FILES: Final = ("tofino.bin", "context.json")
_LOOP_PORT: Final = 192
_LOOP_CONTROL: Final = (0x2000000 + 0x800000 + 0x700000 + 0x3C000 + 0x1000 + 0x18, 0xF << 16 | 1)
"""The register of the loop port's four channels, and its value: channels on, recirculation on."""
_NEVER: Final = {"table_id": 254}
"""A lookup table that no job has. Only lookups are ternary."""
_PIPES: Final = (0, 1)
"""The pipes that frames pass."""


def model_unavailable() -> str | None:
    """Return why the model cannot run here, or nothing if it can."""
    if find_harness() is None:
        return f"{HARNESS} is not on PATH: docs/tofino.md says what it is"
    folder = os.environ.get(ASSEMBLED)
    if not folder:
        return f"{ASSEMBLED} is not set: it names the folder that bfas wrote {' and '.join(_FILES)} to"
    missing = [name for name in _FILES if not (Path(folder) / name).exists()]
    return f"{folder}, which {ASSEMBLED} names, has no {' and no '.join(missing)}" if missing else None


class ModelDevice(FakeDevice):
    """A driver of the model. `assembled` is the folder with what the assembler wrote."""

    def __init__(self, assembled: Path, harness: str) -> None:
        super().__init__(capabilities=TofinoDevice.capabilities)
        self.where = "tofino, Intel's model"
        self.program = read_program(P4Info.from_text(p4info_of("tofino").read_text()))
        self._folder = Path(mkdtemp(prefix="hopsum-model-"))
        self._numbers = itertools.count()
        self._context = repaired(json.loads((assembled / "context.json").read_text()))
        self._program = self._folder / "program"
        self._program.mkdir()
        shutil.copy(assembled / "tofino.bin", self._program)
        (self._program / "context.json").write_text(json.dumps(without_constants(self._context)))
        self._command = (harness, "-l", str(self._program), "-r")
        self._spare = self._start()
        self._boot()

    def set_pipeline_config(self, pipeline: PipelineConfig) -> None:
        """Start from nothing, with a new process."""
        super().set_pipeline_config(pipeline)
        self._harness.close()
        self._boot()

    def write(self, updates: Sequence[Update]) -> None:
        """Apply a batch. The harness gets all of its commands at once: a lookup table has thousands of entries."""
        super().write(updates)
        self._do(self._pending)
        self._pending.clear()

    def exchange(self, port: int, frame: bytes) -> list[LeftFrame]:
        """Take a frame into the idle switch. Return the frames that leave because of it."""
        packed = regroup(frame, self.program.code_group)
        self._do([f"packet {port} {packed.hex()}", "wait"])
        return self._harness.left()

    def read_counter(self, counter: str, start: int = 0, count: int | None = None) -> list[CounterValue]:
        """Read cells of a counter of the program."""
        told = find_table(self._context, counter)
        stop = int(told["size"]) if count is None else start + count
        packets: Counter[int] = Counter()
        for pipe in _PIPES:
            asked = [f"check_counter {pipe}:{told['name']}({index})" for index in range(start, stop)]
            packets.update(parse_counters(self._harness.do(asked)))
        cells = told_cells(counter, packets)
        return [CounterValue(cells.get(index, 0), 0) for index in range(start, stop)]

    def close(self) -> None:
        """End the processes."""
        self._harness.close()
        self._spare.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> Harness:
        """Start a process, and leave it to itself. It loads the program while the case before is under way."""
        return Harness(self._command, Path(mkdtemp(dir=self._folder)))

    def _boot(self) -> None:
        self._harness, self._spare = self._spare, self._start()
        self._harness.ready()
        self._tables = ModelTables(self._context, _NEVER)
        self._groups: dict[int, tuple[tuple[int, int], ...]] = {}
        self._pending: list[str] = []
        loop = find_table(self._context, "loop")["name"]
        self._do([
            self._load(groups.register_block(*_LOOP_CONTROL)),
            f"setdefault {loop} loop_through(port:{_LOOP_PORT:#x})",
            *constant_entries(self._context),
        ])  # fmt: skip

    def _do(self, commands: Sequence[str]) -> None:
        try:
            self._harness.do(commands)
        except ModelError as error:
            raise ControlPlaneError(str(error), where=self.where) from error

    def _load(self, blocks: bytes) -> str:
        """Write blocks to a file. Return the command that loads it."""
        path = self._folder / f"blocks{next(self._numbers)}"
        path.write_bytes(blocks)
        return f"load {path}"

    def _apply(self, update: Update) -> str:
        refused = super()._apply(update)
        if refused:
            return refused
        try:
            self._pending += self._commands(update)
        except ModelError as error:
            raise ControlPlaneError(str(error), where=self.where) from error
        return ""

    def _commands(self, update: Update) -> list[str]:
        """Return the commands for one update."""
        entity, gone = update.entity, isinstance(update, Delete)
        if isinstance(entity, MulticastGroup):
            self._groups[entity.id] = () if gone else entity.replicas
            return [self._load(groups.group_blocks(entity.id, self._groups))]
        if isinstance(entity, DefaultAction):
            values = ", ".join(f"{name}:{value:#x}" for name, value in entity.params.items())
            name = find_table(self._context, entity.table)["name"]
            return [f"setdefault {name} {entity.action}({values})"]
        commands = []
        if gone or isinstance(update, Modify):
            commands += self._tables.delete(entity.table, entity.match)
        if not gone:
            commands += self._tables.add(entity.table, entity.match, entity.action, entity.params)
        return commands


def open_model(_: str) -> ModelDevice:
    """Bring the model of this process up. Raises ControlPlaneError when it cannot run here."""
    reason, harness = model_unavailable(), find_harness()
    if reason is not None or harness is None:
        raise ControlPlaneError(str(reason))
    device = ModelDevice(Path(os.environ[ASSEMBLED]), harness)
    run_here(device)
    return device
