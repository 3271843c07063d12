# SPDX-License-Identifier: Apache-2.0
"""Files of secrets: read by the controller, and by the commands of its operators. Needs no gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_wire.private_files import read_private

MIN_TOKEN_CHARACTERS: Final = 16
MAX_TOKEN_CHARACTERS: Final = 256
MAX_TOKENS: Final = 64
MAX_NAME_CHARACTERS: Final = 64
ADMINISTRATOR: Final = "administrator"
"""Name of the holder of a token without a name."""
_MAKE_ONE: Final = "write one with `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`"


@dataclass(frozen=True, slots=True)
class AdminToken:
    """A token of an administrator, and the name of its holder."""

    token: str
    name: str = ADMINISTRATOR


def read_token(path: Path, setting: str) -> str:
    """Return the first token of a file, see `read_tokens`. Raises ControlPlaneError."""
    return read_tokens(path, setting)[0].token


def read_admin_tokens(path: Path) -> tuple[AdminToken, ...]:
    """Return the tokens of the file of administrators. Raises ControlPlaneError."""
    return read_tokens(path, "admin_token_file")


def read_tokens(path: Path, setting: str) -> tuple[AdminToken, ...]:
    """Read the tokens of a file that only its owner can read: a token a line, each with a name before it or without.

    All of them are valid, so that one replaces another without a moment in which neither is known to somebody.
    `setting` names the file. Raises ControlPlaneError when it cannot be read, others can read it, or has no token.
    """
    what = f"{setting.removesuffix('_file').replace('_', ' ')} file"
    content = read_private(path, what, ControlPlaneError)
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise ControlPlaneError(f"{what} {path} cannot be read: {error}", hint=_MAKE_ONE) from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not 1 <= len(numbered) <= MAX_TOKENS:
        raise ControlPlaneError(f"{what} {path} holds {len(numbered)} tokens, not 1 .. {MAX_TOKENS}", hint=_MAKE_ONE)
    return tuple(_admin_token(line, f"{what} {path}, line {number}") for number, line in numbered)


def _admin_token(line: str, where: str) -> AdminToken:
    """Read TOKEN or NAME TOKEN. Raises ControlPlaneError, whose message does not show the line."""
    # The message never shows the line: it may be a token with a typing error.
    *names, token = line.split(" ")
    if len(names) > 1 or not line.isprintable() or not MIN_TOKEN_CHARACTERS <= len(token) <= MAX_TOKEN_CHARACTERS:
        raise ControlPlaneError(
            f"{where} holds {len(line)} characters, not one word of {MIN_TOKEN_CHARACTERS} .. {MAX_TOKEN_CHARACTERS}, "
            "or a name and such a word",
            hint=_MAKE_ONE,
        )
    return AdminToken(token, *(name[:MAX_NAME_CHARACTERS] for name in names))
