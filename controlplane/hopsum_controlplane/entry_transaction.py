# SPDX-License-Identifier: Apache-2.0
"""Entries that are installed together: written in steps, removed in the reverse order, with a memory of both.

Rules:
- a step is one batch. The next is written only when the switch has confirmed the one before.
- whatever was written, or may have been, is remembered until its removal is confirmed.
- an entry that is not there any more counts as removed.
- an entry that the switch refused is not ours: another client's entry has that key, and is never removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hopsum_controlplane.devices.device import Device
from hopsum_controlplane.entries import Delete, Entity, Insert
from hopsum_controlplane.errors import ControlPlaneError, WriteError

_GONE = "NOT_FOUND"


class EntryTransaction:
    """The entries of one owner on one device, in the steps in which they were written.

    steps: entries that are on the device already. Construction writes nothing.
    """

    def __init__(self, device: Device, steps: Iterable[Sequence[Entity]] = ()) -> None:
        self._device = device
        self._steps = [list(step) for step in steps]

    @property
    def remaining(self) -> int:
        """Return the number of entries installed, or possibly installed."""
        return sum(len(step) for step in self._steps)

    @property
    def entities(self) -> tuple[Entity, ...]:
        """Return the entries installed, or possibly installed after an ambiguous error, in write order."""
        return tuple(entity for step in self._steps for entity in step)

    def forget(self, gone: Iterable[Entity]) -> None:
        """Count entries as removed that an audit has not found on the switch. Nothing is written."""
        keys = {entity.key() for entity in gone}
        self._steps = [[entity for entity in step if entity.key() not in keys] for step in self._steps]

    def write(self, step: Sequence[Entity]) -> None:
        """Insert the entries of a step in one batch, and remember the entries. An empty step writes nothing.

        Raises as Device.write does. Then `remove` removes the entries that were installed nevertheless. Refused entries
        belong to another client, and are not remembered.
        """
        if not step:
            return
        # Before the write: a step whose write is interrupted must be removed too.
        self._steps.append(list(step))
        try:
            self._device.write([Insert(entity) for entity in step])
        except WriteError as error:
            # Refused entries are another client's and are never removed. Without an answer the whole batch may be
            # installed.
            self._steps[-1] = error.may_be_installed()
            raise
        except ControlPlaneError:  # nothing of it was applied
            # Nothing was sent, so nothing of the step is installed.
            self._steps.pop()
            raise

    def remove(self) -> None:
        """Delete all remembered entries from the device, the last step first, and forget them.

        An entry that is not there any more counts as removed. Raises as Device.write does. Then a repeated call
        continues with the entries that are left.
        """
        while self._steps:
            step = self._steps[-1]
            if step:
                self._remove_step(step)
            self._steps.pop()

    def _remove_step(self, step: list[Entity]) -> None:
        # The reverse order within the step, too: a group is removed after the entry that names it.
        batch = list(reversed(step))
        try:
            self._device.write([Delete(entity) for entity in batch])
        except WriteError as error:
            refused = [failure for failure in error.failures if failure.code != _GONE]
            # Every refusal was NOT_FOUND: the entries are gone already.
            if error.failures and not refused:
                return
            if refused:
                # The batch is applied but for its refusals: only these are tried again by the next call.
                self._steps[-1] = [failure.update.entity for failure in reversed(refused)]
            raise
