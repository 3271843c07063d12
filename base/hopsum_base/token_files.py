# SPDX-License-Identifier: Apache-2.0
"""The file of administrators' tokens: read by the controller, and by the commands of its operators. Needs no gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hopsum_base.private_files import read_private

MIN_TOKEN_CHARACTERS: Final = 16
MAX_TOKEN_CHARACTERS: Final = 256
MAX_TOKENS: Final = 64
MAX_NAME_CHARACTERS: Final = 64
ADMINISTRATOR: Final = "administrator"
"""Name of the holder of a token without a name."""
_WHAT: Final = "admin token file"
_MAKE_ONE: Final = "write one with `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`"


@dataclass(frozen=True, slots=True)
class AdminToken:
    """A token of an administrator, and the name of its holder."""

    token: str
    name: str = ADMINISTRATOR


def read_admin_tokens(path: Path, error: type[Exception]) -> tuple[AdminToken, ...]:
    """Read the tokens of a file that only its owner can read: a token a line, each with a name before it or without.

    All of them are valid, so that one replaces another without a moment in which neither is known to somebody.
    Raises `error` when the file cannot be read, others can read it, or it has no token, too many, or another line.
    """
    content = read_private(path, _WHAT, error)
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError as refusal:
        raise error(f"{_WHAT} {path} cannot be read: {refusal}; {_MAKE_ONE}") from refusal
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not 1 <= len(numbered) <= MAX_TOKENS:
        raise error(f"{_WHAT} {path} holds {len(numbered)} tokens, not 1 .. {MAX_TOKENS}; {_MAKE_ONE}")
    return tuple(_admin_token(line, f"{_WHAT} {path}, line {number}", error) for number, line in numbered)


def _admin_token(line: str, where: str, error: type[Exception]) -> AdminToken:
    """Read TOKEN or NAME TOKEN. Raises `error`, whose message does not show the line."""
    # The message never shows the line: it may be a token with a typing error.
    *names, token = line.split(" ")
    if len(names) > 1 or not line.isprintable() or not MIN_TOKEN_CHARACTERS <= len(token) <= MAX_TOKEN_CHARACTERS:
        raise error(
            f"{where} holds {len(line)} characters, not one word of {MIN_TOKEN_CHARACTERS} .. {MAX_TOKEN_CHARACTERS}, "
            f"or a name and such a word; {_MAKE_ONE}"
        )
    return AdminToken(token, *(name[:MAX_NAME_CHARACTERS] for name in names))
