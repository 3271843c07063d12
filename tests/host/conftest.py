# SPDX-License-Identifier: Apache-2.0
"""Fixtures of several folders: the environment, and the requirements of tests over veth pairs."""

from __future__ import annotations

import pytest

from ..topologies.conftest import namespaces

__all__ = ["namespaces"]


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what a shell or a launcher around the tests says of a job."""
    for variable in ("RANK", "HOPSUM_RANK", "HOPSUM_URL", "HOPSUM_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
