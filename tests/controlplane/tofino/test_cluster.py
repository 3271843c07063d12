# SPDX-License-Identifier: Apache-2.0
"""A cluster with a switch of the tofino driver: what it is to run, and what its workers are told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster import Pending, device_factories, pipelines
from hopsum_controlplane.devices.base import PipelineConfig
from hopsum_controlplane.devices.tofino import load_program
from hopsum_wire import Op
from hopsum_wire.membership import parse_membership

from ..cluster.world import Cluster, switch_config
from .stratum import DEVICE_ID, Stratum

OURS = PipelineConfig(b"{}", "")


def test_each_switch_has_its_program(tmp_path: Path, conf: Path) -> None:
    chip = replace(switch_config(2), driver="tofino", device_id=DEVICE_ID, program=conf)
    cluster = Cluster(tmp_path, (switch_config(1), chip), {})
    assert pipelines(cluster.config, OURS) == {"s1": OURS, "s2": load_program(conf)}
    missing = replace(chip, program=tmp_path / "none.conf")
    with pytest.raises(ControlPlaneError, match=r"none\.conf: cannot be read"):
        pipelines(replace(cluster.config, switches=(missing,)), OURS)


def test_workers_are_told_the_group_of_codes(tmp_path: Path, conf: Path, chip: Stratum) -> None:
    """A controller finds an empty chip, pushes the program, and makes a job there."""
    switch = replace(switch_config(1), driver="tofino", device_id=DEVICE_ID, program=conf, address=chip.address)
    cluster = Cluster(tmp_path, (switch,), {})
    programs = pipelines(cluster.config, OURS)
    cluster.devices = device_factories(cluster.config, programs)  # type: ignore[assignment]
    cluster.start(pipeline=programs)
    try:
        assert len(chip.configs) == 1
        crew = cluster.make("job")
        for worker in crew:
            worker.join(mac=f"02:00:00:00:01:{worker.rank:02x}")
        document = crew[0].membership()
        assert not isinstance(document, Pending)
        told = parse_membership(json.dumps(document))
        assert told.code_group == 4, "a word in ingress, one in egress"
        assert told.ops == frozenset(Op) - {Op.ADD16, Op.LOOKUP_ADD16, Op.LOOKUP_ADD6}
        cluster.start(pipeline=programs)
        assert cluster.controller.job("job").generation == document["generation"], "the next controller goes on with it"
    finally:
        cluster.controller.close()
        cluster.stop()
