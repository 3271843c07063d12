# SPDX-License-Identifier: Apache-2.0
"""The limits of a switch for jobs: operations that its program lacks, and what its target cannot bear."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hopsum_controlplane.devices.base import Device
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.jobs import JobSpec
from hopsum_wire import Op, down_bytes, up_bytes

_INSTEAD: Final = {
    Op.LOOKUP_ADD8: "use a codec without a lookup table",
    Op.LOOKUP_ADD16: "leave table16 out",
    Op.LOOKUP_ADD6: "leave table6 out: take the codec without result_bits=6",
}


def validate_capabilities(device: Device, spec: JobSpec) -> None:
    """Raise ControlPlaneError when a job like this can never be on the switch, however much room there is."""
    target = device.capabilities.target
    for op in spec.ops:
        if op not in device.capabilities.ops:
            raise _wrong(device, spec, f"the program of {target} has no {op.name}", _INSTEAD[op])
    if (spec.leaves or spec.parent is not None) and not device.program.trees:
        hint = "make a job of one switch, or use another target"
        raise _wrong(device, spec, f"the program of {target} knows no trees of switches", hint)
    _check_growth(device, spec)


def validate_lookups(device: Device, spec: JobSpec, others: Iterable[JobSpec]) -> None:
    """Raise ControlPlaneError when the job needs a lookup table, and the `others` here have taken all there are."""
    room, having = device.program.lookups, sum(other.table is not None for other in others)
    if spec.table is not None and having >= room:
        what = f"{having} jobs have lookup tables, and the program has room for {room}"
        raise _wrong(device, spec, what, "end one of them, or use a codec without a lookup table")


def _check_growth(device: Device, spec: JobSpec) -> None:
    """Refuse an operation whose result is more longer than its packet than the target can bear."""
    limit = device.capabilities.max_growth_bytes
    growth = down_bytes(Op.LOOKUP_ADD16) - up_bytes(Op.LOOKUP_ADD16)
    if spec.table16 is not None and limit is not None and growth > limit:
        raise _wrong(
            device,
            spec,
            f"LOOKUP_ADD16 lets a frame grow by {growth} bytes in the switch, "
            f"{device.capabilities.target} has room for {limit} more and would write over its own memory",
            "leave table16 out, or use another target",
        )


def _wrong(device: Device, spec: JobSpec, what: str, hint: str) -> ControlPlaneError:
    return ControlPlaneError(f"job {spec.name!r}: {what}", where=device.where, hint=hint)
