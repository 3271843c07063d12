# SPDX-License-Identifier: Apache-2.0
"""A student's compiled program in the embedded switch, in this process: frames in, frames out, nothing else moves.

There are no sockets, threads or time-outs between a frame and what the program sends for it, so a verdict depends on
neither the speed nor the load of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from hopsum_controlplane.devices.base import PipelineConfig
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_controlplane.entries import DefaultAction, Insert, Modify, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.engine import Engine, Output
from hopsum_switch.server import SwitchServer


class TestbedError(Exception):
    """The program cannot be loaded, or does not have a table that the handout asks for; the text says which."""

    __test__ = False  # not a test class of pytest's


class Testbed:
    """One switch with one program; a context manager that ends it.

    Raises TestbedError: the embedded switch refuses the program.
    """

    __test__ = False

    def __init__(self, program: Path, p4info: Path, *, backend: Backend = Backend.INTERPRETER) -> None:
        self._server = SwitchServer(make_engine=engine_maker(backend))
        self._server.open()
        try:
            self._pipeline = PipelineConfig.load(program, p4info)
            self._device = NativeDevice(self._server.grpc_address)
            self._device.set_pipeline_config(self._pipeline)
        except (ControlPlaneError, OSError) as error:
            self._server.close()
            raise TestbedError(f"the switch does not load {program}: {error}") from error

    def reload(self) -> None:
        """Load the program again: no entries, no groups, registers at 0."""
        self._device.set_pipeline_config(self._pipeline)

    def set_default(self, table: str, action: str, **params: int) -> None:
        """Set what `table` does with a packet that no entry matches."""
        self._require(table)
        self._write(Modify(DefaultAction(table, action, params)))

    def insert(self, table: str, match: Mapping[str, int], action: str, **params: int) -> None:
        """Add an entry with an exact key."""
        self._require(table)
        self._write(Insert(TableEntry(table, match, action, params)))

    def set_group(self, group: int, ports: Sequence[int]) -> None:
        """Make a multicast group of `ports`."""
        self._write(Insert(MulticastGroup(group, tuple(Replica(port, 0) for port in ports))))

    def send(self, port: int, frame: bytes) -> list[Output]:
        """Let `frame` enter at `port`; return what the switch sends for it, in the order of the ports."""
        engine = self._server.dataplane.engine
        assert isinstance(engine, Engine), "a program was pushed"
        return sorted(engine.process(port, frame))

    def __enter__(self) -> Testbed:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the switch."""
        self._device.close()
        self._server.close()

    def _require(self, table: str) -> None:
        if table not in self._device.p4info.tables:
            raise TestbedError(
                f"the compiled program has no table {table}, which the control plane of this level writes. "
                "p4c leaves out tables that are never applied: apply it where the handout says."
            )

    def _write(self, update: Insert | Modify) -> None:
        try:
            self._device.write([update])
        except ControlPlaneError as error:
            raise TestbedError(f"the control plane cannot write {update}: {error}") from error
