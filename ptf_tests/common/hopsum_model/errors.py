# SPDX-License-Identifier: Apache-2.0
"""The exception of this package."""

from __future__ import annotations


class ModelError(Exception):
    """The harness said something unexpected, ended, or cannot do what was asked."""
