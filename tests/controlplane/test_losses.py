# SPDX-License-Identifier: Apache-2.0
"""The loss simulator as the controller sets it, on a switch in memory that knows the program's names."""

from __future__ import annotations

import pytest

from hopsum_controlplane import ControlPlaneError, SwitchController, SwitchEndpoint
from hopsum_controlplane.p4info import P4Info
from hopsum_ptf.fake_device import FakeDevice

INGRESS, EGRESS = "ingress_loss.loss", "egress_loss.loss"


@pytest.fixture
def device(p4info: P4Info) -> FakeDevice:
    return FakeDevice(p4info)


@pytest.fixture
def controller(device: FakeDevice, switch_endpoint: SwitchEndpoint) -> SwitchController:
    return SwitchController(device, switch_endpoint)


def installed_entries(device: FakeDevice) -> dict[tuple[str, int], int]:
    entries = (*device.read_table(INGRESS), *device.read_table(EGRESS))
    return {(entry.table, entry.match["port"]): entry.params["threshold"] for entry in entries}


def test_off_until_it_is_set(device: FakeDevice, controller: SwitchController) -> None:
    assert installed_entries(device) == {}
    assert controller.loss_counters() == {}


def test_both_directions_of_several_ports(device: FakeDevice, controller: SwitchController) -> None:
    controller.set_loss(3, 0.5, 0.25)
    controller.set_loss(4, egress_probability=1)
    assert installed_entries(device) == {(INGRESS, 3): 2**31, (EGRESS, 3): 2**30, (EGRESS, 4): 2**32 - 1}
    controller.set_loss(3, 0.25, 0)
    assert installed_entries(device) == {(INGRESS, 3): 2**30, (EGRESS, 4): 2**32 - 1}
    controller.set_loss(3)
    assert installed_entries(device) == {(EGRESS, 4): 2**32 - 1}
    controller.set_loss(5, 0.5, 0.5)
    controller.clear_losses()
    assert installed_entries(device) == {}


def test_what_stands_is_not_written_again(device: FakeDevice, controller: SwitchController) -> None:
    controller.set_loss(3, 0.5, 0.25)
    written = device.updates
    controller.set_loss(3, 0.5, 0.25)
    controller.set_loss(9)
    assert device.updates == written
    controller.clear_losses()
    written = device.updates
    controller.clear_losses()
    assert device.updates == written


def test_a_later_controller_finds_and_replaces_it(
    device: FakeDevice, controller: SwitchController, switch_endpoint: SwitchEndpoint
) -> None:
    controller.set_loss(3, 0.5)
    SwitchController(device, switch_endpoint).set_loss(3, 0.25)
    assert installed_entries(device) == {(INGRESS, 3): 2**30}


def test_a_wrong_request_writes_nothing(device: FakeDevice, controller: SwitchController) -> None:
    controller.set_loss(3, 0.5)
    before = installed_entries(device)
    for port, ingress, egress in ((3, 0.1, 1.5), (3, -0.5, 0.1), (511, 0.1, 0.1)):
        with pytest.raises(ControlPlaneError, match="loss"):
            controller.set_loss(port, ingress, egress)
    assert installed_entries(device) == before


def test_lost_frames_by_port_and_direction(device: FakeDevice, controller: SwitchController) -> None:
    device.counters["ingress_loss.lost"] = {0: 4, 7: 1}
    device.counters["egress_loss.lost"] = {7: 2, 511: 3}
    lost = controller.loss_counters()
    assert lost == {0: (4, 0), 7: (1, 2), 511: (0, 3)}
    assert lost[7].egress == 2
