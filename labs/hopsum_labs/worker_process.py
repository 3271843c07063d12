# SPDX-License-Identifier: Apache-2.0
"""The process of one worker of a grader: a student's `worker.py`, and the frames of its port over a socket.

A worker of its own process shares no variable with the others, and may print, exit or crash: the grader continues.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from scapy.layers.l2 import Ether

from hopsum_base.process_end import die_with_parent
from hopsum_labs.rule_checks import Failed

AllReduce = Callable[[Any, int, int, Sequence[Any]], Sequence[Any]]
# The first byte of a message. A frame goes both ways, a call to the worker, a result or a failure to the grader.
FRAME, CALL, RESULT, FAILURE = b"F", b"C", b"R", b"X"
MAX_MESSAGE = 1 << 17
_SHOWN_CHARACTERS = 500


class Port:
    """The port of a worker, for `all_reduce` of `worker.py`: scapy packets from the Ethernet header on."""

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire

    def send(self, packet: Any) -> None:
        """Send a packet to the switch."""
        self._wire.settimeout(None)
        self._wire.send(FRAME + bytes(packet))

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the next packet, or None when no packet came for `timeout_s` seconds. Without `timeout_s`, wait."""
        self._wire.settimeout(timeout_s)
        try:
            message = self._wire.recv(MAX_MESSAGE)
        except (TimeoutError, BlockingIOError):
            return None
        return Ether(message[1:])


def load_worker(path: Path) -> AllReduce:
    """Import a student's `worker.py` and return its `all_reduce`. Raises Failed: it cannot be imported, or has none."""
    spec = importlib.util.spec_from_file_location("student_worker", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise Failed(f"{path} is not there")
    module = ModuleType(spec.name)
    try:
        spec.loader.exec_module(module)
        all_reduce: AllReduce = module.all_reduce
    # A script without `if __name__ == "__main__"` may end by sys.exit().
    except (Exception, SystemExit) as error:
        raise Failed(f"{path} cannot be imported: {_shown(error)}") from error
    return all_reduce


def serve(wire: socket.socket, path: Path) -> None:
    """Answer the grader's calls of the `all_reduce` in `path` until the grader closes its end of the socket.

    An answer is the result, or the failure in words. The file is imported anew for each call.
    """
    while message := wire.recv(MAX_MESSAGE):
        # A frame here is for a call that has returned.
        if message[:1] == CALL:
            wire.send(_answer(wire, path, json.loads(message[1:])))
            wire.settimeout(None)


def _answer(wire: socket.socket, path: Path, call: dict[str, Any]) -> bytes:
    try:
        # Anew for each call, so that no global outlives a run.
        all_reduce = load_worker(path)
        result = list(all_reduce(Port(wire), call["rank"], call["workers"], call["vector"]))
        answer = RESULT + json.dumps(result, default=_plain).encode()
        if len(answer) > MAX_MESSAGE:
            raise Failed(f"all_reduce of rank {call['rank']} returned {len(result)} values")
        return answer
    except Failed as error:
        return FAILURE + str(error).encode()
    except (Exception, SystemExit) as error:
        return FAILURE + f"all_reduce of rank {call['rank']} raised {_shown(error)}".encode()


def _plain(value: Any) -> Any:
    """Return numpy's number as Python's, and anything else as the text that shows it."""
    return value.item() if hasattr(value, "item") else repr(value)


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_SHOWN_CHARACTERS]


if __name__ == "__main__":
    # A worker that computes for ever must not outlive a grader that was killed.
    die_with_parent(int(sys.argv[3]))
    # What a worker prints must not get between the lines of the grader's own output.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
