# SPDX-License-Identifier: Apache-2.0
"""A second controller over the same database: it waits, hears signals, and serves when the first one has ended."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopsum_controlplane.cluster import StateStore
from hopsum_topologies.process import ManagedProcess

from ...support.pages import blocks
from .test_as_a_service import Manager
from .test_controller import NOBODY, START_S, exit_status, start, write_config

pytestmark = pytest.mark.system


def test_the_command_on_the_page(tmp_path: Path, stack: ExitStack) -> None:
    (block,) = blocks("administration", "A standby")
    config = write_config(tmp_path, NOBODY)
    first = start(stack, config)
    manager = Manager(tmp_path, stack)
    words = block.split()
    assert words[0] == "hopsum"
    command = ["bash", "-c", f'cd "{tmp_path}" && exec "{sys.executable}" -m hopsum_cli.main {" ".join(words[1:])}']
    environment = {**os.environ, **manager.environment}
    standby = ManagedProcess(command, tmp_path / "standby.log", environment=environment)
    stack.callback(standby.stop)
    standby.wait_for(lambda: "\nstandby\n" in f"\n{standby.log_text()}", "that it waits", START_S)
    standby.wait_for(lambda: manager.listen().count("WATCHDOG=1") >= 2, "signs of life", START_S)
    assert "READY=1" in manager.heard
    assert "ready listen=" not in standby.log_text()

    text = config.read_text()
    config.write_text(text.replace("[controller]", "[controler]"))
    os.kill(standby.pid, signal.SIGHUP)
    standby.wait_for(lambda: "nothing has changed" in standby.log_text(), "the refusal", START_S)
    config.write_text(text)
    os.kill(standby.pid, signal.SIGHUP)
    standby.wait_for(lambda: "SIGHUP: read " in standby.log_text(), "the new configuration", START_S)

    os.kill(first.process.pid, signal.SIGKILL)
    standby.wait_for(lambda: "ready listen=" in standby.log_text(), "that it serves", START_S)
    os.kill(standby.pid, signal.SIGTERM)
    assert exit_status(standby) == 0


def test_a_signal_ends_a_standby(tmp_path: Path, stack: ExitStack) -> None:
    config = write_config(tmp_path, NOBODY)
    store = StateStore(tmp_path / "state.sqlite")
    stack.callback(store.close)
    command = [sys.executable, "-m", "hopsum_cli.main", "controller", "--config", str(config), "--standby"]
    standby = ManagedProcess(command, tmp_path / "standby.log")
    stack.callback(standby.stop)
    standby.wait_for(lambda: "\nstandby\n" in f"\n{standby.log_text()}", "that it waits", START_S)
    os.kill(standby.pid, signal.SIGTERM)
    assert exit_status(standby) == 0
    assert "SIGTERM: the standby ends" in standby.log_text()
