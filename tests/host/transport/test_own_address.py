# SPDX-License-Identifier: Apache-2.0
"""An address that leaves its host is found while nothing comes, and said once."""

from __future__ import annotations

import logging

import pytest

from hopsum.transport import own_address
from hopsum.transport.own_address import AGAIN_S, SILENT_S, OwnAddress, is_own


def test_the_kernel_says_whose_an_address_is() -> None:
    assert is_own("127.0.0.1")
    assert is_own("127.9.9.9")
    assert not is_own("192.0.2.1")


def test_it_is_said_once_after_some_silence(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    here = True
    monkeypatch.setattr(own_address, "is_own", lambda _: here)
    caplog.set_level(logging.WARNING)
    own, other_shard = (OwnAddress("192.0.2.1", "rank 1") for _ in range(2))
    here = False
    assert not own.is_found_gone(7, 100.0)
    assert not own.is_found_gone(7, 100.0 + SILENT_S - 0.1)
    assert own.is_found_gone(7, 100.0 + SILENT_S)
    assert not own.is_found_gone(7, 100.1 + SILENT_S), "it does not look at every step"
    assert own.is_found_gone(7, 100.0 + SILENT_S + AGAIN_S)
    assert not other_shard.is_found_gone(7, 100.0)
    assert other_shard.is_found_gone(7, 100.0 + SILENT_S)
    assert len(caplog.messages) == 1
    assert "192.0.2.1 is no longer an address of this host" in caplog.text
    here = True
    assert not own.is_found_gone(7, 200.0)
    assert not other_shard.is_found_gone(7, 200.0)
    assert len(caplog.messages) == 2
    assert "is an address of this host again" in caplog.messages[-1]
    assert not own.is_found_gone(8, 300.0), "what comes proves the address"


def test_an_address_of_another_namespace_is_not_looked_for(caplog: pytest.LogCaptureFixture) -> None:
    own = OwnAddress("192.0.2.1", "rank 1")
    assert not own.is_found_gone(7, 100.0)
    assert not own.is_found_gone(7, 100.0 + 2 * SILENT_S)
    assert not caplog.messages
