# SPDX-License-Identifier: Apache-2.0
"""A desk behind the service, and a token file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsum_controlplane.service.grpc_service import Service

from .desk import TOKEN, Desk, desk_service


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "HOPSUM_RANK", "HOPSUM_URL", "HOPSUM_CONFIG", "HOPSUM_TOKEN"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on machines behind one; no process listens at this one, so no call may go there."""
    for variable in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")


@pytest.fixture
def served(proxies: None) -> Iterator[tuple[Desk, Service]]:
    with desk_service() as found:
        yield found


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.token"
    path.write_text(TOKEN + "\n")
    return path
