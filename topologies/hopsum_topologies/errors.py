# SPDX-License-Identifier: Apache-2.0
"""The error of this package."""

from __future__ import annotations


class TopologyError(RuntimeError):
    """A namespace, an interface or a process could not be set up. Everything that was set up is removed."""
