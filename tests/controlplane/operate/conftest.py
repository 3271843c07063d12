# SPDX-License-Identifier: Apache-2.0
"""The log as it was before a command took it. Worker processes import `site_members` by name."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For commands that run in this process: what they do to the log is undone."""
    loggers = [logging.getLogger(name) for name in ("", "hopsum", "hopsum_controlplane")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setenv("GRPC_VERBOSITY", os.environ.get("GRPC_VERBOSITY", "ERROR"))
    yield
    logging.captureWarnings(False)
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
