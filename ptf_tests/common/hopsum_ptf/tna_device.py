# SPDX-License-Identifier: Apache-2.0
"""The Tofino program for the cases: a driver, in this process, of a switch that executes the compiler's output.

The control plane is the Tofino driver's: its builders with the program's P4Info. Other differences from the software
switches are translated here: codes travel in the groups of the program, not in those of 512 that cases pack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.devices.tofino import TofinoDevice
from hopsum_controlplane.entries import CounterValue, DefaultAction, Delete, MulticastGroup, Update
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.p4info import P4Info, read_program
from hopsum_controlplane.program import HALF_WORD_CODES, HALF_WORD_KEYS, HalfWord, Program
from hopsum_ptf import frames
from hopsum_ptf.case_places import PORTS
from hopsum_ptf.fake_device import FakeDevice
from hopsum_ptf.tna_skips import SKIPS
from hopsum_tna import dump
from hopsum_tna.dump import TnaError
from hopsum_tna.tna_switch import TOFINO, TOFINO2, SentFrame, Switch, TnaControl, TofinoChip
from hopsum_topologies.ptf.ptf_switches import PtfTarget
from hopsum_wire import HOPSUM_UDP_PORT, Kind, Op
from hopsum_wire._layout import CODES8_BYTES, JOB_EVENTS
from hopsum_wire.payload import unpack_codes

PROGRAMS: Final = Path(__file__).resolve().parents[3] / "p4" / "build" / "tna"
EXECUTED_PORTS: Final = ("--platform-dir", str(Path(__file__).parent), "--platform", "executed_ports")
"""Arguments of ptf for a switch in ptf's own process."""
CHIPS: Final = {"tofino": TOFINO, "tofino2": TOFINO2, "small": TOFINO}
"""The chip of each program. `small` is a build for tests (tools/dump_tna.py)."""


def dump_path(program: str) -> Path:
    """Return the path of a program's checked-in dump of the compiler."""
    return PROGRAMS / f"{program}.ir.json.gz"


def p4info_path(program: str) -> Path:
    """Return the path of a program's checked-in P4Info. `small` has none."""
    return PROGRAMS / f"{program}.p4info.txtpb"


class EngineDevice(FakeDevice):
    """A driver of a switch that executes a program. `name` is one of CHIPS. `loaded` is a changed program."""

    def __init__(self, name: str, loaded: dump.Node | None = None) -> None:
        super().__init__(capabilities=TofinoDevice.capabilities)
        self.where = f"{name}, executed"
        self._loaded = dump.load(dump_path(name)) if loaded is None else loaded
        self._chip: TofinoChip = CHIPS[name]
        # A new switch has empty tables, registers and counters.
        self._boot()
        known = p4info_path(name)
        self.program = read_program(P4Info.from_text(known.read_text())) if known.exists() else _program_of(self.switch)

    def set_pipeline_config(self, pipeline: PipelineConfig) -> None:
        """Empty tables, groups, registers and counters. The executed program stays the one of construction."""
        super().set_pipeline_config(pipeline)
        self._boot()

    def exchange(self, port: int, frame: bytes) -> list[SentFrame]:
        """Send a frame into a port of the idle switch. Return the frames that leave because of it."""
        return self.switch.process(port, regroup(frame, self.program.code_group))

    def read_counter(self, counter: str, start: int = 0, count: int | None = None) -> list[CounterValue]:
        """Return cells of a counter of the executed program, summed over all pipes, packets only."""
        cells = event_cells(counter, self.control.counter(counter))
        size = self.control.counter_size(counter)
        stop = size if count is None else start + count
        return [CounterValue(cells.get(index, 0), 0) for index in range(start, stop)]

    def _boot(self) -> None:
        self.switch = Switch(self._loaded, self._chip)
        self.control = TnaControl(self.switch)

    def _apply(self, update: Update) -> str:
        refused = super()._apply(update)
        if refused:
            return refused
        entity, gone = update.entity, isinstance(update, Delete)
        try:
            if isinstance(entity, MulticastGroup):
                self.control.set_group(entity.id, () if gone else entity.replicas)
            elif isinstance(entity, DefaultAction):
                self.control.set_default(entity.table, entity.action, entity.params)
            elif gone:
                self.control.delete(entity.table, entity.match)
            else:
                self.control.write(entity.table, entity.match, entity.action, entity.params)
        except TnaError as error:
            raise ControlPlaneError(str(error), where=self.where) from error
        return ""


def _program_of(switch: Switch) -> Program:
    """Return the P4Info data for builders, of a program without a checked-in P4Info."""
    # The small program has no P4Info. Its tables are known by their keys and by the one parameter of their actions.
    half_words = [
        HalfWord(name, label)
        for name, table in switch.state.tables.items()
        if {key.name for key in table.keys} == set(HALF_WORD_KEYS)
        for label, action in table.actions.items()
        if [parameter for parameter, _, _ in switch.state.actions[action].params] == ["lanes"]
    ]
    # Half of them are in ingress, half in egress.
    group = HALF_WORD_CODES * len(half_words) // 2
    return Program(half_words=tuple(half_words), lookup_action="load_table8", code_group=group)


def event_cells(counter: str, cells: Mapping[int, int]) -> dict[int, int]:
    """Return the packets of a counter by cell, of `job_events` without each job's last cell, which is no event."""
    # Every packet that has a slot counts in some cell of `job_events`: one that is no event, in the job's last.
    return {index: packets for index, packets in cells.items() if counter != "job_events" or (index + 1) % JOB_EVENTS}


class ProcessSwitch(Protocol):
    """A switch in this process: ptf's ports hand frames over and get those back that leave."""

    def exchange(self, port: int, frame: bytes) -> Sequence[tuple[int, bytes]]:
        """Send a frame into a port of the idle switch. Return (port, frame) for all that leave because of it."""


# ptf loads the platform module by itself and cannot hand it an object, so the switch waits here.
_running: list[ProcessSwitch] = []


def open_executed(path: str) -> EngineDevice:
    """Make a switch that executes a program, make it the one of this process (`process_switch`), and return its driver.

    The name of the program is that of the dump at `path`, up to the first dot.
    """
    device = EngineDevice(Path(path).name.partition(".")[0])
    set_process_switch(device)
    return device


@contextmanager
def tna_target() -> Iterator[PtfTarget]:
    """Yield the compiled program of Tofino 1 as ptf's target. The switch comes up in ptf's process, not here."""
    yield in_process_target("tna", str(dump_path("tofino")), SKIPS)


def in_process_target(name: str, address: str, skips: Mapping[str, str]) -> PtfTarget:
    """Return a target whose switch comes up in ptf's process, or in a child of that process."""
    ports = {port: f"executed{port}" for port in PORTS}
    return PtfTarget(name, address, 0, ports, platform_arguments=EXECUTED_PORTS, skips=skips)


def set_process_switch(switch: ProcessSwitch) -> None:
    """Set the switch that `process_switch` returns in this process, in place of an earlier one."""
    _running[:] = [switch]


def process_switch() -> ProcessSwitch:
    """Return the switch of this process. Raises IndexError before `set_process_switch`."""
    return _running[0]


def regroup(frame: bytes, group: int) -> bytes:
    """Return a frame whose codes, if it is an UPDATE of LOOKUP_ADD8 in groups of 512, are in groups of `group`.

    Any other frame is returned as it is.
    """
    at = frames.PAYLOAD_AT
    # Without an admitted shape a frame is left as it is: the switch itself must refuse it.
    if len(frame) < at + CODES8_BYTES or frame[36:38] != HOPSUM_UDP_PORT.to_bytes(2, "big"):
        return frame
    header = frames.hopsum_header(frame)
    if (header.kind, header.op, header.length) != (Kind.UPDATE, Op.LOOKUP_ADD8, CODES8_BYTES):
        return frame
    # Codes of two halves of a group share a byte: the first half has the upper four bits.
    codes = unpack_codes(np.frombuffer(frame, np.uint8)[at : at + CODES8_BYTES]).reshape(-1, 2, group // 2)
    regrouped = bytes((codes[:, 0] << 4 | codes[:, 1]).astype(np.uint8).tobytes())
    return frame[:at] + regrouped + frame[at + CODES8_BYTES :]
