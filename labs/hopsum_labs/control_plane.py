# SPDX-License-Identifier: Apache-2.0
"""The control plane of the course: entries and groups of a student's program, on a switch of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.devices.p4runtime_device import P4RuntimeDevice
from hopsum_controlplane.entries import DefaultAction, Insert, Modify, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.errors import ControlPlaneError


class ProgramError(Exception):
    """The program cannot be loaded, or lacks a table that the handout asks for. The text names the table."""


class ControlPlane:
    """The entries and groups of a handout, on a switch that runs the program. Construction loads the program.

    Raises ProgramError: the program's files cannot be read, or the switch refuses it.
    """

    def __init__(self, device: P4RuntimeDevice, program: Path, p4info: Path) -> None:
        self._device, self._program = device, program
        try:
            # Read once: `reload` pushes the same program for each case.
            self._pipeline = PipelineConfig.load(program, p4info)
        except ControlPlaneError as error:
            raise ProgramError(str(error)) from error
        self.reload()

    def reload(self) -> None:
        """Load the program again: no entries, no groups, registers at 0. Raises ProgramError."""
        try:
            self._device.set_pipeline_config(self._pipeline)
        except ControlPlaneError as error:
            raise ProgramError(f"the switch does not load {self._program}: {error}") from error

    def set_default(self, table: str, action: str, **params: int) -> None:
        """Set the default action of `table`. Raises ProgramError: there is no such table, or the write failed."""
        self._require(table)
        self._write(Modify(DefaultAction(table, action, params)))

    def insert(self, table: str, match: Mapping[str, int], action: str, **params: int) -> None:
        """Add an entry with an exact key to a table on the switch.

        `match` has values by key name. If the table has one key, the name in `match` is ignored, because p4c names the
        key after the program's parameters.

        Raises:
            ProgramError: the program has no such table, or the write failed.
        """
        self._require(table)
        keys = [key.name for key in self._device.p4info.tables[table].keys]
        if len(keys) == len(match) == 1:
            match = dict(zip(keys, match.values(), strict=True))
        self._write(Insert(TableEntry(table, match, action, params)))

    def set_group(self, group: int, ports: Sequence[int]) -> None:
        """Make a multicast group of `ports`. Raises ProgramError when the write failed, as for a group that exists."""
        self._write(Insert(MulticastGroup(group, tuple(Replica(port, 0) for port in ports))))

    def _require(self, table: str) -> None:
        # Checked here, for words that tell a student why a compiled program may lack a table.
        if table not in self._device.p4info.tables:
            raise ProgramError(
                f"the compiled program has no table {table}, which the control plane of this level writes. "
                "p4c leaves out tables that are never applied: apply it where the handout says."
            )

    def _write(self, update: Insert | Modify) -> None:
        try:
            self._device.write([update])
        except ControlPlaneError as error:
            raise ProgramError(f"the control plane cannot write {update}: {error}") from error
