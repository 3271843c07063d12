# SPDX-License-Identifier: Apache-2.0
"""A child process with a log file that is awaited, dies with us, and is stopped by its own process id."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from hopsum_topologies.errors import TopologyError

_PACKAGE_ROOT = Path(__file__).resolve().parents[1]
_POLL_S = 0.02
_TERMINATE_S = 5.0
_LOG_TAIL_BYTES = 2000


def launcher_command(
    command: Sequence[str], namespace: str | None, environment: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return arguments and environment with which `Popen` starts `command` by `child_launcher`. Starts nothing.

    The child dies with the thread that starts it. It runs in `namespace`, None for ours. `environment` None: ours. The
    returned one has our packages first in PYTHONPATH.
    """
    launcher = [sys.executable, "-m", "hopsum_topologies.child_launcher", str(os.getpid()), namespace or "-"]
    variables = dict(os.environ if environment is None else environment)
    paths = [str(_PACKAGE_ROOT), *filter(None, [variables.get("PYTHONPATH")])]
    # The child may run another Python environment or folder. Ours comes first, for child_launcher.
    variables["PYTHONPATH"] = os.pathsep.join(paths)
    return [*launcher, *command], variables


class ManagedProcess:
    """A program in a process group of its own. Construction starts the program.

    Its stdout and stderr go to `log`. The process gets SIGKILL when the thread that started it ends, so that thread
    must live as long as the process.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        namespace: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        # Of a module that Python runs, not of Python.
        self.name = command[2] if command[1:2] == ["-m"] else Path(command[0]).name
        arguments, variables = launcher_command(command, namespace, environment)
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
                # Ctrl-C at a terminal ends the owner, which stops its children in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The program's own process id."""
        return self._child.pid

    def running(self) -> bool:
        """Return True until the process has ended."""
        return self._child.poll() is None

    def log_text(self) -> str:
        """Return the whole output of the process so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
        """Wait until `condition` returns True. It is called every 20 ms.

        Raises TopologyError when the process ends before, or after `deadline_s` seconds. The message names `what` and
        has the end of the log. The process is stopped then, and also where `condition` or a signal handler raises.
        """
        give_up = time.monotonic() + deadline_s
        try:
            while True:
                # Before the look: on a busy machine a long pause may end with both true, and then it is ready.
                is_late = time.monotonic() > give_up
                if condition():
                    return
                if not self.running():
                    status = self._child.returncode
                    raise TopologyError(f"{self.name} ended with {status} before {what}: {self._tail()}")
                if is_late:
                    raise TopologyError(f"{self.name}: no sign of {what} in {deadline_s} s: {self._tail()}")
                time.sleep(_POLL_S)
        except BaseException:
            # After Ctrl-C at a start nobody else knows the process.
            self.stop()
            raise

    def stop(self) -> int:
        """End the process with SIGTERM, after five seconds with SIGKILL. May be repeated.

        Returns its exit status, which is below 0 (minus the number) where a signal ended it.
        """
        # By the process id of this child only: names of processes are not unique on a shared machine.
        if self.running():
            self._child.terminate()
            try:
                self._child.wait(_TERMINATE_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
        return self._child.wait()

    def _tail(self) -> str:
        text = self.log_text()[-_LOG_TAIL_BYTES:].strip()
        return f"its log {self.log} ends with:\n{text}" if text else f"its log {self.log} is empty"


class SwitchProcess:
    """The base class of a switch's process. The context manager stops it. Subclasses start it, and set both fields."""

    process: ManagedProcess
    _folder: TemporaryDirectory[str]
    """The folder of its log and its socket."""

    def stop(self) -> None:
        """Stop the switch, and remove its folder with the log. May be repeated."""
        self.process.stop()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
