# SPDX-License-Identifier: Apache-2.0
"""Intel's model of Tofino 1 and 2 for the cases: a driver of a switch that executes what the assembler wrote.

The control plane is the Tofino driver's, with the compiled program's P4Info. The model's harness (hopsum_model) takes
entries, injects frames and tells what leaves. Every case has a process of its own, since registers cannot be cleared
otherwise.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.devices.tofino import TofinoDevice
from hopsum_controlplane.entries import CounterValue, DefaultAction, Delete, Modify, MulticastGroup, Update
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.p4info import P4Info, read_program
from hopsum_model import groups
from hopsum_model.chip_context import constant_entries, find_table, repair_context, without_constants
from hopsum_model.chips import MODEL_CHIPS, ModelChip, ModelError
from hopsum_model.harness import Harness, LeftFrame, parse_counters
from hopsum_model.model_tables import ModelTables
from hopsum_ptf.fake_device import FakeDevice
from hopsum_ptf.tna_device import event_cells, in_process_target, p4info_path, regroup, set_process_switch
from hopsum_ptf.tna_skips import SKIPS
from hopsum_topologies import TopologyError
from hopsum_topologies.ptf.ptf_switches import PtfTarget

# A lookup table that no job has. Only lookups are ternary.
_NEVER: Final = {"table_id": 254}
# Frames enter pipe 0, and the loop port is in pipe 1: a counter is the sum over both.
_PIPES: Final = (0, 1)
_FILLED = "the model fills a frame that ends inside a header, where the document of TNA says that the parser drops it"
_ON_BOTH = dict.fromkeys(("malformed.TruncatedHeader", "probing.RefusedQuestions"), _FILLED)
OF_THE_MODEL: Final = {"tofino_model": {**_ON_BOTH, "forwarding.KnownAddress": _FILLED}, "tofino2_model": _ON_BOTH}
"""Reasons by target and case, in addition to those of the program, which are tna's."""


def model_unavailable(chip: ModelChip) -> str | None:
    """Return the reason why the model of a chip cannot run on this machine, or None if it can."""
    if shutil.which(chip.harness) is None:
        return f"{chip.harness} is not on PATH: docs/tofino.md says what it is"
    files, folder = (chip.binary, "context.json"), os.environ.get(chip.assembled)
    if not folder:
        return f"{chip.assembled} is not set: it names the folder that bfas wrote {' and '.join(files)} to"
    missing = [name for name in files if not (Path(folder) / name).exists()]
    return f"{folder}, which {chip.assembled} names, has no {' and no '.join(missing)}" if missing else None


class ModelDevice(FakeDevice):
    """A driver of the model of a chip. Construction starts processes, `close` ends them.

    assembled: the folder of the assembler's files. harness: the path of the harness's program.
    """

    def __init__(self, chip: ModelChip, assembled: Path, harness: str) -> None:
        super().__init__(capabilities=TofinoDevice.capabilities)
        self.where = f"{chip.name}, Intel's model"
        self.program = read_program(P4Info.from_text(p4info_path(chip.name).read_text()))
        self._chip = chip
        self._folder = Path(mkdtemp(prefix="hopsum-model-"))
        self._numbers = itertools.count()
        self._context = repair_context(json.loads((assembled / "context.json").read_text()))
        self._program = self._folder / "program"
        self._program.mkdir()
        shutil.copy(assembled / chip.binary, self._program)
        (self._program / "context.json").write_text(json.dumps(without_constants(self._context)))
        self._command = (harness, "-l", str(self._program), "-r")
        self._spare = self._start()
        self._boot()

    def set_pipeline_config(self, pipeline: PipelineConfig) -> None:
        """Replace the model by a new process with empty tables and registers. `pipeline` is not loaded into it."""
        super().set_pipeline_config(pipeline)
        # Registers cannot be cleared otherwise. The next process is ready already.
        self._harness.close()
        self._boot()

    def write(self, updates: Sequence[Update]) -> None:
        """Apply a batch. The harness gets all of its commands at once: a lookup table has thousands of entries."""
        super().write(updates)
        self._do(self._pending)
        self._pending.clear()

    def exchange(self, port: int, frame: bytes) -> list[LeftFrame]:
        """Send a frame into a port of the idle switch. Return the frames that leave because of it."""
        packed = regroup(frame, self.program.code_group)
        self._do([f"packet {port + self._chip.first_port} {packed.hex()}", "wait"])
        # A frame on the loop port comes back into ingress: it has not left the chip.
        left = [each for each in self._harness.drain_frames() if each.port != self._chip.loop_port]
        return [LeftFrame(each.port - self._chip.first_port, each.frame) for each in left]

    def read_counter(self, counter: str, start: int = 0, count: int | None = None) -> list[CounterValue]:
        """Return cells of a counter of the model, summed over the pipes in use, packets only."""
        told = find_table(self._context, counter)
        stop = int(told["size"]) if count is None else start + count
        packets: Counter[int] = Counter()
        for pipe in _PIPES:
            asked = [f"check_counter {pipe}:{told['name']}({index})" for index in range(start, stop)]
            packets.update(parse_counters(self._harness.run_checked(asked)))
        cells = event_cells(counter, packets)
        return [CounterValue(cells.get(index, 0), 0) for index in range(start, stop)]

    def close(self) -> None:
        """End both processes and remove their files."""
        self._harness.close()
        self._spare.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> Harness:
        """Start a process, and leave it to itself. It loads the program while the case before is under way."""
        return Harness(self._command, Path(mkdtemp(dir=self._folder)))

    def _boot(self) -> None:
        self._harness, self._spare = self._spare, self._start()
        self._harness.wait_until_ready()
        self._tables = ModelTables(self._context, _NEVER)
        self._groups: dict[int, tuple[tuple[int, int], ...]] = {}
        self._pending: list[str] = []
        loop, port, control = find_table(self._context, "loop")["name"], self._chip.loop_port, self._chip.loop_control
        self._do([
            f"wire {port} -> {port}" if control is None else self._load(groups.register_block(*control)),
            f"setdefault {loop} loop_through(port:{port:#x})",
            *constant_entries(self._context),
        ])  # fmt: skip

    def _do(self, commands: Sequence[str]) -> None:
        try:
            self._harness.run_checked(commands)
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
            first = self._chip.first_port
            self._groups[entity.id] = () if gone else tuple((port + first, rid) for port, rid in entity.replicas)
            return [self._load(groups.group_blocks(self._chip, entity.id, self._groups))]
        if isinstance(entity, DefaultAction):
            values = ", ".join(f"{name}:{value:#x}" for name, value in entity.params.items())
            name = find_table(self._context, entity.table)["name"]
            return [f"setdefault {name} {entity.action}({values})"]
        commands = []
        if gone or isinstance(update, Modify):
            commands += self._tables.delete(entity.table, entity.match)
        if not gone:
            commands += self._tables.add(entity.table, entity.match, entity.action, self._on_chip(entity.params))
        return commands

    def _on_chip(self, params: Mapping[str, int]) -> dict[str, int]:
        """Return an action's parameters with the chip's port in place of the testbed's."""
        # The first ports of Tofino 2 are no front ports, so the testbed's port 0 is another one on the chip.
        if "port" not in params:
            return dict(params)
        return {**params, "port": params["port"] + self._chip.first_port}


def open_model(chip: ModelChip) -> ModelDevice:
    """Start the model of a chip, make it the switch of this process (`process_switch`), and return its driver.

    Raises ControlPlaneError when it cannot run here.
    """
    reason, harness = model_unavailable(chip), shutil.which(chip.harness)
    if reason is not None or harness is None:
        raise ControlPlaneError(str(reason))
    device = ModelDevice(chip, Path(os.environ[chip.assembled]), harness)
    set_process_switch(device)
    return device


@contextmanager
def model_target(name: str) -> Iterator[PtfTarget]:
    """Yield a target whose model ptf's process starts as its child. Raises TopologyError when it cannot run here."""
    reason = model_unavailable(MODEL_CHIPS[name])
    if reason is not None:
        raise TopologyError(reason)
    yield in_process_target(name, "", {**SKIPS, **OF_THE_MODEL[name]})
