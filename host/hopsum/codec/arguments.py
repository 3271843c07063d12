# SPDX-License-Identifier: Apache-2.0
"""Codecs as arguments of commands, for argparse."""

from __future__ import annotations

import argparse

from hopsum.codec.interface import CodecError, require_switch
from hopsum.codec.registry import CODECS, make_codec, parse_codec


def codec_argument(text: str) -> str:
    """Check that `NAME` or `NAME:OPTION=VALUE,...` names a codec, and return it. Raises ArgumentTypeError."""
    try:
        return str(parse_codec(text))
    except CodecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def switch_codec_argument(text: str) -> str:
    """Check that a text names a codec for which a switch can sum, and return it. Raises ArgumentTypeError."""
    codec = codec_argument(text)
    try:
        require_switch(CODECS[parse_codec(codec).name])
    except CodecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return codec


def check_codec(parser: argparse.ArgumentParser, text: str, workers: int, option: str = "--codec") -> None:
    """End the command as wrong usage of an option where a job of `workers` workers cannot have the codec.

    For after parsing: what a codec's options may be depends on the number of workers, which is an option too.
    """
    try:
        make_codec(text, workers=workers, backend="numpy")
    except CodecError as error:
        parser.error(f"argument {option}: {error}")
