# SPDX-License-Identifier: Apache-2.0
"""One switch of the cluster: brings it to the state that the database wants.

    no controller   take the switch over (switch_inventory.py)
    ready           allot a generation, write it into the database, then on the switch; then the job runs
    in turn         one thing for each job that wants something, then again, for a bounded number of passes
    over, deleted   remove the entries, confirm, then the database (part_writer.py)
    trees           a reconciler does its part of a job over several switches when the database says that it is next
    audit           in intervals, and at each new session
    probe           between audits: a switch that restarted, or was given another program, has lost all its jobs

Here is the order of these, and which thread does them. After an error that leaves an unknown part, the switch's
controller is forgotten, and made anew from the database.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hopsum_controlplane.cluster.cluster_config import LinkConfig, SwitchConfig
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.membership_builder import Parts
from hopsum_controlplane.cluster.pacing import Backoff, Pace
from hopsum_controlplane.cluster.part_writer import PartWriter, has_generation
from hopsum_controlplane.cluster.records import JobRecord, JobState
from hopsum_controlplane.cluster.switch_inventory import DeviceSource, MayRemove, SwitchInventory
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.errors import ControlPlaneError, StoreError, SwitchStateLostError, WriteError
from hopsum_controlplane.job_spec import Job, JobSpec
from hopsum_controlplane.switch_controller import SwitchController

PROBE_S: Final = 1.0
"""The time between two questions to a switch which program it runs. With them a restart is noticed."""
_PASSES: Final = 4
"""The number of passes through all jobs before the next question to the switch."""
_PATIENCE_S: Final = 1.0
"""The wait for a busy switch, before its counters are left out of an answer."""
_log: Final = logging.getLogger(__name__)


class SwitchReconciler:
    """Brings one switch to the state that the database wants. Thread-safe: one thread at a time works on the switch.

    config: of the switch.
    device: the switch, or a function that opens a session with it.
    cache: the database.
    reconcile_interval_s: seconds between two audits, 0 for none.
    ready: says whether all switches of a job can take a generation.
    parts: gives the jobs of a generation, one for each switch of a job.
    links: of the cluster, for layer-2 forwarding.
    clock: unix seconds, for generations. monotonic: seconds that never go back.
    pipeline, may_remove: as in SwitchInventory.
    """

    def __init__(
        self,
        config: SwitchConfig,
        device: DeviceSource,
        cache: JobStateCache,
        *,
        reconcile_interval_s: float,
        ready: Callable[[JobRecord], bool],
        parts: Callable[[JobRecord, int], Parts],
        links: Sequence[LinkConfig],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        pipeline: PipelineConfig | None = None,
        may_remove: MayRemove | None = None,
    ) -> None:
        self.config = config
        self.controller: SwitchController | None = None
        """The switch as the database knows it. None: it has not answered yet, or an unknown part is there."""
        self._backoff, self._pace = Backoff(monotonic), Pace(monotonic)
        self._writer = PartWriter(
            config, cache, parts=parts, links=links, clock=clock, on_begun=self._pace.record_begin
        )
        self.inventory: Final = SwitchInventory(
            config,
            device,
            cache,
            clock=clock,
            pipeline=pipeline,
            may_remove=may_remove,
            on_lost=self._writer.end_generation,
        )
        """What is on the switch."""
        self._cache, self._ready, self._monotonic = cache, ready, monotonic
        self._reconcile_interval_s = reconcile_interval_s
        self._lock = threading.Lock()
        self._served = ""
        """The job that something was done for last."""
        self._sessions = 0
        self._audit_at_s = 0.0
        self._probe_at_s = 0.0

    @property
    def condition(self) -> str:
        """Return the switch's problem in words, an empty string when none is known."""
        return self._backoff.condition()

    @property
    def condition_reason(self) -> str:
        """Return the reason of the condition in one word, see `errors.condition_reason`, or an empty text for none."""
        return self._backoff.kind()

    def can_try(self, job: str) -> bool:
        """Return whether the switch is taken over, and no wait after a failure of this job is left."""
        return self.controller is not None and self._backoff.is_due(job)

    def job_condition(self, job: str) -> str:
        """Return why the switch does not do what a job wants, an empty string when it does."""
        return self.condition or self._backoff.condition(job)

    def pause_reason(self, job: str) -> str:
        """Return why the next generation of a ready job waits after short ones, an empty string if it does not."""
        return self._pace.condition(job)

    def refusal(self, spec: JobSpec) -> str:
        """Return why a job of this specification can never be on this switch, whatever is free, or an empty string.

        A switch that was not taken over is such a reason. Nothing is asked of the switch.
        """
        controller = self.controller
        if controller is None:
            return self.condition or "it has not answered yet"
        try:
            controller.check(spec)
        except ControlPlaneError as error:
            # With its remedy: the caller may have other switches, and says nothing of this one but these words.
            return f"{error.what} ({error.hint})" if error.hint else error.what
        return ""

    def reconcile(self, *, wait: bool = True, urgent: str | None = None) -> None:
        """Bring the switch to the state of the database: take it over, audit, write and remove entries, if work is due.

        Nothing is done in the pause after a failure of the switch. `urgent` is a job for which the pauses of the switch
        and of the job end now. Without `wait` return at once when another thread works on the switch. The call may take
        seconds. A failure is logged, is in `condition`, and is tried again later.
        """
        # One thread at a time is at work on a switch: P4Runtime sessions and EntryTransaction are not thread-safe.
        if not self._lock.acquire(blocking=wait):
            return
        try:
            if urgent is not None:
                # A deletion is tried at once, though something failed a moment ago.
                self._backoff.record_success()
                self._backoff.record_success(urgent)
            if self._backoff.is_due():
                self._reconcile()
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the session with the switch, after the work in progress. The entries on the switch stay."""
        with self._lock:
            # What the switch has now is unknown: the controller is made anew from the database. A database that
            # cannot be written says nothing of the switch.
            self.controller = None
            self.inventory.close()

    def read_counters(self, job: Job) -> Mapping[str, int]:
        """Read the counters of a job's packets from the switch, by event.

        Empty when the switch is busy for a second or does not answer, or has no entries of this generation.
        """
        return self._look(lambda controller: controller.job_counters(job) if has_generation(controller, job) else {})

    def read_drops(self) -> Mapping[str, int]:
        """Read the counters of dropped packets from the switch, by reason.

        Empty when the switch is busy for a second or does not answer.
        """
        return self._look(lambda controller: controller.drop_counters())

    def _look(self, read: Callable[[SwitchController], Mapping[str, int]]) -> Mapping[str, int]:
        # A read must not wait for a switch that does not answer: lists and metrics come without its counters then.
        if self.controller is None or not self._lock.acquire(timeout=_PATIENCE_S):
            return {}
        try:
            return {} if self.controller is None else read(self.controller)
        except ControlPlaneError as error:
            self._failed(error)
            return {}
        finally:
            self._lock.release()

    def _reconcile(self) -> None:
        try:
            try:
                self._reconcile_once()
            # A restarted switch has no entries: its jobs have ended (rule E1), and it is set up again in the same pass.
            except SwitchStateLostError as error:  # what is to be done about it is known, and urgent
                _log.warning("switch %s: %s", self.config.name, error, extra={"switch": self.config.name})
                self.controller = None
                self._reconcile_once()
        except ControlPlaneError as error:
            self._failed(error)
        else:
            self._backoff.record_success()

    def _reconcile_once(self) -> None:
        if self.controller is not None and self._monotonic() >= self._probe_at_s:
            self._probe_at_s = self._monotonic() + PROBE_S
            self.inventory.require_program()
        controller = self.controller or self._take_over()
        # Between two sessions anybody may have written the switch: each new session begins with an audit.
        before, self._sessions = self._sessions, self.inventory.sessions
        is_due = self._reconcile_interval_s > 0 and self._monotonic() >= self._audit_at_s
        is_audited = is_due or before != self._sessions
        if is_audited:
            self.inventory.audit(controller)
            self._audit_at_s = self._monotonic() + self._reconcile_interval_s
        # Before the generation: its members fetch results from each other through the switch as soon as they are
        # told.
        self._writer.write_forwarding(anew=is_audited)
        # Bounded, so that jobs that begin and end all the time do not keep the probe and the audit away.
        for _ in range(_PASSES):
            if not self._serve_all(controller):
                break

    def _take_over(self) -> SwitchController:
        self.controller = controller = self.inventory.take_over()
        self._writer.set_forwarding_device(self.inventory.open_device())
        self._audit_at_s = self._monotonic() + self._reconcile_interval_s
        return controller

    def _failed(self, error: ControlPlaneError) -> None:
        delay_s = self._backoff.record_failure(error)
        if not isinstance(error, StoreError):
            self.controller = None
        details = {"switch": self.config.name}
        if self._backoff.should_log():
            _log.error("switch %s: %s; next attempt in %g s", self.config.name, error, delay_s, extra=details)

    def _serve_all(self, controller: SwitchController) -> bool:
        """Do one thing for each job that wants something, in turn. Return whether there was any."""
        names = [record.name for record in self._cache.records(self.config.name)]
        self._pace.keep_only(names)
        # Begin behind the job that was served last: a busy job does not starve the ones behind it.
        after = bisect_right(names, self._served)
        served = False
        for name in names[after:] + names[:after]:
            record = self._cache.find(name)
            if record is not None and self._wants_something(record):
                self._served, served = name, True
                self._work(controller, record)
        return served

    def _wants_something(self, record: JobRecord) -> bool:
        if not self._backoff.is_due(record.name):
            return False
        if record.leftover(self.config.name) is not None:
            return True
        if self.config.name not in record.next_switches:
            return False
        return not record.ready or (self._pace.is_due(record.name) and self._ready(record))

    def _work(self, controller: SwitchController, record: JobRecord) -> None:
        try:
            if (left := record.leftover(self.config.name)) is not None:
                self._writer.remove_departed(controller, left)
            elif record.ready:
                self._writer.begin_generation(controller, record)
            elif record.state is JobState.INSTALLING:
                self._writer.write_part(controller, record)
            else:
                self._writer.remove_part(controller, record)
        except WriteError as error:
            # A write without an answer: the switch may have applied any part of it.
            if not error.failures:
                raise
            self._backoff.record_failure(error, record.name)
            # The entry that is in the way may be another client's: an audit finds out.
            self._audit_at_s = self._monotonic()
            _log.error("job %s: %s", record.name, error, extra={"job": record.name, "switch": self.config.name})
        else:
            self._backoff.record_success(record.name)
