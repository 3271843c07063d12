# SPDX-License-Identifier: Apache-2.0
"""Settings that all ranks of a job need to have in common, as texts that they compare."""

from __future__ import annotations

import contextlib
import hashlib
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from hopsum.config import Config

MAX_TEXT: Final = 200
"""Characters of a value that are told. A longer one is told by its beginning and a digest."""


def shared_settings(config: Config) -> dict[str, str]:
    """Return the settings that have to be the same on all ranks, and this hopsum's version, as ASCII texts by name."""
    options = ", ".join(f"{name}={value!r}" for name, value in sorted(config.codec_options.items()))
    return {
        "codec": _told(f"{config.codec}({options})"),
        "seed": str(config.seed),
        "on_nonfinite": config.on_nonfinite,
        "overlap": str(config.overlap).lower(),
        "version": _told(hopsum_version()),
    }


def facts_of(settings: dict[str, str]) -> str:
    """Say in one line what has to be the same on all ranks."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def hopsum_version() -> str:
    """Return the version of the installed hopsum, "unknown" for one that is not installed."""
    with contextlib.suppress(PackageNotFoundError):
        return version("hopsum")
    return "unknown"


def _told(text: str) -> str:
    plain = ascii(text)[1:-1]
    if len(plain) <= MAX_TEXT:
        return plain
    digest = hashlib.sha256(plain.encode()).hexdigest()[:16]
    return f"{plain[: MAX_TEXT - 60]}... ({len(plain)} characters, SHA-256 {digest})"
