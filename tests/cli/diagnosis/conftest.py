# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the host library's tests: the checks look at agents on loopback and on veth pairs."""

from __future__ import annotations

from ...host.conftest import _bare_environment, namespaces

__all__ = ["_bare_environment", "namespaces"]
