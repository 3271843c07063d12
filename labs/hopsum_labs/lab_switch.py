# SPDX-License-Identifier: Apache-2.0
"""A student's compiled program in a switch that takes one frame at a time and returns the frames that leave.

No time-out decides that a switch has sent all frames, so a verdict depends on neither the speed nor
the load of the machine. The embedded switch runs in this process. bmv2 ends its packet stream when it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from scapy.layers.l2 import Ether

from hopsum_controlplane.devices.bmv2 import Bmv2Device
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_controlplane.devices.p4runtime_device import P4RuntimeDevice
from hopsum_labs.control_plane import ControlPlane
from hopsum_labs.packets import summary
from hopsum_labs.rule_checks import Failed, LabError
from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.engine import Engine, Output
from hopsum_switch.program.ir import INDEX_OUT_OF_RANGE
from hopsum_switch.server import SwitchServer
from hopsum_topologies.bmv2_process import Bmv2Switch
from hopsum_topologies.bmv2_stream import PacketStream, PacketStreamError
from hopsum_topologies.errors import TopologyError

SendFrame = Callable[[int, bytes], list[Output]]
StartSwitch = Callable[[ExitStack], tuple[P4RuntimeDevice, SendFrame]]
"""A function that starts a switch, which the stack ends. It returns the switch's P4Runtime side and a function. This
function sends a frame into a port and returns the frames that leave in answer."""
DEVICE_ID = 0


def start_embedded(stack: ExitStack, *, backend: Backend = Backend.INTERPRETER) -> tuple[P4RuntimeDevice, SendFrame]:
    """Start the embedded switch, in this process. Return its P4Runtime side and the function that sends a frame.

    The function raises Failed where the program uses a register index out of range.
    """
    server = SwitchServer(make_engine=engine_maker(backend), device_id=DEVICE_ID)
    # Opened, but not run: no thread moves frames, `send` alone does, so a verdict depends on no time.
    server.open()
    stack.callback(server.close)

    def send(port: int, frame: bytes) -> list[Output]:
        engine = server.dataplane.engine
        assert isinstance(engine, Engine), "a program was pushed"
        before = engine.faults[INDEX_OUT_OF_RANGE]
        sent = engine.process(port, frame)
        # The embedded switch passes over such an access. bmv2 crashes, and a verdict must not depend on the target.
        if engine.faults[INDEX_OUT_OF_RANGE] > before:
            shown = summary(Ether(frame))
            raise Failed(f"no register index out of range was expected; this packet reads or writes one: {shown}")
        return sent

    return stack.enter_context(NativeDevice(server.grpc_address, DEVICE_ID)), send


def start_bmv2(stack: ExitStack) -> tuple[P4RuntimeDevice, SendFrame]:
    """Start bmv2, a process without interfaces, so without root. Return as `start_embedded` does.

    Raises LabError: it does not start. The function that sends a frame raises Failed where bmv2 ends.
    """
    try:
        switch = stack.enter_context(Bmv2Switch({}, device_id=DEVICE_ID, packet_stream=True))
    except TopologyError as error:
        raise LabError(f"bmv2 does not start: {error}") from error
    stream = stack.enter_context(closing(PacketStream(switch.frames_address, DEVICE_ID)))

    def send(port: int, frame: bytes) -> list[Output]:
        try:
            return [Output(*sent) for sent in stream.process(port, frame)]
        except PacketStreamError as error:
            shown = summary(Ether(frame))
            raise Failed(f"bmv2 ended at this packet, as it does at a register index out of range: {shown}") from error

    return stack.enter_context(Bmv2Device(switch.address, DEVICE_ID)), send


TARGETS: Mapping[str, StartSwitch] = {"native": start_embedded, "bmv2": start_bmv2}


class Testbed(ControlPlane):
    """One switch with one program. The context manager ends it.

    Raises ProgramError where the switch refuses the program, and LabError where it does not start.
    """

    # Not a test class of pytest's.
    __test__ = False

    def __init__(self, program: Path, p4info: Path, start: StartSwitch = start_embedded) -> None:
        with ExitStack() as stack:
            device, self._send = start(stack)
            self._made_of = program, p4info, start
            super().__init__(device, program, p4info)
            self._stack = stack.pop_all()

    def send(self, port: int, frame: bytes) -> list[Output]:
        """Let `frame` enter at `port`. Return the frames that the switch sends for it, in the order of the ports.

        Raises Failed: the program used a register index out of range, which ends bmv2.
        """
        # The order of copies is left to a switch: a grader that compared it would prefer one target.
        return sorted(self._send(port, frame))

    def start_another(self) -> Testbed:
        """Start one more switch with the same program, without entries, and return it. The caller ends it.

        Raises what construction does.
        """
        return Testbed(*self._made_of)

    def __enter__(self) -> Testbed:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the switch."""
        self._stack.close()
