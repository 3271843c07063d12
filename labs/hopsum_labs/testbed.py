# SPDX-License-Identifier: Apache-2.0
"""A student's compiled program in the embedded switch, in this process: frames in, frames out, nothing else moves.

There are no sockets, threads or time-outs between a frame and what the program sends for it, so a verdict depends on
neither the speed nor the load of the machine.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from hopsum_controlplane.devices.native import NativeDevice
from hopsum_labs.control_plane import ControlPlane
from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.engine import Engine, Output
from hopsum_switch.server import SwitchServer


class Testbed(ControlPlane):
    """One switch with one program; a context manager that ends it.

    Raises ProgramError: the embedded switch refuses the program.
    """

    __test__ = False  # not a test class of pytest's

    def __init__(self, program: Path, p4info: Path, *, backend: Backend = Backend.INTERPRETER) -> None:
        with ExitStack() as stack:
            self._server = SwitchServer(make_engine=engine_maker(backend))
            self._server.open()  # and no thread that moves frames: `send` does
            stack.callback(self._server.close)
            device = stack.enter_context(NativeDevice(self._server.grpc_address))
            super().__init__(device, program, p4info)
            self._stack = stack.pop_all()

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
        self._stack.close()
