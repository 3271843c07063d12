# SPDX-License-Identifier: Apache-2.0
"""The switches that the data-plane cases run on: one table, which the command and the cases' process both read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final

from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.bmv2 import Bmv2Device
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_model.chips import MODEL_CHIPS, ModelChip
from hopsum_ptf.case_places import PORTS
from hopsum_ptf.model_device import model_target, model_unavailable, open_model
from hopsum_ptf.tna_device import dump_path, open_executed, p4info_path, tna_target
from hopsum_topologies import bmv2_unavailable
from hopsum_topologies.ptf.ptf_switches import SWITCHES, PtfTarget


@dataclass(frozen=True)
class CaseTarget:
    """A switch that the data-plane cases run on.

    start: a context manager that brings the switch up, and takes it down at the end.
    open_device: returns the connected driver, given address and device id. The switch of a target without a process
        starts here, in the process of the cases.
    load_pipeline: returns the compiled program of this tree for the target.
    unavailable: returns the reason why the target cannot run on this machine, or None.
    skips_allowed: True where a skipped case is no failure, because the target's program lacks something.
    """

    start: Callable[[], AbstractContextManager[PtfTarget]]
    open_device: Callable[[str, int], Device]
    load_pipeline: Callable[[], PipelineConfig]
    unavailable: Callable[[], str | None] = lambda: None
    skips_allowed: bool = True


def _v1model() -> PipelineConfig:
    return PipelineConfig.load(*compiled_program())


def _tna(chip: str) -> PipelineConfig:
    return PipelineConfig.load(dump_path(chip), p4info_path(chip))


def _model(name: str, chip: ModelChip) -> CaseTarget:
    return CaseTarget(
        partial(model_target, name), lambda *_: open_model(chip), partial(_tna, chip.name),
        partial(model_unavailable, chip),
    )  # fmt: skip


TARGETS: Final = {
    "native": CaseTarget(
        partial(SWITCHES["native"], compiled_program(), PORTS), NativeDevice, _v1model, skips_allowed=False
    ),
    "bmv2": CaseTarget(partial(SWITCHES["bmv2"], compiled_program(), PORTS), Bmv2Device, _v1model, bmv2_unavailable),
    "tna": CaseTarget(tna_target, lambda address, _: open_executed(address), partial(_tna, "tofino")),
    **{name: _model(name, chip) for name, chip in MODEL_CHIPS.items()},
}
"""Every target by its name, in the order of the table's columns."""
