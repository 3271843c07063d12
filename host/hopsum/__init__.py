# SPDX-License-Identifier: Apache-2.0
"""Sum compressed gradients in the network.

    with hopsum.connect("hosts://") as comm:  # under torchrun
        mean = hopsum.allreduce(gradient, comm)

Import subpackages by name. This module loads none of them, so that a training process loads only the packages that it
uses. `connect`, `allreduce` and `disconnect` are loaded at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hopsum_base import __version__

if TYPE_CHECKING:
    from hopsum.api import allreduce, disconnect
    from hopsum.connection import connect

__all__ = ["__version__", "allreduce", "connect", "disconnect"]

_HOMES: Final = {"allreduce": "hopsum.api", "connect": "hopsum.connection", "disconnect": "hopsum.api"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
