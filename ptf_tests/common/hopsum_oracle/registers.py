# SPDX-License-Identifier: Apache-2.0
"""The registers of a switch: one set of cells per copy (slot, version), and the arithmetic on their lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum_oracle.decision import Copy, LaneAction
from hopsum_wire import LANE_GROUP_CODES, MAX_SLOTS, Op, unpack_codes
from hopsum_wire._layout import LANES_BYTES
from hopsum_wire.payload import lanes as lanes_of
from hopsum_wire.payload import shape_of

COPIES = 2 * MAX_SLOTS


class Registers:
    """All copies of a switch. They outlive jobs: nothing here is ever cleared."""

    def __init__(self) -> None:
        # As registers of a switch start: all 0. S2 makes such a copy empty for every other generation.
        self.copies: list[Copy] = [Copy()] * COPIES
        self.ops: list[int] = [0] * COPIES
        self.values: NDArray[np.uint8] = np.zeros((COPIES, LANES_BYTES), np.uint8)

    def apply(self, index: int, op: int, action: LaneAction, payload: NDArray[np.uint8]) -> None:
        """Write or add lanes (uint8[1024], already looked up) at copy `index`. With KEEP do nothing."""
        if action is LaneAction.WRITE:
            self.values[index] = payload
        elif action is LaneAction.ADD:
            combine(op, lanes_of(op, self.values[index]), lanes_of(op, payload))


def combine(op: int, held: NDArray[Any], arrived: NDArray[Any]) -> None:
    """Combine lanes into `held`, in place, as the op says: maximum, union of bits, or sums modulo the lane.

    No lane carries into another one.
    """
    if op == Op.MAX32:
        np.maximum(held, arrived, out=held)
    elif op == Op.OR:
        np.bitwise_or(held, arrived, out=held)
    else:
        # numpy wraps unsigned lanes as the P4 program does. The controller proves that tables do not reach that.
        np.add(held, arrived, out=held)


def look_up(
    op: int, table: Sequence[int], codes: NDArray[np.uint8], group: int = LANE_GROUP_CODES
) -> NDArray[np.uint8]:
    """Turn an UPDATE's payload of codes into the bytes of its lanes, uint8[1024].

    Codes of 4 bits are packed in groups of `group`. Negative values are in two's complement.
    """
    shape = shape_of(op)
    lanes = np.asarray(table).astype(shape.lane_dtype)
    values: NDArray[Any] = lanes[unpack_codes(codes, shape.lane_bits, group, bits=shape.code_bits)]
    return values.view(np.uint8)
