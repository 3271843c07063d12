# SPDX-License-Identifier: Apache-2.0
"""Codecs as arguments of commands, for argparse."""

from __future__ import annotations

import argparse

from hopsum.codec.interface import CodecError, require_switch
from hopsum.codec.registry import CODECS, make_codec, parse_codec


def codec_argument(text: str) -> str:
    """Check that `NAME` or `NAME:OPTION=VALUE,...` names a codec. Return its usual spelling, see `CodecName`.

    Raises ArgumentTypeError as `parse_codec` raises CodecError.
    """
    try:
        return str(parse_codec(text))
    except CodecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def switch_codec_argument(text: str) -> str:
    """Do as `codec_argument`, and raise ArgumentTypeError also for a codec for which no switch can sum."""
    codec = codec_argument(text)
    try:
        require_switch(CODECS[parse_codec(codec).name])
    except CodecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return codec


def check_codec(parser: argparse.ArgumentParser, text: str, workers: int, option: str = "--codec") -> None:
    """End the command by `parser.error`, which names `option`, if a job of `workers` workers cannot have the codec.

    For after parsing: the options that a codec may have depend on the number of workers, which is an option too.
    """
    try:
        make_codec(text, workers=workers, backend="numpy")
    except CodecError as error:
        parser.error(f"argument {option}: {error}")
