# SPDX-License-Identifier: Apache-2.0
"""Random streams of several jobs through Intel's model with what the assembler wrote, against the oracle."""

from __future__ import annotations

import pytest
from tests.system.tna.bed import Bed, follow_one_by_one

from hopsum_model.chips import MODEL_CHIPS
from hopsum_ptf import control
from hopsum_ptf.model_device import model_unavailable, open_model


@pytest.mark.parametrize("target", MODEL_CHIPS)
def test_one_packet_after_the_other(target: str) -> None:
    chip = MODEL_CHIPS[target]
    if (reason := model_unavailable(chip)) is not None:
        pytest.skip(reason)
    device = open_model(chip)
    try:
        device.set_pipeline_config(control.load_pipeline(target))
        follow_one_by_one(Bed(chip.name, device=device))
    finally:
        device.close()
