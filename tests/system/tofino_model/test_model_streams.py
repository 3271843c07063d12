# SPDX-License-Identifier: Apache-2.0
"""Random streams of several jobs through Intel's model with what the assembler wrote, against the oracle."""

from __future__ import annotations

import pytest
from tests.system.tna.bed import Bed, three_jobs

from hopsum_ptf import control
from hopsum_ptf.model import model_unavailable, open_model


@pytest.mark.skipif(model_unavailable() is not None, reason=str(model_unavailable()))
def test_one_packet_after_the_other() -> None:
    """Each packet alone in the switch: all replies are the oracle's, and so are the counters."""
    device = open_model("")
    try:
        device.set_pipeline_config(control.load_pipeline("tofino_model"))
        bed = Bed("tofino", device=device)
        kinds = set()
        for arrival in three_jobs(bed).take(150):
            sent = device.exchange(arrival.port, arrival.standard)
            (answered,) = bed.tell([arrival])
            assert sorted(map(tuple, sent)) == sorted(map(tuple, answered.expected)), arrival
            kinds.add(answered.outcome.events)
        assert len(kinds) >= 7, "too little happened"
        assert control.read_counters(device) == bed.told_counters()
    finally:
        device.close()
