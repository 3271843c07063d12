# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on disk.

The cache holds code that will run in this process, so its folder and files must belong to the user and be
writable by nobody else. Other folders and files are ignored, and also files that are cut or changed. An unusable cache
costs a compilation, never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

_MAGIC = b"hopsum-switch-code-1\n"
_DIGEST_BYTES = 32


def default_folder() -> Path:
    """Return the user's cache folder for compiled programs."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hopsum-switch"


def default_cache() -> CodeCache | None:
    """Return the cache in the user's cache folder, or None where the user has no home."""
    try:
        return CodeCache(default_folder())
    except RuntimeError:
        return None


class CodeCache:
    """A cache of object files, keyed by their inputs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, key: Sequence[str]) -> bytes | None:
        """Return the code that was saved under a key, or None."""
        try:
            if not self._is_private(os.lstat(self._folder), stat.S_ISDIR):
                return None
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                if not self._is_private(os.fstat(descriptor), stat.S_ISREG):
                    return None
                content = file.read()
        except OSError:
            return None
        digest, code = content[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES], content[len(_MAGIC) + _DIGEST_BYTES :]
        if not content.startswith(_MAGIC) or not code or hashlib.sha256(code).digest() != digest:
            return None
        return code

    def save(self, key: Sequence[str], code: bytes) -> None:
        """Save code under a key, unless the folder cannot be trusted or written."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_private(os.lstat(self._folder), stat.S_ISDIR):
                return
            descriptor, name = tempfile.mkstemp(dir=self._folder)  # mode 0600
            try:
                with open(descriptor, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(code).digest() + code)
                os.replace(name, self._path(key))
            except OSError:
                os.unlink(name)
                raise

    def _path(self, key: Sequence[str]) -> Path:
        parts = b"".join(hashlib.sha256(part.encode()).digest() for part in key)
        return self._folder / f"{hashlib.sha256(parts).hexdigest()}.o"

    @staticmethod
    def _is_private(status: os.stat_result, is_kind: object) -> bool:
        assert callable(is_kind)
        mine = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return mine and bool(is_kind(status.st_mode))
