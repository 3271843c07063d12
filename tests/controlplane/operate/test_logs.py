# SPDX-License-Identifier: Apache-2.0
"""The log's two forms, for people and for programs."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
import warnings
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TextIO

import pytest

from hopsum_base.log_writer import LINES_MAX
from hopsum_controlplane.service.log_format import configure_logging

from ...support.processes import run_hopsum
from .test_controller import NOBODY, write_config

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("quiet")]
_log = logging.getLogger("hopsum_controlplane.of_a_test")


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[TextIO]:
    with (tmp_path / "log").open("w+", encoding="utf-8") as file:
        yield file


def written(stream: TextIO) -> str:
    for handler in logging.getLogger().handlers:
        handler.flush()
    return Path(stream.name).read_text(encoding="utf-8")


def test_json_is_one_object_a_line_with_what_the_line_is_about(stream: TextIO) -> None:
    configure_logging(stream, form="json")
    _log.info("job %s:\n%s", "train", "two lines", extra={"job": "train", "generation": 7})
    try:
        raise ValueError("of a test")
    except ValueError:
        _log.exception("failed")
    first, second = (json.loads(line) for line in written(stream).splitlines())
    assert datetime.fromisoformat(first.pop("time")).utcoffset() is not None
    assert first == {
        "level": "info",
        "logger": "hopsum_controlplane.of_a_test",
        "message": "job train:\ntwo lines",
        "job": "train",
        "generation": 7,
    }
    assert "ValueError: of a test" in second["exception"]


def test_text_is_for_people(stream: TextIO) -> None:
    configure_logging(stream)
    _log.warning("switch %s: gone", "leaf1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING switch leaf1: gone\n", written(stream))


def test_levels_are_of_hopsum_and_others_warn(stream: TextIO) -> None:
    configure_logging(stream, level="error")
    _log.warning("not shown")
    logging.getLogger("somebody.else").info("not shown")
    logging.getLogger("somebody.else").warning("shown")
    assert written(stream).count("shown") == 1


def test_what_a_thread_and_python_have_to_say_is_json_too(stream: TextIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logging(stream, form="json")
        thread = threading.Thread(target=lambda: 1 // 0, name="of-a-test")
        thread.start()
        thread.join()
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)
    ended, warned = (json.loads(line) for line in written(stream).splitlines())
    assert (ended["level"], ended["message"]) == ("critical", "thread of-a-test ended")
    assert "ZeroDivisionError" in ended["exception"]
    assert "DeprecationWarning: old" in warned["message"]


def test_every_line_of_a_controller_is_json(tmp_path: Path) -> None:
    """Of one whose port is taken, about which gRPC's core has something to say of its own."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = write_config(tmp_path, NOBODY)
        config.write_text(config.read_text().replace(':0"', f':{taken.getsockname()[1]}"', 1))
        clean = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
        done = run_hopsum("controller", "--config", str(config), "--log", "json", env=clean)
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert "cannot listen" in lines[-1]["message"]


def test_words_of_a_peer_forge_no_line_and_give_a_terminal_no_orders(stream: TextIO) -> None:
    configure_logging(stream)
    _log.error("refused: %s", "\x1b]0;title\x07\n2026-11-27T10:00:00.000Z INFO    a forged line")
    first, second = written(stream).splitlines()
    assert first.endswith(r"ERROR   refused: \x1b]0;title\x07")
    assert second.startswith("    2026-11-27")


def test_a_reader_that_does_not_read_holds_nobody_up() -> None:
    """A terminal after Ctrl-S: the lines wait, then are left out and counted, and no thread that logs waits."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as reader, open(writing, "w", encoding="utf-8") as stream:
        handler = configure_logging(stream)

        def log_much() -> None:
            for number in range(LINES_MAX + 3000):
                _log.info("%05d %s", number, "x" * 60)

        # More than the pipe and the queue take together.
        logging_thread = threading.Thread(target=log_much, daemon=True)
        logging_thread.start()
        logging_thread.join(60)
        assert not logging_thread.is_alive()
        for number, line in enumerate(reader):
            if "left out" in line:
                break
            assert f" {number:05d} " in line
        left_out = int(line.split()[2])
        assert number + left_out == LINES_MAX + 3000
        _log.info("again")
        assert reader.readline().endswith("again\n")
        handler.close()
