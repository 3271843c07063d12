# SPDX-License-Identifier: Apache-2.0
"""The page, and the policy under which a browser runs it: its own style and script by their digests, nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from typing import Final, Self

_NAME: Final = "page.html"


@dataclass(frozen=True)
class Page:
    """The bytes of the page, and its content security policy."""

    body: bytes
    policy: str

    @classmethod
    def load(cls) -> Self:
        """Read it from the package: the same file in a wheel and in a source tree."""
        body = (resources.files(__package__) / _NAME).read_bytes()
        policy = {
            "default-src": "'none'",
            "style-src": _digest(body, b"style"),
            "script-src": _digest(body, b"script"),
            "connect-src": "'self'",
            "img-src": "data:",  # its icon, which is empty
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
        return cls(body, "; ".join(f"{name} {allowed}" for name, allowed in policy.items()))


def _digest(body: bytes, tag: bytes) -> str:
    """Return the source that allows the one element of this tag and no other. Raises ValueError unless there is one."""
    (text,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), body, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
