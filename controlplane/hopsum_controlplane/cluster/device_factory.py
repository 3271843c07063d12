# SPDX-License-Identifier: Apache-2.0
"""Sessions with the switches of a configuration, opened when they are wanted, and again when they were lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hopsum_controlplane.cluster.cluster_config import ClusterConfig, SwitchConfig
from hopsum_controlplane.cluster.switch_reconcilers import Registrable
from hopsum_controlplane.devices.base import Device, PipelineConfig
from hopsum_controlplane.devices.drivers import load_pipeline, open_device
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_controlplane.errors import ControlPlaneError


def pipelines(config: ClusterConfig, pipeline: PipelineConfig) -> dict[str, PipelineConfig]:
    """Return by switch name what it is to run: `pipeline`, or what its `program` says.

    Raises ControlPlaneError when a program cannot be read, or does not serve one of the switch's ports.
    """
    return {
        switch.name: pipeline if switch.program is None else _load(config, switch, switch.program)
        for switch in config.switches
    }


def _load(config: ClusterConfig, switch: SwitchConfig, program: Path) -> PipelineConfig:
    ends = [port for link in config.links for name, port in link.ends if name == switch.name]
    try:
        ports = [*(rule.port for rule in switch.ports), *ends]
        return load_pipeline(
            switch.driver,
            program,
            ports,
            loop_ports=switch.loop_ports,
            speeds_gbps=switch.speeds_gbps,
            switch=switch.name,
        )
    except ControlPlaneError as error:
        raise ControlPlaneError(f"switch {switch.name!r}: {error.what}", hint=error.hint) from error


def device_factories(
    config: ClusterConfig, pipeline: PipelineConfig | Mapping[str, PipelineConfig], *, owner: int = 0, **timeouts: float
) -> dict[str, Callable[[], Device]]:
    """Return by switch name what opens a session with it that comes back as long as the switch runs `pipeline`.

    `owner` and `timeouts` are those of `open_device`. Nothing is opened yet. Give the result to a
    ClusterController, and `pipeline` as well: one for all switches, or by name.
    """
    return {
        switch.name: _device_factory(
            switch, pipeline[switch.name] if isinstance(pipeline, Mapping) else pipeline, owner, timeouts
        )
        for switch in config.switches
    }


def registrable(pipeline: PipelineConfig, *, owner: int = 0, **timeouts: float) -> Registrable:
    """Return how switches are driven that register while a controller runs: all have `pipeline`."""
    return Registrable(lambda switch: _device_factory(switch, pipeline, owner, timeouts), pipeline)


def _device_factory(
    switch: SwitchConfig, pipeline: PipelineConfig, owner: int, timeouts: dict[str, float]
) -> Callable[[], Device]:
    def connect() -> Device:
        election_id = (switch.election_id, 0)
        return open_device(
            switch.driver,
            switch.address,
            switch.device_id,
            election_id=election_id,
            owner=owner,
            tls=switch.tls,
            **timeouts,
        )

    return lambda: ReconnectingDevice(connect, pipeline.cookie)
