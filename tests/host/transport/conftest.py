# SPDX-License-Identifier: Apache-2.0
"""Requirements of the tests over veth pairs."""

from __future__ import annotations

from ...topologies.conftest import namespaces

__all__ = ["namespaces"]
