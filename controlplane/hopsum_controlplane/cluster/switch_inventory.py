# SPDX-License-Identifier: Apache-2.0
"""What is on one switch: which program, which jobs of the database, and which entries of others.

Where a switch does not run the program, its generations end before the program is pushed: their workers need not wait
for the push. A switch that restarted has lost its jobs (rule E1). Entries that others changed are repaired. The
generation of a job that lost entries ends first. Nothing here decides when to look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from hopsum_controlplane.audit import Audit, ForeignGeneration
from hopsum_controlplane.cluster.cluster_config import SwitchConfig
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.membership_builder import Limits
from hopsum_controlplane.cluster.records import JobState
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_controlplane.entries import Entity
from hopsum_controlplane.errors import ForeignEntriesError, PipelineMismatchError, SwitchStateLostError
from hopsum_controlplane.job_spec import Job
from hopsum_controlplane.resource_allocator import GenerationAllocator
from hopsum_controlplane.switch_controller import SwitchController

DeviceSource = Device | Callable[[], Device]
"""A switch, or what opens a session with it: then it need not answer when the controller starts."""
MayRemove = Callable[[str, Sequence[str]], bool]
"""Decides, given a switch's name and a list in words, whether these may be removed from the switch."""
_log: Final = logging.getLogger(__name__)


class SwitchInventory:
    """Takes a switch over, and compares it with the database. Not thread-safe, but for reading its attributes.

    Args:
        config: of the switch.
        device: the switch, or a function that opens a session with it.
        cache: the database.
        clock: unix seconds, for generations.
        pipeline: the program that the switch must run; it is pushed where none runs. None for whatever runs.
        may_remove: asked once, with the switch's name and a list in words, before foreign entries or another program
            are taken off the switch. Without it nothing is removed: foreign generations that the switch serves stay,
            and `foreign` has them.
        on_lost: called with the job and the reason for a generation that the switch has lost, before anything is
            removed.
    """

    def __init__(
        self,
        config: SwitchConfig,
        device: DeviceSource,
        cache: JobStateCache,
        *,
        clock: Callable[[], float],
        pipeline: PipelineConfig | None,
        may_remove: MayRemove | None,
        on_lost: Callable[[Job, str], None],
    ) -> None:
        self.config = config
        self.foreign: tuple[ForeignGeneration, ...] = ()
        """Foreign generations that the switch serves, about which no operator has decided yet."""
        self.audits = 0
        """The number of audits so far."""
        self.entries_repaired = 0
        """The number of entries that audits removed or restored so far."""
        self.findings: tuple[str, ...] = ()
        """Of the last audit that found something, in words."""
        self._connect, self._cache = device, cache
        self._device: Device | None = None
        self._clock, self._pipeline, self._may_remove, self._on_lost = clock, pipeline, may_remove, on_lost
        self._condemned: frozenset[tuple[object, ...]] = frozenset()
        """Keys of entries that are to go: by a decision, or because they came while this process served the switch."""

    @property
    def sessions(self) -> int:
        """Return the number of sessions with the switch so far, 0 if the device is no ReconnectingDevice."""
        return self._device.sessions if isinstance(self._device, ReconnectingDevice) else 0

    @property
    def limits(self) -> Limits:
        """Return the limits that the switch declares, or the defaults before it was first reached."""
        if self._device is None:
            return Limits()
        can = self._device.capabilities
        return Limits(can.max_window, self._device.program.code_group, can.ops)

    def open_device(self) -> Device:
        """Open a session with the switch unless there is one, and return the switch. Raises ControlPlaneError."""
        if self._device is None:
            self._device = self._connect if isinstance(self._connect, Device) else self._connect()
        return self._device

    def close(self) -> None:
        """End the session with the switch, if there is one. The entries on the switch stay."""
        if self._device is not None:
            self._device.close()

    def require_program(self) -> None:
        """Ask the switch for its program. Raises SwitchStateLostError when it does not run ours any more.

        Without a program that the switch must run, nothing is asked. Raises ControlPlaneError without an answer.
        """
        if self._pipeline is None:
            return
        device = self.open_device()
        if device.read_cookie() != self._pipeline.cookie:
            raise SwitchStateLostError("it does not run our program any more", where=device.where)

    def take_over(self) -> SwitchController:
        """Push the program if needed, adopt the jobs of the database, and end the generations that the switch has lost.

        Returns a new controller of the switch. Entries that `may_remove` permits are removed, and foreign generations
        are kept in `foreign`. Raises ControlPlaneError when other foreign entries or another program are there without
        that permission, or the switch does not answer.
        """
        device = self.open_device()
        self._check_program(device)
        generations, name = GenerationAllocator(), self.config.name
        try:
            controller = self._made(device, generations)
            unwanted = [entity for kept in controller.foreign for entity in kept.entities]
        except ForeignEntriesError as error:
            unwanted = list(error.entities)
            if not self._asked([str(entity) for entity in unwanted]):
                raise
            self._condemned |= {entity.key() for entity in unwanted}
            controller = self._made(device, generations)
        else:
            words = [*map(str, controller.foreign), *map(str, unwanted)]
            if unwanted and self._asked(words):
                self._condemned |= {entity.key() for entity in unwanted}
                controller = self._made(device, generations)
        self._condemned = frozenset()
        self._note_foreign(controller.foreign)
        self._cache.observe_generation(generations.last)
        # What the database says runs here, and the switch has lost, has ended by rule E1.
        for adoption in controller.adoptions.values():
            if adoption.lost:
                self._on_lost(adoption.job, f"switch {name} does not have it any more: {adoption.reason}")
        for record in self._cache.records(name):
            # Nobody was told of a generation in INSTALLING: ending it costs no worker anything.
            if record.state is JobState.INSTALLING and name in record.parts:
                self._on_lost(record.parts[name], "the controller was interrupted while it was written")
        self._tell("took off", controller.taken_over.removed)
        _log.info("switch %s: %d jobs adopted", self.config.name, len(controller.jobs))
        return controller

    def _made(self, device: Device, generations: GenerationAllocator) -> SwitchController:
        name = self.config.name
        return SwitchController(
            device,
            self.config.endpoint,
            generations=generations,
            clock=self._clock,
            keep_existing=True,
            removable=self._condemned,
            # Where a job has moved away, its entries may still be here: they are removed as a leftover.
            adopt=[
                job
                for record in self._cache.records(name)
                if (job := record.parts.get(name) or record.leftover(name)) is not None
            ],
            slots=self.config.slots,
        )

    def _asked(self, what: Sequence[str]) -> bool:
        """Return whether these may be taken off the switch. The question is asked once."""
        # The operator is asked once for each start: a switch that comes back must not ask at an unattended terminal.
        ask, self._may_remove = self._may_remove, None
        return ask is not None and ask(self.config.name, what)

    def _note_foreign(self, foreign: tuple[ForeignGeneration, ...]) -> None:
        """Remember which foreign generations are kept, and log those that are new."""
        name, known = self.config.name, [kept.generation for kept in self.foreign]
        self.foreign = foreign
        for kept in foreign:
            if kept.generation not in known:
                what = "switch %s: the database does not have %s; it continues until an operator decides"
                _log.warning(what, name, kept, extra={"switch": name, "generation": kept.generation})

    def _check_program(self, device: Device) -> None:
        if self._pipeline is None:
            return
        cookie = device.read_cookie()
        if cookie == self._pipeline.cookie:
            return
        name, found = self.config.name, "another program" if cookie is not None else "no program"
        for record in self._cache.records(name):
            if name in record.parts:
                # Jobs end before the push: their workers need not wait until the switch is set up again.
                self._on_lost(record.parts[name], f"switch {name} does not have it any more: it runs {found}")
        if cookie is not None and not self._asked([f"a program with cookie {cookie:#x}, and all of its entries"]):
            raise PipelineMismatchError(
                f"it runs a program with cookie {cookie:#x}, not ours with {self._pipeline.cookie:#x}",
                where=device.where,
                hint="stop what uses it, or let the controller remove it, which ends what runs there",
            )
        device.set_pipeline_config(self._pipeline)
        if cookie is not None:
            what = "switch %s: took off a program with cookie %#x, and all its entries; pushed ours"
            _log.warning(what, name, cookie, extra={"switch": name})

    def audit(self, controller: SwitchController) -> None:
        """Compare the switch's entries with those of the database's jobs, and repair entries that others changed.

        A job that lacks entries ends first, by `on_lost`, and its entries are removed. Counts the audit and the
        repaired entries, updates `foreign` and `findings`, and logs differences. Raises ControlPlaneError if the switch
        fails.
        """
        audit = controller.audit()
        self._note_foreign(controller.foreign)
        self.audits += 1
        if not audit.clean:
            self._repair(controller, audit)

    def _repair(self, controller: SwitchController, audit: Audit) -> None:
        self.findings = tuple(audit.in_words())
        for line in _first(self.findings):
            _log.warning("switch %s: %s", self.config.name, line, extra={"switch": self.config.name})
        for finding in audit.findings:
            if finding.lost:
                # The database first: the workers of the lost job hear of it before its entries are removed.
                self._on_lost(finding.job, f"switch {self.config.name} lost entries: {finding}")
        self._condemned = frozenset(entity.key() for entity in audit.foreign)
        repair = controller.repair(audit)
        self._condemned = frozenset()
        self._tell("took off", repair.removed)
        self._tell("wrote again", repair.restored)
        self.entries_repaired += len(repair.removed) + len(repair.restored)

    def _tell(self, what: str, entities: Sequence[Entity]) -> None:
        """Log what was done with entries that others had changed: so many, and the first few."""
        if entities:
            text = "; ".join(_first([str(entity) for entity in entities]))
            count, details = len(entities), {"switch": self.config.name, "entries": len(entities)}
            _log.warning("switch %s: %s %d entries: %s", self.config.name, what, count, text, extra=details)


def _first(lines: Sequence[str], most: int = 5) -> list[str]:
    """Return the first lines, and how many more there are."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return [*lines[:most], *more]
