# SPDX-License-Identifier: Apache-2.0
"""The argument `--codec` of commands."""

from __future__ import annotations

import argparse

from hopsum.codec import CodecError, parse_codec


def codec_argument(text: str) -> str:
    """Return `NAME` or `NAME:OPTION=VALUE,...` as it is, once it names a codec. Raises ArgumentTypeError."""
    try:
        return str(parse_codec(text))
    except CodecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
