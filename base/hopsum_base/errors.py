# SPDX-License-Identifier: Apache-2.0
"""The base of all errors of hopsum."""

from __future__ import annotations


class HopsumError(Exception):
    """Base of all errors that hopsum raises on its own account."""
