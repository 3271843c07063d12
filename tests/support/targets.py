# SPDX-License-Identifier: Apache-2.0
"""Skips, with the reason, where a network or a switch cannot run on this machine."""

from __future__ import annotations

import pytest

from hopsum_topologies import Namespace, TopologyError, bmv2_unavailable
from hopsum_topologies.mininet_network import mininet_unavailable


def require_namespaces() -> None:
    """Skip where network namespaces cannot be made."""
    try:
        with Namespace():
            pass
    except TopologyError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")


def require_network(target: str) -> None:
    """Skip where this target cannot run in network namespaces: native, bmv2 or mininet."""
    reasons = {"bmv2": bmv2_unavailable, "mininet": mininet_unavailable}
    if target not in reasons:
        require_namespaces()
    elif (reason := reasons[target]()) is not None:
        pytest.skip(reason)
