# SPDX-License-Identifier: Apache-2.0
"""The needs of the topology tests, as skip reasons."""

from __future__ import annotations

import pytest

from ..support.targets import require_namespaces, require_network


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skip where network namespaces cannot be made."""
    require_namespaces()


@pytest.fixture(scope="session")
def bmv2() -> None:
    """Skip where bmv2 cannot run."""
    require_network("bmv2")


@pytest.fixture(scope="session")
def mininet() -> None:
    """Skip where Mininet with bmv2 cannot run."""
    require_network("mininet")


@pytest.fixture
def target(request: pytest.FixtureRequest) -> str:
    """Return a target of `hopsum topology run`, a parameter; skip where it cannot run."""
    name: str = request.param
    request.getfixturevalue({"native": "namespaces"}.get(name, name))
    return name
