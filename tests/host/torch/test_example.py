# SPDX-License-Identifier: Apache-2.0
"""The examples run under torchrun unchanged, learn, and end with the same parameters on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from . import embedded
from .job import serve_job

pytestmark = pytest.mark.system


def run(example: str, folder: Path, steps: int) -> list[dict[str, Any]]:
    """Run an example with two ranks and return the figures of both."""
    path = folder / "membership.json"
    with serve_job(path, 2) as switch:
        figures = torchrun(example, "--membership", str(path), "--steps", str(steps))
    assert not switch.aggregator.drops
    return figures


def torchrun(example: str, *arguments: str) -> list[dict[str, Any]]:
    figures, _ = embedded.torchrun(embedded.EXAMPLES / example, *arguments, ranks=2)
    assert figures[0]["parameters_sha256"] == figures[1]["parameters_sha256"]
    for rank in figures:
        assert rank["loss_first"] > 2
        assert rank["loss_last"] < 0.8
        assert rank["accuracy"] > 0.7
    return figures


def test_ddp(tmp_path: Path) -> None:
    for rank in run("ddp_digits.py", tmp_path, steps=100):
        # A loaded machine sends again what is late. Such a datagram is no larger than the mean of all others twice.
        repeated = 2 * rank["retransmits"] * rank["bytes_up"] / rank["packets_up"]
        assert rank["fp32_bytes"] / (rank["bytes_up"] - repeated) > 6
        assert rank["uncompressed_bytes"] == 100 * 4 * (256 + 64 + 10)


def test_mixed_precision(tmp_path: Path) -> None:
    for rank in run("amp_digits.py", tmp_path, steps=100):
        assert rank["steps_skipped"] > 2, "the loss scale was never too high: the example shows nothing"
        assert rank["scale"] == 2.0**24 / 2 ** rank["steps_skipped"]
        assert rank["skipped"] == rank["steps_skipped"] - 2, "two steps were not compressed"


@pytest.mark.parametrize("example", ["ddp_digits.py", "amp_digits.py", "diloco_digits.py"])
def test_without_options_the_ranks_start_a_switch(example: str) -> None:
    torchrun(example)
