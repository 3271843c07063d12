# SPDX-License-Identifier: Apache-2.0
"""A running bmv2 (simple_switch_grpc) for one frame at a time, over its packet stream."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hopsum_topologies.bmv2_process import Bmv2Switch
from hopsum_topologies.bmv2_stream import PacketStream

PROGRAM = "simple_switch_grpc"
DEVICE_ID = 1


def unavailable() -> str | None:
    """Return why bmv2 cannot run here, or None."""
    return None if shutil.which(PROGRAM) else f"{PROGRAM} is not on PATH"


class Bmv2:
    """A running simple_switch_grpc without a program; `address` is where its P4Runtime server listens."""

    def __init__(self, address: str, stream: PacketStream) -> None:
        self.address, self.process = address, stream.process


@contextmanager
def running(folder: Path) -> Iterator[Bmv2]:
    """Run a switch; its log goes to `folder`."""
    switch = Bmv2Switch({}, device_id=DEVICE_ID, folder=folder, packet_stream=True)
    with switch, closing(PacketStream(switch.frames_address, DEVICE_ID)) as stream:
        yield Bmv2(switch.address, stream)
