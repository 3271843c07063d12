# SPDX-License-Identifier: Apache-2.0
"""The interface that the data plane needs of an engine, and the batch form of engines that take single frames."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from hopsum_switch.frame_batch import Batch, Outputs
from hopsum_switch.ports.port import RECEIVE_BATCH

# A frame that goes round loops of the program can take as long as this alone.
LONGEST_S = 0.1


class PacketEngine(Protocol):
    """An engine that takes single frames."""

    def process(self, port: int, frame: bytes, now_us: int) -> Sequence[tuple[int, bytes]]:
        """Run a received frame. Return the frames that leave, each with its port. `now_us` counts from the start."""
        ...


@runtime_checkable
class BatchEngine(Protocol):
    """An engine that takes many frames in one call."""

    def room_for(self, frame_bytes: int) -> tuple[int, int]:
        """Return the most outputs, and their most bytes together, that one frame of `frame_bytes` may cause now."""
        ...

    def process_batch(self, batch: Batch, outputs: Outputs, *, first: int = 0, now_us: int = 0) -> int:
        """Run frames from number `first` on, as many as suit the engine. Return the number of the next frame.

        The resulting frames replace the contents of `outputs`, which has the room of `room_for` for the longest frame.
        """
        ...


class FrameByFrame(BatchEngine):
    """The batch form of an engine that takes single frames. A frame is reported and dropped if it fails."""

    def __init__(self, engine: PacketEngine, failed: Callable[[int, int], None]) -> None:
        """Call `failed(port, frame_bytes)` for each frame on which the engine raises, in the exception's handler."""
        self._engine = engine
        self._failed = failed

    def room_for(self, frame_bytes: int) -> tuple[int, int]:
        """Return (0, 0): `process_batch` enlarges the outputs itself."""
        return 0, 0

    def process_batch(self, batch: Batch, outputs: Outputs, *, first: int = 0, now_us: int = 0) -> int:
        """Run at most RECEIVE_BATCH frames, and begin none after LONGEST_S seconds. Return the number of the next one.

        So the control plane waits a bounded time. At least one frame runs.
        """
        ports, frames, sources = list[int](), list[bytes](), list[int]()
        # At least one frame runs, however long the engine takes for it: else the batch would never end.
        end, last, started = first, min(len(batch.ports), first + RECEIVE_BATCH), time.monotonic()
        while end < last and (end == first or time.monotonic() - started < LONGEST_S):
            number, end = end, end + 1
            port, frame = int(batch.ports[number]), batch.frame(number)
            try:
                copies = self._engine.process(port, frame, now_us)
            except Exception:
                self._failed(port, len(frame))
                continue
            for egress, output in copies:
                ports.append(egress)
                frames.append(output)
                sources.append(number)
        outputs.fill(ports, frames, sources)
        return end


def batch_engine(engine: PacketEngine | BatchEngine, failed: Callable[[int, int], None]) -> BatchEngine:
    """Return the engine itself if it takes many frames at once, else a loop around it."""
    return engine if isinstance(engine, BatchEngine) else FrameByFrame(engine, failed)
