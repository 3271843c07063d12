# SPDX-License-Identifier: Apache-2.0
"""What a log looks like, for people and for programs."""

from __future__ import annotations

import io
import json
import logging
import re
from datetime import datetime

import pytest

from hopsum.cli.logs import log_to

pytestmark = pytest.mark.usefixtures("quiet")
_log = logging.getLogger("hopsum_controlplane.of_a_test")


def test_json_is_one_object_a_line_with_what_the_line_is_about() -> None:
    stream = io.StringIO()
    log_to(stream, form="json")
    _log.info("job %s:\n%s", "train", "two lines", extra={"job": "train", "epoch": 7})
    try:
        raise ValueError("of a test")
    except ValueError:
        _log.exception("failed")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert datetime.fromisoformat(first.pop("time")).utcoffset() is not None
    assert first == {
        "level": "info",
        "logger": "hopsum_controlplane.of_a_test",
        "message": "job train:\ntwo lines",
        "job": "train",
        "epoch": 7,
    }
    assert "ValueError: of a test" in second["exception"]


def test_text_is_for_people() -> None:
    stream = io.StringIO()
    log_to(stream)
    _log.warning("switch %s: gone", "leaf1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING switch leaf1: gone\n", stream.getvalue())


def test_levels_are_of_hopsum_and_others_warn() -> None:
    stream = io.StringIO()
    log_to(stream, level="error")
    _log.warning("not shown")
    logging.getLogger("somebody.else").info("not shown")
    logging.getLogger("somebody.else").warning("shown")
    assert stream.getvalue().count("shown") == 1
