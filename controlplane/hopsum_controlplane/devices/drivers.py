# SPDX-License-Identifier: Apache-2.0
"""The drivers by name, imported when one is opened."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hopsum_controlplane.devices.device import CONTROLLER_ELECTION_ID, Device, PipelineConfig
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.switch_tls import SwitchTls

DRIVERS = ("native", "bmv2", "tofino")
"""The names of all drivers."""


def check_driver(driver: str) -> None:
    """Raise ControlPlaneError when there is no driver of this name."""
    if driver not in DRIVERS:
        near = difflib.get_close_matches(driver, DRIVERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see whether another driver speaks to this switch"
        raise ControlPlaneError(f"no driver {driver!r} among {', '.join(DRIVERS)}", hint=hint)


def check_target(driver: str, device_id: int, program: Path | None, set_up: bool = False) -> None:
    """Raise ControlPlaneError unless the driver exists, and takes these options.

    Driver `tofino` needs a `program`, the compiler's .conf file, and a `device_id` of 0 or more. The other drivers take
    no program, and no loop ports or speeds of ports, for which `set_up` is True. No file is read.
    """
    check_driver(driver)
    if driver != "tofino":
        if program is not None:
            raise ControlPlaneError(f"program {program} for driver {driver!r}", hint="leave it out: it has one")
        if set_up:
            raise ControlPlaneError(f"loop_ports or speed_gbps for driver {driver!r}", hint="leave them out")
        return
    if program is None:
        raise ControlPlaneError(f"driver {driver!r} without a program", hint="give the compiler's .conf file")
    if device_id < 0:
        raise ControlPlaneError(f"device id {device_id}", hint="the first chip of a switch is 0")


def load_pipeline(
    program: Path,
    ports: Iterable[int] = (),
    *,
    loop_ports: tuple[int, ...] = (),
    speeds_gbps: Mapping[int, int] | None = None,
    switch: str = "",
) -> PipelineConfig:
    """Read the program of a Tofino switch from its compiler's files, and add the set-up of its ports.

    Logs a warning if front ports can bring more than the loop ports carry.

    Args:
        program: the compiler's .conf file.
        ports: device ports at which workers and other switches are.
        loop_ports: device ports that packets pass again. Left out: the chip's first one.
        speeds_gbps: speed by front port that the driver brings up. Other ports are the operator's.
        switch: name in the warning.

    Raises ControlPlaneError, also when the program cannot serve one of `ports`, loop through one of `loop_ports`, or a
    port has no such speed.
    """
    from hopsum_controlplane.devices import tofino

    return tofino.add_port_setup(tofino.load_program(program), ports, loop_ports, speeds_gbps or {}, switch)


def open_device(
    driver: str,
    address: str,
    device_id: int = 0,
    *,
    election_id: tuple[int, int] = CONTROLLER_ELECTION_ID,
    connect_timeout_s: float = 10.0,
    rpc_timeout_s: float = 10.0,
    owner: int = 0,
    tls: SwitchTls | None = None,
) -> Device:
    """Open the switch whose server is at `address` (HOST:PORT), as the client that may write.

    Of two controllers the one with the higher `election_id`, 64 bits each, is the primary. Of the sessions of one
    `owner`, 32 bits, with the low word 0, it is the last one. Driver `tofino` has no election. Without `tls` the
    session is unencrypted.

    Raises ControlPlaneError: no such driver. SessionLostError: no server within `connect_timeout_s`. NotPrimaryError:
    another client is primary.
    """
    check_driver(driver)
    return _device_class(driver)(
        address,
        device_id,
        election_id=election_id,
        connect_timeout_s=connect_timeout_s,
        rpc_timeout_s=rpc_timeout_s,
        owner=owner,
        tls=tls,
    )


def _device_class(driver: str) -> Callable[..., Device]:
    # Each driver is imported when it is opened: gRPC and P4Runtime's bindings take a second.
    if driver == "native":
        from hopsum_controlplane.devices.native import NativeDevice

        return NativeDevice
    if driver == "bmv2":
        from hopsum_controlplane.devices.bmv2 import Bmv2Device

        return Bmv2Device
    from hopsum_controlplane.devices.tofino import TofinoDevice

    return TofinoDevice
