# SPDX-License-Identifier: Apache-2.0
"""bmv2 answers the packets of docs/walkthrough.md as the page says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsum_controlplane.devices.bmv2 import Bmv2Device

from ...switch.programs import bmv2

ROOT = Path(__file__).resolve().parents[3]

if str(ROOT / "tools") not in sys.path:
    sys.path.insert(0, str(ROOT / "tools"))

from walkthrough_parts import packet_lines  # noqa: E402
from walkthrough_run import all_reduce, install, run  # noqa: E402

pytestmark = pytest.mark.skipif(bmv2.unavailable() is not None, reason=str(bmv2.unavailable()))


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[bmv2.Bmv2]:
    with bmv2.running(tmp_path) as running:
        yield running


def test_the_answers_are_those_of_the_page(switch: bmv2.Bmv2) -> None:
    with Bmv2Device(switch.address, bmv2.DEVICE_ID) as device:
        job = install(device)
        ranges, updates, _, means = all_reduce(job, switch.process)
    walk = run()
    assert job == walk.job
    assert (ranges, updates) == (walk.ranges, walk.updates)
    assert means.tobytes() == walk.means.tobytes()
    page = (ROOT / "docs" / "walkthrough.md").read_text()
    assert "\n".join(packet_lines(updates[0].frame)) in page
    result = packet_lines(updates[3].out[0][1])
    assert result[-1] in page.splitlines(), "the lanes of the RESULT"
