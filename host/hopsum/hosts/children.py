# SPDX-License-Identifier: Apache-2.0
"""Child processes that end with this process, however it ends.

The kernel ends a child with the thread that started it (PR_SET_PDEATHSIG). So one thread starts all children, and lives
until the children are closed or the process ends.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from hopsum.errors import HopsumError
from hopsum_base.owned_folder import OwnedFolder
from hopsum_wire import HOPSUM_UDP_PORT

FOLDER: Final = "hosts"
"""The purpose of the folder of a rank's children, in its name."""
ADDRESS_FILE: Final = "controller.address"
TOKEN_FILE: Final = "admin.token"
"""In rank 0's folder, the address of its controller, and the token of that one's administrator."""
_LOOK_AGAIN_S: Final = 0.02
_TAIL_BYTES: Final = 1500


class ChildError(HopsumError):
    """A child process did not start. The message has the end of what it printed."""


class Children:
    """Python modules that run as child processes until `close`.

    The constructor makes `folder`, for their files and this user only, and starts a thread.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._held = OwnedFolder(FOLDER)
        self.folder = self._held.path
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="hopsum-children", daemon=True)
        self._thread.start()

    def start(self, name: str, arguments: Sequence[str], ready: re.Pattern[str], wait_s: float) -> re.Match[str]:
        """Start `python -m ARGUMENTS --die-with-parent PID`, wait for its ready line, and return the match of `ready`.

        The child's output goes to the file NAME.log of `folder`.

        Args:
            name: of the child, one child each.
            ready: is searched in all of the output so far.
            wait_s: the most seconds until the line.

        Raises:
            ChildError: the child ended before, or was not ready in time. Then it still runs until `close`.
            OSError: the process cannot be started.
        """
        log = self.folder / f"{name}.log"
        # The child asks the kernel for its death signal itself, and compares the parent's PID to notice one that died
        # before.
        command = [sys.executable, "-m", *arguments, "--die-with-parent", str(self._process)]
        child = self._popen(command, log)
        until = time.monotonic() + wait_s
        while True:
            over = child.poll() is not None
            text = log.read_text(encoding="utf-8", errors="replace")
            if found := ready.search(text):
                return found
            if over or time.monotonic() >= until:
                why = f"ended with status {child.returncode}" if over else f"was not ready within {wait_s:g} s"
                raise ChildError(f"{name} {why}: {text[-_TAIL_BYTES:].strip() or 'it printed nothing'}")
            time.sleep(_LOOK_AGAIN_S)

    def close(self) -> None:
        """Kill the children and their process groups, wait for them, and remove `folder`. May be called again.

        Does nothing in a forked process.
        """
        if os.getpid() != self._process:
            return
        # At once, with what they have started. Nothing of theirs outlives the folder, and on a busy machine an orderly
        # end takes them seconds, for which rank 0 would wait.
        for child in self._children.values():
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        for child in self._children.values():
            child.wait()
        self._children.clear()
        # The thread ends last: with it the kernel would kill children that are still writing.
        self._work.put(None)
        self._held.cleanup()

    # PR_SET_PDEATHSIG follows the thread that forks, so all children are started in one thread.
    def _popen(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process in the thread that lives as long as it."""
        started: SimpleQueue[subprocess.Popen[bytes] | OSError] = SimpleQueue()

        def start() -> None:
            try:
                with log.open("wb") as output:
                    started.put(
                        subprocess.Popen(
                            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                            start_new_session=True,
                        )
                    )  # fmt: skip
            except OSError as error:
                started.put(error)

        self._work.put(start)
        child = started.get()
        if isinstance(child, OSError):
            raise child
        self._children[log.stem] = child
        return child

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()


# An embedded switch as a child process, with one UDP port for all workers.


START_S: Final = 120.0
_READY: Final = re.compile(r"^ready grpc=(\S+) .*\nudp 1=\S+:(\d+)\n", re.MULTILINE)


class EmbeddedSwitch(NamedTuple):
    """A switch that runs: its host's address, HOST:PORT of its P4Runtime server, and the UDP port for workers."""

    ip: str
    grpc: str
    udp_port: int


def start_switch(children: Children, ip: str, service_ip: str, *, gso: str) -> EmbeddedSwitch:
    """Start a switch at free ports of an address of this host, and return it once it serves.

    Args:
        service_ip: the service's address inside the switch's frames.
        gso: "off", or "auto": many datagrams in one system call.

    Raises:
        ChildError: the switch ended, or was not ready within START_S. The message has its last output.
    """
    port = f"1={ip}:0,as={service_ip}:{HOPSUM_UDP_PORT},gso={gso}"
    arguments = ["hopsum_switch", "--grpc", f"{ip}:0", "--udp", port]
    ready = children.start(f"switch {service_ip}", arguments, _READY, START_S)
    return EmbeddedSwitch(ip, ready[1], int(ready[2]))
