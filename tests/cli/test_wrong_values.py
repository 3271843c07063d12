# SPDX-License-Identifier: Apache-2.0
"""Wrong, absent and extreme values of options: one form of refusal, exit status 2, no traceback."""

from __future__ import annotations

import argparse
from importlib import import_module

import pytest

from hopsum_cli.main import COMMANDS

from ..support.printed import usage_error
from .test_options import actions_of, parser_of

WRONG = ("", " ", "-1", "0", "1e999", "nan", "9" * 400, "x", "thc:", "thc:bits", "\x1b[2J", "\udcff", "٣", "1:0", "/")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_value_is_taken_or_refused_by_the_parser(name: str) -> None:
    """argparse makes one line and status 2 of these exceptions alone; others would end as an internal error."""
    for path, action in actions_of(parser_of(name), name):
        if not callable(action.type):
            continue
        for value in WRONG:
            try:
                action.type(value)
            except (argparse.ArgumentTypeError, TypeError, ValueError):
                pass
            except Exception as error:
                pytest.fail(f"{path} {action.dest} {value!r}: {error!r}")


@pytest.mark.parametrize("name", ["demo", "bench allreduce"])
@pytest.mark.parametrize("codec", ["thc:result_bits=5", "thc:nosuch=1", "thc:bits=x", "thc:bits=99", "nosuch", ""])
def test_a_codec_that_a_job_cannot_have_is_wrong_usage(
    name: str, codec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(COMMANDS[name].module)
    assert "error: argument --codec: " in usage_error(
        capsys, import_module(COMMANDS[name].module).main, "--codec", codec
    )
