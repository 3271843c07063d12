# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium without a window, driven through its DevTools pipe: JSON messages that end in a zero byte.

It stores nothing beyond its folder, and asks nobody but the pages that it is sent to.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from select import select
from typing import Any, Self

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ANSWER_S = 120.0
_TICK_S = 0.05
_COMPLAINTS = ("Runtime.exceptionThrown", "Log.entryAdded")


def find_browser() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def _pipe() -> tuple[int, int]:
    """Return both ends of a pipe, with numbers that leave 3 and 4 free."""
    ends = os.pipe()
    try:
        return fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, 10), fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(ends[0])
        os.close(ends[1])


class Browser:
    """One browser with one page; `complaints` are what its console said: errors of scripts, what a policy refused."""

    def __init__(self, program: str, folder: Path) -> None:
        self.complaints: list[str] = []
        self._next, self._text = 0, b""
        told, self._out = _pipe()
        self._in, said = _pipe()
        as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [
            *(program, "--headless", "--remote-debugging-pipe", f"--user-data-dir={folder}", *as_root),
            *("--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server", "--hide-scrollbars"),
            "--disable-background-networking",
        ]
        # The browser reads from file descriptor 3 and writes to 4.
        script = f'exec 3<&{told} 4>&{said} {told}<&- {said}>&-; exec "$0" "$@"'
        self._log = folder / "browser.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", script, *command],
                pass_fds=(told, said),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(told)
        os.close(said)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **arguments: Any) -> Mapping[str, Any]:
        """Call a method of the page."""
        return self._call(method, session=self._session, **arguments)

    def go(self, url: str) -> None:
        """Load a page; what its script asks for may not be there yet."""
        for each in ("about:blank", url):
            self.complaints.clear()  # of the page before, whose server may be gone
            assert "errorText" not in self.call("Page.navigate", url=each)
            self.wait_for(f"document.readyState == 'complete' && location.href == {json.dumps(each)}", each)

    def value(self, expression: str) -> Any:
        """Return what an expression of JavaScript gives, as JSON can hold it."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, what: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wait until an expression is true."""
        give_up_s = time.monotonic() + ANSWER_S
        while not self.value(expression):
            assert time.monotonic() < give_up_s, (what, self.value("document.body?.innerText"), self.complaints)
            meanwhile()
            select([], [], [], _TICK_S)

    def look(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
        """Set the size of the window, in CSS pixels, and which colours its user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self) -> bytes:
        """Return all of the page as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def close(self) -> None:
        """End it."""
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        try:
            self._process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, session: str = "", **arguments: Any) -> Mapping[str, Any]:
        self._next += 1
        message = {
            "id": self._next,
            "method": method,
            "params": arguments,
            **({"sessionId": session} if session else {}),
        }
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._next:
                assert "error" not in answer, (method, answer["error"])
                result: Mapping[str, Any] = answer["result"]
                return result
            if answer.get("method") in _COMPLAINTS:
                self.complaints.append(json.dumps(answer["params"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._text:
            ready, _, _ = select([self._in], [], [], ANSWER_S)
            assert ready, "the browser does not answer"
            read = os.read(self._in, 1 << 16)
            assert read, self._log.read_text(errors="replace")
            self._text += read
        first, _, self._text = self._text.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message
