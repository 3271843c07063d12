# SPDX-License-Identifier: Apache-2.0
"""A cluster with a switch of the tofino driver: what it is to run, and what its workers are told."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.bfruntime.chip import CHIPS, ChipSetup
from hopsum_controlplane.cluster import Pending, device_factories, load_pipelines
from hopsum_controlplane.cluster.cluster_config import LinkConfig
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.devices.tofino import TofinoPipeline, add_port_setup, chip_of, load_program
from hopsum_wire import Op
from hopsum_wire.membership import parse_membership

from ..cluster.world import Cluster, switch_config
from .bf_runtime import DEVICE_ID, BfRuntime
from .conftest import BUILD, make_build, of_one_word, p4info_of

OURS = PipelineConfig(b"{}", "")


def test_each_switch_has_its_program(tmp_path: Path, conf: Path) -> None:
    chip = replace(switch_config(2), driver="tofino", device_id=DEVICE_ID, program=conf)
    cluster = Cluster(tmp_path, (switch_config(1), chip), {})
    assert load_pipelines(cluster.config, OURS) == {"s1": OURS, "s2": add_port_setup(load_program(conf), [], (), {})}
    missing = replace(chip, program=tmp_path / "none.conf")
    with pytest.raises(ControlPlaneError, match=r"none\.conf: cannot be read"):
        load_pipelines(replace(cluster.config, switches=(missing,)), OURS)


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
    conf = make_build(tmp_path, of_one_word(p4info_of(arch)), arch)
    networks = {1: "10.0.0.0/24", 132: "10.0.2.0/24", port: "10.0.1.0/24"}
    chip = replace(switch_config(1, networks), driver="tofino", device_id=DEVICE_ID, program=conf)
    cluster = Cluster(tmp_path, (chip,), {})
    with pytest.raises(ControlPlaneError, match=f"^switch 's1': {message}") as refused:
        load_pipelines(cluster.config, OURS)
    assert "front ports of any pipe" in str(refused.value.hint)


def test_links_and_set_up_reach_the_program(tmp_path: Path, conf: Path) -> None:
    """A link at a loop port would carry what the switch forwards to the program's own port."""
    chip = replace(switch_config(2), driver="tofino", device_id=DEVICE_ID, program=conf, loop_ports=(196, 68))
    chip = replace(chip, ports=tuple(replace(rule, speed_gbps=25) for rule in chip.ports))
    cluster = Cluster(tmp_path, (switch_config(1), chip), {})
    linked = replace(cluster.config, links=(LinkConfig("s2", 196, "s1", 9),))
    with pytest.raises(ControlPlaneError, match=r"^switch 's2': port 196 is one that the program loops through"):
        load_pipelines(linked, OURS)
    found = load_pipelines(cluster.config, OURS)["s2"]
    assert isinstance(found, TofinoPipeline)
    assert found.setup == ChipSetup((196, 68), chip.speeds_gbps)
    assert set(chip.speeds_gbps.values()) == {25}


def test_the_loop_ports_are_those_of_the_program() -> None:
    source = (BUILD.parents[1] / "tna" / "target.p4").read_text()
    defaults = re.findall(r"LOOP = (\d+);", source)
    ports = [[int(number) for number in re.findall(r"X\((\d+)\)", line)] for line in source.splitlines()]
    assert [each for each in ports if each] == [list(CHIPS[arch].loop_gbps) for arch in ("t2na", "tna")]
    assert [int(number) for number in defaults] == [next(iter(CHIPS[arch].loop_gbps)) for arch in ("t2na", "tna")]


def test_a_program_of_another_architecture() -> None:
    with pytest.raises(ControlPlaneError, match="P4Info of architecture 'v1model'"):
        chip_of(PipelineConfig(b"", 'pkg_info {\n  arch: "v1model"\n}'))


def test_workers_are_told_the_group_of_codes(tmp_path: Path, conf: Path, chip: BfRuntime) -> None:
    """A controller finds an empty chip, pushes the program, and makes a job there."""
    switch = replace(switch_config(1), driver="tofino", device_id=DEVICE_ID, program=conf, address=chip.address)
    cluster = Cluster(tmp_path, (switch,), {})
    programs = load_pipelines(cluster.config, OURS)
    cluster.devices = device_factories(cluster.config, programs)  # type: ignore[assignment]
    cluster.start(pipeline=programs)
    try:
        assert len(chip.pushed) == 1
        crew = cluster.make("job")
        for worker in crew:
            worker.join(mac=f"02:00:00:00:01:{worker.rank:02x}")
        document = crew[0].membership()
        assert not isinstance(document, Pending)
        told = parse_membership(json.dumps(document))
        assert told.code_group == 4, "a word in ingress, one in egress"
        assert told.ops == {Op.LOOKUP_ADD8, Op.ADD8, Op.ADD32, Op.OR, Op.MAX32}
        cluster.start(pipeline=programs)
        assert cluster.controller.job("job").generation == document["generation"], "the next controller keeps it"
    finally:
        cluster.controller.close()
        cluster.stop()
