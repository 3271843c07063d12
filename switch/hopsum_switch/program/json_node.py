# SPDX-License-Identifier: Apache-2.0
"""Checked access to parsed JSON: every wrong shape is a ProgramError that names the place in the file."""

from __future__ import annotations

from typing import Any, TypeVar

from ..errors import ProgramError
from .source import SourceInfo

T = TypeVar("T")


class Node:
    """A JSON object with the path that leads to it."""

    __slots__ = ("data", "path")

    def __init__(self, data: object, path: str) -> None:
        if not isinstance(data, dict):
            raise ProgramError(f"{path}: expected an object, found {_kind(data)}")
        self.data: dict[str, Any] = data
        self.path = path

    def error(self, message: str) -> ProgramError:
        """Return a ProgramError that names this place."""
        return ProgramError(f"{self.path}: {message}")

    def has(self, key: str) -> bool:
        """Return whether a key is there with a value other than null."""
        return self.data.get(key) is not None

    def text(self, key: str) -> str:
        """Return a string."""
        return self._typed(key, str, "a string")

    def optional_text(self, key: str) -> str | None:
        """Return a string, or None if absent or null."""
        return self.text(key) if self.has(key) else None

    def number(self, key: str) -> int:
        """Return an integer."""
        return integer(self.data.get(key), f"{self.path}.{key}")

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean, or the default if absent or null."""
        return self._typed(key, bool, "a boolean") if self.has(key) else default

    def hex(self, key: str) -> int:
        """Return a hexadecimal string's value."""
        return parse_hex(self.text(key), f"{self.path}.{key}")

    def array(self, key: str) -> list[Any]:
        """Return an array. An absent or null array is empty."""
        return self._typed(key, list, "an array") if self.has(key) else []

    def nodes(self, key: str) -> list[Node]:
        """Return an array of objects. An absent array is empty."""
        return [Node(item, f"{self.path}.{key}[{i}]") for i, item in enumerate(self.array(key))]

    def node(self, key: str) -> Node:
        """Return an object."""
        return Node(self.data.get(key), f"{self.path}.{key}")

    def source(self) -> SourceInfo | None:
        """Return the position in the P4 source, if the compiler left one."""
        if not self.has("source_info"):
            return None
        info = self.node("source_info")
        return SourceInfo(
            info.text("filename"), info.number("line"), info.number("column"), info.text("source_fragment")
        )

    def _typed(self, key: str, kind: type[T], words: str) -> T:
        value = self.data.get(key)
        if not isinstance(value, kind):
            raise ProgramError(f"{self.path}.{key}: expected {words}, found {_kind(value)}")
        return value


def integer(value: object, path: str) -> int:
    """Return a JSON value that must be an integer."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProgramError(f"{path}: expected an integer, found {_kind(value)}")
    return value


def parse_hex(text: str, path: str) -> int:
    """Return the value of a possibly negative hexadecimal string, with or without 0x."""
    try:
        return int(text, 16)
    except ValueError:
        raise ProgramError(f"{path}: {text!r} is not a hexadecimal number") from None


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
