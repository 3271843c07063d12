# SPDX-License-Identifier: Apache-2.0
"""A cluster with a switch of the tofino driver: what it is to run, and what its workers are told."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster import Pending, device_factories, pipelines
from hopsum_controlplane.devices.base import PipelineConfig
from hopsum_controlplane.devices.tofino import check_ports, load_program
from hopsum_wire import Op
from hopsum_wire.membership import parse_membership

from ..cluster.world import Cluster, switch_config
from .conftest import BUILD, make_build, of_one_word, p4info_of
from .stratum import DEVICE_ID, Stratum

OURS = PipelineConfig(b"{}", "")


def test_each_switch_has_its_program(tmp_path: Path, conf: Path) -> None:
    chip = replace(switch_config(2), driver="tofino", device_id=DEVICE_ID, program=conf)
    cluster = Cluster(tmp_path, (switch_config(1), chip), {})
    assert pipelines(cluster.config, OURS) == {"s1": OURS, "s2": load_program(conf)}
    missing = replace(chip, program=tmp_path / "none.conf")
    with pytest.raises(ControlPlaneError, match=r"none\.conf: cannot be read"):
        pipelines(replace(cluster.config, switches=(missing,)), OURS)


@pytest.mark.parametrize(
    ("arch", "port", "message"),
    [
        ("tofino", 68, "port 68 is one that the program loops through"),
        ("tofino", 452, "port 452 is one that the program loops through"),
        ("tofino2", 6, "port 6 is one that the program loops through"),
        ("tofino2", 384, "port 384 is one that the program loops through"),
    ],
)
def test_ports_that_the_program_cannot_serve(tmp_path: Path, arch: str, port: int, message: str) -> None:
    conf = make_build(tmp_path, of_one_word(p4info_of(arch)))
    networks = {1: "10.0.0.0/24", 132: "10.0.2.0/24", port: "10.0.1.0/24"}
    chip = replace(switch_config(1, networks), driver="tofino", device_id=DEVICE_ID, program=conf)
    cluster = Cluster(tmp_path, (chip,), {})
    with pytest.raises(ControlPlaneError, match=f"^switch 's1': {message}") as refused:
        pipelines(cluster.config, OURS)
    assert "front ports of any pipe" in str(refused.value.hint)


def test_the_loop_ports_are_those_of_the_program() -> None:
    source = (BUILD.parents[1] / "tna" / "target.p4").read_text()
    ports = {number for line in re.findall(r"LOOP_PORTS\(X\) (.*)", source) for number in re.findall(r"\d+", line)}
    refused = set()
    for arch in ("tna", "t2na"):
        for port in range(512):
            try:
                check_ports(PipelineConfig(b"", f'pkg_info {{\n  arch: "{arch}"\n}}'), [port])
            except ControlPlaneError:
                refused.add(str(port))
    assert refused == ports


def test_a_program_of_another_architecture() -> None:
    with pytest.raises(ControlPlaneError, match="P4Info of architecture 'v1model'"):
        check_ports(PipelineConfig(b"", 'pkg_info {\n  arch: "v1model"\n}'), [1])


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
