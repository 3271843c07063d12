# SPDX-License-Identifier: Apache-2.0
"""What the tests over veth pairs need from the machine."""

from __future__ import annotations

from ...topologies.conftest import namespaces

__all__ = ["namespaces"]
