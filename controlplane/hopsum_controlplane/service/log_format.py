# SPDX-License-Identifier: Apache-2.0
"""The log of a long-running command, on stderr: a line for people, or one JSON object a line.

With JSON every line is an object, also what else would be written to stderr: warnings of Python, and exceptions that
end a thread.

An object has `time` (UTC, ISO 8601), `level`, `logger` and `message`, `exception`, where there was one, and what the
line is about, as far as its author said so: `switch`, `job`, `generation`, `state`.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TextIO

from hopsum_base.log_writer import LogWriter

_PACKAGES: Final = ("hopsum", "hopsum_cli", "hopsum_controlplane")
_log: Final = logging.getLogger(__name__)
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Writes each log record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line, a JSON object with the keys that the module's docstring names."""
        # What `extra` gave is an attribute of the record like any other: the standard ones are taken out.
        about = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **about,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Writes each log record as one line for people. Exceptions have more lines."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime


FORMATS: Final[dict[str, Callable[[], logging.Formatter]]] = {"text": TextFormatter, "json": JsonFormatter}


def configure_logging(stream: TextIO = sys.stderr, *, form: str = "text", level: str = "info") -> LogWriter:
    """Log hopsum's messages from `level` on, and other libraries' warnings, to a stream, in place of other handlers.

    With form "json" it also sets `threading.excepthook` and captures Python's warnings, so that these are logged.
    Returns the new handler.

    Args:
        form: a key of FORMATS. level: one of LOG_LEVELS.
    """
    handler = LogWriter(stream.fileno())
    handler.setFormatter(FORMATS[form]())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    set_level(level)
    if form == "json":
        logging.captureWarnings(True)
        threading.excepthook = _log_end_of_thread
    return handler


def set_level(level: str) -> None:
    """Log hopsum's messages from `level` on, one of LOG_LEVELS. The levels of other libraries stay."""
    for package in _PACKAGES:
        logging.getLogger(package).setLevel(level.upper())


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    name = "a thread" if ended.thread is None else f"thread {ended.thread.name}"
    error = ended.exc_value or ended.exc_type()
    _log.critical("%s ended", name, exc_info=error)
