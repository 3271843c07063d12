# SPDX-License-Identifier: Apache-2.0
"""Random streams of several jobs through Intel's model with what the assembler wrote, against the oracle."""

from __future__ import annotations

import pytest
from tests.system.tna.bed import Bed, follow_one_by_one

from hopsum_ptf import control
from hopsum_ptf.model import model_unavailable, open_model


@pytest.mark.skipif(model_unavailable() is not None, reason=str(model_unavailable()))
def test_one_packet_after_the_other() -> None:
    device = open_model("")
    try:
        device.set_pipeline_config(control.load_pipeline("tofino_model"))
        follow_one_by_one(Bed("tofino", device=device))
    finally:
        device.close()
