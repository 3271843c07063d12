# SPDX-License-Identifier: Apache-2.0
"""Wrong, absent and extreme values of options: one form of refusal, exit status 2, no traceback."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from math import isfinite

import pytest

from hopsum.codec import CodecError, make_codec
from hopsum_base.units import count, rate_bits_per_s, real, share, time_s, whole
from hopsum_cli.main import COMMANDS, main

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


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_reads_any_number(name: str) -> None:
    """Python's int and float take -1, nan, infinity and numbers of thousands of digits."""
    bare = [(path, action.dest) for path, action in actions_of(parser_of(name), name) if action.type in (int, float)]
    assert not bare, bare


@pytest.mark.parametrize(
    ("read", "taken", "refused"),
    [
        (whole(0), ("0", "4294967295", "007"), ("-1", "4294967296", "1.0", "1e3", "٣", "²", "", "9" * 5000)),
        (whole(1, 8), ("1", "8"), ("0", "9")),
        (real(0, 2), ("0", "2", "1e-3", ".5"), ("-1", "2.1", "nan", "inf", "1e999", "", "1s", "9" * 5000)),
        (share, ("1", "1e-9"), ("0", "1e-999", "1.1")),
        (rate_bits_per_s, ("1gbit", "2.5mbit"), ("0bit", "1e999gbit", "1", "-1bit", "nanbit")),
        (count, ("25M",), ("0", "1e999", "9" * 5000)),
        (time_s, ("0s", "120ms"), ("1e999s", "-1s")),
    ],
)
def test_numbers_have_ends(read: Callable[[str], float], taken: Sequence[str], refused: Sequence[str]) -> None:
    for text in taken:
        assert isfinite(read(text))
    for text in refused:
        with pytest.raises(argparse.ArgumentTypeError) as caught:
            read(text)
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("workers", ["0", "65", "0:2", "2:65", "9" * 400])
def test_numbers_of_workers_that_no_job_has(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "argument --workers: " in usage_error(capsys, main, "job", "create", "j", "--workers", workers)


CODEC_OPTIONS = {
    "bench accuracy": "--codec --others",
    "bench allreduce": "--codec",
    "bench training": "--schemes",
    "demo": "--codec",
    "job create j --workers 4": "--codec",
    "plan --elements 1000 --compute 1s": "--codec",
    "table show --workers 4": "--codec",
    "topology run star": "--codec",
}
"""Options of codecs, by command with the arguments that it needs."""


@pytest.mark.parametrize(
    "codec",
    ["thc:result_bits=5", "thc:nosuch=1", "thc:bits=x", "thc:bits=99", "uhc:bits=" + "9" * 400, "nosuch", ""],
)
@pytest.mark.parametrize(("command", "options"), CODEC_OPTIONS.items())
def test_a_codec_that_a_job_cannot_have_is_wrong_usage(
    command: str, options: str, codec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in options.split():
        *_, error = usage_error(capsys, main, *command.split(), option, codec).splitlines()
        assert f"error: argument {option}: " in error
        assert len(error) < 300


def test_every_option_of_codecs_is_looked_at() -> None:
    found = {
        path
        for name in COMMANDS
        for path, action in actions_of(parser_of(name), name)
        if action.dest in {"codec", "others", "schemes"}
    }
    assert found == {command.partition(" -")[0].removesuffix(" j").removesuffix(" star") for command in CODEC_OPTIONS}


@pytest.mark.parametrize("option", ["uhc:bits", "lossless:gamma", "uhc:lane_bits", "thc:bits", "thc:granularity"])
def test_a_number_of_hundreds_of_digits_is_not_repeated(option: str) -> None:
    for digits in (400, 5000):
        with pytest.raises(CodecError) as caught:
            make_codec(f"{option}={'9' * digits}", workers=4, backend="numpy")
        assert len(str(caught.value)) < 250
    name, _, key = option.partition(":")
    with pytest.raises(CodecError):
        make_codec(name, workers=4, backend="numpy", **{key: 10**5000})
