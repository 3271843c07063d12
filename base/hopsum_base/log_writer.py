# SPDX-License-Identifier: Apache-2.0
"""A log handler that never holds up the thread that logs, however long the log's reader does not read."""

from __future__ import annotations

import logging
import os
import queue
import select
import threading
import time
from contextlib import suppress
from typing import Final

from hopsum_base.shown import escape_controls

LINES_MAX: Final = 10_000
"""The lines that wait for the reader, some megabytes. Further lines are left out, and counted."""
_FLUSH_S: Final = 1.0
"""The longest time that the end of the process waits for the reader."""


class LogWriter(logging.Handler):
    """Writes log records to a descriptor, by default stderr: at once, or in a thread of its own while that would block.

    A terminal after Ctrl-S, a stopped pager and a log daemon that hangs block `write` for as long as they like.
    """

    def __init__(self, descriptor: int = 2) -> None:
        super().__init__()
        # A descriptor of its own, without a buffer: a blocked write must not hold the lock of `sys.stderr`, which the
        # end of the process takes.
        self._file = os.fdopen(os.dup(descriptor), "wb", buffering=0)
        self._ready = select.poll()
        self._ready.register(self._file, select.POLLOUT)
        self._lines: queue.Queue[bytes] = queue.Queue(LINES_MAX)
        self._left_out = 0
        threading.Thread(target=self._write, name="hopsum-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's line, or leave it to the thread. Drop it if LINES_MAX lines wait, or the reader has gone."""
        try:
            line = self._line(record)
            # An operator who has the answer of a call finds its line in the log, so the thread is the exception.
            if not self._lines.unfinished_tasks and len(line) <= select.PIPE_BUF and self._ready.poll(0):
                self._file.write(line)
            else:
                self._lines.put_nowait(line)
        except OSError:
            # The reader has gone. There is no other place for the log.
            pass
        except queue.Full:
            # Under the handler's lock, as all calls of `emit` are.
            self._left_out += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait until the lines so far are written, for a second at most. `logging` calls it when the process ends."""
        until_s = time.monotonic() + _FLUSH_S
        while self._lines.unfinished_tasks and time.monotonic() < until_s:
            time.sleep(0.001)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            with suppress(OSError):
                self._file.write(line + self._gap())
            self._lines.task_done()

    def _line(self, record: logging.LogRecord) -> bytes:
        # A record may have what a peer sent. Further lines are indented: none of these looks like a record of its own.
        lines = map(escape_controls, self.format(record).split("\n"))
        return ("\n    ".join(lines) + "\n").encode(errors="backslashreplace")

    def _gap(self) -> bytes:
        """Return a line on the lines that were left out before all lines that come now, empty for none."""
        if not self._left_out or not self._lines.empty():
            return b""
        self.acquire()
        count, self._left_out = self._left_out, 0
        self.release()
        told = "%d lines were left out: nobody read the log"
        return self._line(logging.LogRecord(__name__, logging.WARNING, "", 0, told, (count,), None))
