# SPDX-License-Identifier: Apache-2.0
"""What the topology tests need from the machine: said once, as skip reasons."""

from __future__ import annotations

import pytest

from hopsum_topologies import Namespace, TopologyError, bmv2_unavailable
from hopsum_topologies.mininet_network import mininet_unavailable


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skip where network namespaces cannot be made."""
    try:
        with Namespace():
            pass
    except TopologyError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")


@pytest.fixture(scope="session")
def bmv2() -> None:
    """Skip where bmv2 cannot run."""
    reason = bmv2_unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def mininet() -> None:
    """Skip where Mininet with bmv2 cannot run."""
    reason = mininet_unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def target(request: pytest.FixtureRequest) -> str:
    """Return a target of `hopsum topology run`, a parameter; skip where it cannot run."""
    name: str = request.param
    request.getfixturevalue({"native": "namespaces"}.get(name, name))
    return name
