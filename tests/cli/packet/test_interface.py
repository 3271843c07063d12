# SPDX-License-Identifier: Apache-2.0
"""`hopsum packet send --interface`: whole frames over a veth pair to the embedded switch, which records them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from scapy.layers.inet import ICMP
from scapy.layers.l2 import ARP, Ether
from scapy.utils import rdpcap

from hopsum_cli.packet.captured_packets import read_capture
from hopsum_cli.packet.packet_command import main
from hopsum_controlplane import JobSpec, SwitchController, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_topologies import Namespace, NativeSwitch
from hopsum_wire import HOPSUM_UDP_PORT
from hopsum_wire.scapy import Hopsum

from ...switch.server.controller import wait_until
from ...topologies.conftest import namespaces

__all__ = ["namespaces"]
pytestmark = [pytest.mark.system, pytest.mark.usefixtures("namespaces")]

SWITCH = SwitchEndpoint("02:00:00:00:00:fe", "10.0.0.254")
PATIENCE = ["--answers", "1", "--wait", "60"]


class Bed(NamedTuple):
    """A worker's namespace, whose eth0 is port 1 of a switch with a job of one worker."""

    worker: Namespace
    generation: int
    capture: Path


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    program, p4info = compiled_program()
    with ExitStack() as stack:
        worker, middle = (stack.enter_context(Namespace()) for _ in range(2))
        worker.add_veth("eth0", "s1", middle, mtu_bytes=1500)
        worker.ip("addr", "add", "10.0.0.1/24", "dev", "eth0")
        extra = "--pcap", str(tmp_path)
        interfaces = {1: "s1"}
        switch = NativeSwitch(program, p4info, interfaces=interfaces, namespace=middle, grpc="unix", extra=extra)
        stack.enter_context(switch)
        device = stack.enter_context(NativeDevice(switch.address, switch.device_id))
        device.set_pipeline_config(PipelineConfig.load(program, p4info))
        mac = json.loads(worker.ip("-j", "link", "show", "dev", "eth0"))[0]["address"]
        member = WorkerEndpoint(0, 1, mac, "10.0.0.1", 5001)
        job = SwitchController(device, SWITCH).create_job(JobSpec("byhand", (member,), 8))
        yield Bed(worker, job.generation, tmp_path / "port1.pcapng")


def test_the_capture_of_an_interface_port(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    fields = [f"generation={bed.generation}", "slot=2", f"dst_ip={SWITCH.ip}"]
    with bed.worker.inside():
        assert main(["send", *fields, "--interface", "eth0", *PATIENCE]) == 0
    shown = capsys.readouterr().out
    assert "###[ Ethernet ]###" in shown
    assert f"src       = {SWITCH.mac}" in shown
    wait_until(lambda: len(read_capture(bed.capture, HOPSUM_UDP_PORT).packets) == 2)  # recorded when it has left
    packets = rdpcap(str(bed.capture))
    assert {type(packet) for packet in packets} == {Ether}
    assert {packet[ARP].op for packet in packets if ARP in packet} == {1, 2}  # the kernel asks too
    assert sum(Hopsum in packet and ICMP not in packet for packet in packets) == 2
    assert main(["decode", str(bed.capture), "--json"]) == 0
    packets = json.loads(capsys.readouterr().out)["packets"]
    assert [packet["kind"] for packet in packets] == ["UPDATE", "RESULT"]


def test_what_an_interface_needs_is_said(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    with bed.worker.inside():
        for fields, message in (
            (["slot=2"], "--interface needs dst_ip="),
            (["dst_ip=10.0.0.77"], "no host on eth0 answers ARP for 10.0.0.77"),
            (["dst_ip=10.0.0.254", "src_port=0"], "src_port=0: a UDP port is 1..65535"),
        ):
            assert main(["send", *fields, "--interface", "eth0", "--wait", "0.1"]) == 1
            assert message in capsys.readouterr().err
        bed.worker.ip("addr", "flush", "dev", "eth0")
        assert main(["send", "dst_ip=10.0.0.254", "--interface", "eth0"]) == 1
        assert "has no IPv4 address: give src_ip=" in capsys.readouterr().err
