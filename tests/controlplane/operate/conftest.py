# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory, its service, and the log as it was."""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsum_controlplane.service.grpc_service import Service
from hopsum_ptf.fake_device import FakeDevice

from ..cluster.world import Cluster, switch_config


class Terminal(io.StringIO):
    """What an operator types at a terminal."""

    def isatty(self) -> bool:
        return True


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


@pytest.fixture
def switches() -> int:
    """Number of switches of the cluster. A test file may have another one."""
    return 1


@pytest.fixture
def cluster(tmp_path: Path, switches: int) -> Iterator[Cluster]:
    configs = tuple(switch_config(number) for number in range(1, switches + 1))
    made = Cluster(tmp_path, configs, {config.name: FakeDevice() for config in configs})
    made.start()
    yield made
    made.stop()


@pytest.fixture
def at(cluster: Cluster) -> Iterator[list[str]]:
    """Options of a command that name the cluster's service."""
    with Service(cluster.controller, "127.0.0.1:0") as service:
        yield ["--controller", service.address]
