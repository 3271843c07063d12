# SPDX-License-Identifier: Apache-2.0
"""Checksums: verified after the parser, updated before the deparser."""

from __future__ import annotations

from ..program.ir import ChecksumIR
from .calculations import Calculations
from .expressions import ExpressionWriter, compile_condition
from .packet import PacketState, ValueLayout, store


class Checksum:
    """One checksum field."""

    def __init__(self, ir: ChecksumIR, layout: ValueLayout, calculations: Calculations) -> None:
        self._target = ir.target
        self._valid = layout.valid(ir.header)
        self._compute = calculations.function(ir.calculation)
        writer = ExpressionWriter(layout)
        self._condition = None if ir.condition is None else compile_condition(ir.condition, writer, ir.name)

    def verify(self, packet: PacketState) -> bool:
        """Return true where the field is correct, its header is invalid, or its condition does not hold."""
        values = packet.values
        if not values[self._valid] or not self._applies(values):
            return True
        return self._compute(packet) == values[self._target.slot]

    def update(self, packet: PacketState) -> None:
        """Set the field, if the condition is met."""
        if self._applies(packet.values):
            store(packet.values, self._target, self._compute(packet))

    def _applies(self, values: list[int]) -> bool:
        return self._condition is None or bool(self._condition(values))
