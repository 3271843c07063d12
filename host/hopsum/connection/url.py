# SPDX-License-Identifier: Apache-2.0
"""The parts of a URL of `connect`, and the errors of one that does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from hopsum.config import Config, ConfigError
from hopsum_base.linux import unsupported_reason
from hopsum_base.shown import name_hint

SCHEMES: Final = ("file", "hopsum", "raw", "memory", "collective", "hosts")


class UrlError(ConfigError):
    """A URL of no known kind, with wrong parts, or whose package is not installed. The message has a remedy."""


def split_url(config: Config) -> SplitResult:
    """Return the parts of the URL. Only scheme and port are checked.

    Raises UrlError for no URL, an unknown scheme, one that this system does not support, or a port outside hopsum://.
    """
    if not config.url:
        raise UrlError(f"no URL: pass one, or set HOPSUM_URL; {EXAMPLES}")
    try:
        parts = urlsplit(config.url)
        port = parts.port
    except ValueError as error:
        raise UrlError(f"URL {config.url!r}: {error}; {EXAMPLES}") from None
    if parts.scheme not in SCHEMES:
        told = f"{parts.scheme}:// sums nowhere" if parts.scheme else "has no scheme"
        raise UrlError(f"URL {config.url!r}: {told}; {name_hint(parts.scheme, SCHEMES)}. {EXAMPLES}")
    if parts.scheme != "memory" and (reason := unsupported_reason()):
        raise UrlError(f"URL {config.url!r}: {reason}")
    if parts.scheme != "hopsum" and port is not None:
        raise UrlError(f"URL {config.url!r}: {parts.scheme}:// takes no port")
    return parts


EXAMPLES: Final = (
    "for example file:///PATH/membership.json, "
    "hopsum://HOST:PORT/JOB?token_file=PATH, memory://NAME?workers=2, collective://gloo, hosts://"
)


def query_of(config: Config, parts: SplitResult, kinds: dict[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Return the parsed parameters of a URL's query, by name. Parameters that the URL lacks are left out.

    Args:
        kinds: the allowed parameters, each with the parser of its text, which raises ValueError. The parser's name,
            such as on_or_off, is in the error.

    Raises:
        UrlError: an unknown or repeated parameter, a text that its parser refuses, a fragment, or a user name.
    """
    if parts.fragment or parts.username is not None:
        raise UrlError(f"URL {config.url!r}: no fragment and no user name is meant here")
    found: dict[str, Any] = {}
    for key, text in parse_qsl(parts.query, keep_blank_values=True):
        if key not in kinds:
            there = (
                name_hint(key, kinds) if kinds else f"{parts.scheme}:// takes none; settings are arguments of connect"
            )
            raise UrlError(f"URL {config.url!r}: there is no parameter {key!r}; {there}")
        # The second value would win or lose silently.
        if key in found:
            raise UrlError(f"URL {config.url!r}: {key} twice")
        try:
            found[key] = kinds[key](text)
        except ValueError:
            raise UrlError(f"URL {config.url!r}: {key} is {text!r}, no {_words(kinds[key])}") from None
    return found


def _words(kind: Callable[[str], Any]) -> str:
    return kind.__name__.strip("_").replace("_", " ")


def on_or_off(text: str) -> bool:
    """Return True for "on" and False for "off". Raises ValueError for any other text."""
    if text not in ("on", "off"):
        raise ValueError(text)
    return text == "on"


def require_range(config: Config, key: str, value: float, low: float, high: float) -> None:
    """Raise UrlError for a parameter that is not in low .. high, both included."""
    if not low <= value <= high:
        raise UrlError(f"URL {config.url!r}: {key} is {value}, not {low} to {high}")
