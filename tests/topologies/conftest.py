# SPDX-License-Identifier: Apache-2.0
"""What the topology tests need from the machine: said once, as skip reasons."""

from __future__ import annotations

import pytest

from hopsum_topologies import Namespace, TopologyError, bmv2_unavailable


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
