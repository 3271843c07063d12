# SPDX-License-Identifier: Apache-2.0
"""A service manager for the unit files of contrib/systemd, in a folder in place of the root folder.

It does what systemd does with these settings: Type=notify, ExecStart, ExecReload, Environment, EnvironmentFile, UMask,
LimitNOFILE, Restart=always, RestartSec, WatchdogSec. User and sandbox are systemd's own.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from hopsum_topologies.process import ManagedProcess

UNITS = Path(__file__).resolve().parents[3] / "contrib" / "systemd"
START_S = 300.0
_POLL_S = 0.05
_FOLDERS = ("/etc/hopsum", "/var/lib/hopsum", "/var/cache/hopsum")


class Unit:
    """One unit, started at once and whenever it ends, until `stop` or `lose`.

    Args:
        file: name of the unit's file; `instance` stands for its %i.
        root: folder in which /etc/hopsum, /var/lib/hopsum and /var/cache/hopsum are.
        source: source tree of the version that is installed; None: the one that this test is of.
        more: options after those of ExecStart, as a drop-in of an operator has them.
    """

    def __init__(
        self, file: str, root: Path, *, instance: str = "", source: Path | None = None, more: str = ""
    ) -> None:
        self.name = file.replace("@", f"@{instance}") + (f" {more}" if more else "")
        self._root, self.source, self._more = root, source, more
        text = (UNITS / file).read_text().replace("%i", instance)
        for folder in _FOLDERS:
            text = text.replace(folder, f"{root}{folder}")
        self._settings = re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)
        for kind in ("StateDirectory", "CacheDirectory", "ConfigurationDirectory"):
            place = {"State": "var/lib", "Cache": "var/cache", "Configuration": "etc"}[kind.removesuffix("Directory")]
            for name in self._all(kind):
                (root / place / name).mkdir(parents=True, exist_ok=True)
        self._heard: list[str] = []
        self._starts, self._wanted = 0, False
        self._process: ManagedProcess | None = None
        self._thread: threading.Thread | None = None
        self.failure = ""

    # ---- the operator's commands ----------------------------------------------------------------------

    def start(self) -> None:
        """Start the unit; returns when it is ready."""
        self._wanted, self._heard[:] = True, []
        self._thread = threading.Thread(target=self._supervise, name=self.name)
        self._thread.start()
        self.until_ready(1)

    def reload(self) -> None:
        """Run ExecReload."""
        subprocess.run(["bash", "-c", self._one("ExecReload").replace("$MAINPID", str(self.pid))], check=True)

    def stop(self) -> None:
        """End the unit with SIGTERM, as systemd does. Raises AssertionError for another exit status than 0."""
        self._wanted = False
        process = self._running()
        os.kill(process.pid, signal.SIGTERM)
        self._join()
        assert process.stop() == 0, process.log_text()

    def lose(self) -> None:
        """Kill the process without starting it again: its machine is gone."""
        self._wanted = False
        os.kill(self.pid, signal.SIGKILL)
        self._join()

    def kill(self) -> None:
        """Kill the process; returns when it was started again, and is ready."""
        self._heard[:] = []
        os.kill(self.pid, signal.SIGKILL)
        self.until_ready(1)

    def end(self) -> None:
        """End the unit, whatever state it is in. May be repeated."""
        self._wanted = False
        if self._thread is not None and self._thread.is_alive():
            if self._process is not None and self._process.running():
                with suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGKILL)
            self._join()

    # ---- the state ------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def ready_count(self) -> int:
        """Number of times that the process has said it is ready."""
        return self._heard.count("READY=1")

    def until_ready(self, times: int) -> None:
        self.wait_for(lambda: self.ready_count >= times, f"ready, {times} times")

    def wait_for(self, condition: object, what: str) -> None:
        assert callable(condition)
        give_up_s = time.monotonic() + START_S
        while not condition():
            assert not self.failure, self.failure
            assert time.monotonic() < give_up_s, f"{self.name}: no {what}: {self.log_text()[-3000:]}"
            time.sleep(_POLL_S)

    def log_text(self) -> str:
        """Return what all processes of this unit have written."""
        return "".join(
            path.read_text(errors="replace") for path in sorted(self._root.glob(f"{self._log_name()}-*.log"))
        )

    # ---- the supervisor's thread ----------------------------------------------------------------------

    def _supervise(self) -> None:
        try:
            while self._wanted:
                self._run_once()
                if self._wanted:
                    time.sleep(float(self._one("RestartSec")))
        except BaseException as error:
            self.failure = f"{self.name}: {error!r}"
            raise

    def _run_once(self) -> None:
        """Start the process and hear it until it ends; kill it when it misses its watchdog."""
        assert self._one("Restart") == "always"
        watchdog_s = float(self._one("WatchdogSec"))
        self._starts += 1
        place = self._root / f"{self._log_name()}-{self._starts:03d}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.bind(f"{place}.notify")
            channel.settimeout(_POLL_S)
            environment = self._environment(f"{place}.notify", watchdog_s)
            self._process = process = ManagedProcess(
                self._command(environment), place.with_suffix(".log"), environment=environment
            )
            alive_s, ready = time.monotonic(), False
            while process.running():
                try:
                    lines = channel.recv(4096).decode().splitlines()
                except TimeoutError:
                    lines = []
                self._heard += lines
                ready |= "READY=1" in lines
                if "WATCHDOG=1" in lines or not ready:
                    alive_s = time.monotonic()
                if time.monotonic() - alive_s > watchdog_s:
                    self.failure = f"{self.name}: its watchdog of {watchdog_s:g} s ended it"
                    os.kill(process.pid, signal.SIGABRT)
            status = process.stop()
            if not ready and self._wanted:
                self.failure = f"{self.name} ended with {status} before it was ready: {process.log_text()[-2000:]}"
                self._wanted = False

    def _environment(self, notify: str, watchdog_s: float) -> dict[str, str]:
        environment = {**os.environ, "NOTIFY_SOCKET": notify, "WATCHDOG_USEC": str(round(watchdog_s * 1e6))}
        environment |= dict(each.split("=", 1) for each in self._all("Environment"))
        for path in self._all("EnvironmentFile"):
            environment |= dict(line.split("=", 1) for line in Path(path).read_text().splitlines())
        return environment

    def _command(self, environment: dict[str, str]) -> list[str]:
        program, *words = shlex.split(self._one("ExecStart"))
        assert program == "/opt/hopsum/bin/hopsum"
        given = [each for word in words for each in (shlex.split(environment[word[1:]]) if word[0] == "$" else [word])]
        command = [sys.executable, "-m", "hopsum_cli.main", *given, *shlex.split(self._more)]
        installed = "" if self.source is None else os.pathsep.join(str(each) for each in sorted(self.source.iterdir()))
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = min(int(self._one("LimitNOFILE")), most if most != resource.RLIM_INFINITY else sys.maxsize)
        settings = f"umask {self._one('UMask')} && ulimit -n {files} && export PYTHONPATH='{installed}'"
        return ["bash", "-c", f'{settings} && exec "$0" "$@"', *command]

    def _running(self) -> ManagedProcess:
        self.wait_for(lambda: self._process is not None and self._process.running(), "process")
        assert self._process is not None
        return self._process

    def _join(self) -> None:
        assert self._thread is not None
        self._thread.join(START_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"

    def _log_name(self) -> str:
        return re.sub(r"\W+", "-", self.name)

    def _all(self, key: str) -> list[str]:
        return [value for name, value in self._settings if name == key]

    def _one(self, key: str) -> str:
        (value,) = self._all(key)
        return value
