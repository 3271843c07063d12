# SPDX-License-Identifier: Apache-2.0
"""Epochs: rising, never twice, also over restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum_controlplane.epochs import MAX_EPOCH, EpochAllocator
from hopsum_controlplane.errors import ControlPlaneError

NOW = 1_700_000_000


def test_an_epoch_is_above_the_clock_and_the_last() -> None:
    epochs = EpochAllocator()
    assert epochs.allot(NOW + 0.9) == NOW + 1
    assert epochs.allot(NOW) == NOW + 2
    assert epochs.allot(NOW + 100) == NOW + 101


@settings(derandomize=True)
@given(st.lists(st.integers(0, MAX_EPOCH // 2)))
def test_epochs_rise_whatever_the_clock_does(clock: list[int]) -> None:
    epochs = EpochAllocator()
    allotted = [epochs.allot(now) for now in clock]
    assert all(epoch > 0 for epoch in allotted)
    assert allotted == sorted(set(allotted))


def test_an_observed_epoch_is_taken() -> None:
    epochs = EpochAllocator()
    epochs.observe(NOW + 50)
    assert epochs.allot(NOW) == NOW + 51
    epochs.observe(3)
    assert epochs.last == NOW + 51


def test_the_file_outlives_the_allocator(tmp_path: Path) -> None:
    path = tmp_path / "epoch"
    assert EpochAllocator(path).allot(NOW) == NOW + 1
    assert EpochAllocator(path).allot(5) == NOW + 2
    assert path.read_text() == f"{NOW + 2}\n"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_allotted_when_it_cannot_be_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    epochs = EpochAllocator(folder / "epoch")
    folder.rmdir()
    with pytest.raises(ControlPlaneError, match="cannot be recorded"):
        epochs.allot(NOW)
    assert epochs.last == 0


@pytest.mark.parametrize("text", ["", "x", "-1", "1 2", str(MAX_EPOCH + 1), "²"])
def test_a_file_without_an_epoch_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "epoch"
    path.write_text(text)
    with pytest.raises(ControlPlaneError, match="instead of a number"):
        EpochAllocator(path)


def test_the_last_epoch_is_the_last() -> None:
    epochs = EpochAllocator()
    epochs.observe(MAX_EPOCH - 1)
    assert epochs.allot(NOW) == MAX_EPOCH
    with pytest.raises(ControlPlaneError, match="does not fit 32 bits"):
        epochs.allot(NOW)
