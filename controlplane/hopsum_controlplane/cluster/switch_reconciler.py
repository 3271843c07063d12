# SPDX-License-Identifier: Apache-2.0
"""One switch of the cluster: brings it to the state that the database wants.

    no controller   compare the program, adopt the jobs of the database; a switch that restarted has lost its jobs
    ready           allot a generation, write it into the database, then on the switch; then the job runs
    in turn         one thing for each job that wants something, then again, for a bounded number of passes
    over, deleted   remove the entries, confirm, then the database
    trees           a reconciler does its part of a job over several switches when the database says that it is next
    audit           entries that others changed are repaired; the generation of a job that lost entries ends first (E1)
    probe           between audits: a switch that restarted, or was given another program, has lost all its jobs
    forward         layer-2 forwarding for its workers' other frames, see `forwarding`

Every step can be interrupted: the database says which entries may be on the switch, and the next attempt continues
from there. After an error that leaves an unknown part, the switch's controller is forgotten, and made anew from the
database. Where a switch does not run the program, its generations end before the program is pushed: their workers
need not wait for the push.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from hopsum_controlplane.audit import Audit, ForeignGeneration
from hopsum_controlplane.cluster import lifecycle
from hopsum_controlplane.cluster.cluster_config import LinkConfig, SwitchConfig
from hopsum_controlplane.cluster.forwarding import L2Forwarding
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.membership_builder import Limits, Parts
from hopsum_controlplane.cluster.records import JobRecord, JobState
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_controlplane.entries import Entity
from hopsum_controlplane.errors import (
    ControlPlaneError,
    ForeignEntriesError,
    PipelineMismatchError,
    StoreError,
    SwitchStateLostError,
    WriteError,
    condition_reason,
)
from hopsum_controlplane.job_spec import Job, JobSpec
from hopsum_controlplane.resource_allocator import GenerationAllocator
from hopsum_controlplane.switch_controller import SwitchController

FREE: Final = 4
SHORT_S: Final = 10.0
LONGEST_S: Final = 16.0


class _Begun(NamedTuple):
    at_s: float
    short_ones: int
    """The number of short ones in a row before it."""

    @property
    def next_s(self) -> float:
        """Return when the next one may begin."""
        if self.short_ones < FREE:
            return self.at_s
        return self.at_s + min(2.0 ** min(self.short_ones - FREE, 16), LONGEST_S)


class Pace:
    """The pace of the generations of one switch's jobs, by name: at once, unless the last ones were short.

    A job whose workers come and go keeps its switch busy, and uses up generations, which must not run ahead of the
    clock. After FREE short generations in a row the next one begins 1 s after the last one began, then 2 s, at most
    LONGEST_S. A generation that lasts SHORT_S ends the row. Only in memory, and not thread-safe. `monotonic` gives
    seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._begun: dict[str, _Begun] = {}

    def begun(self, job: str) -> None:
        """Note that a generation begins."""
        now_s, last = self._monotonic(), self._begun.get(job)
        # From when it could have begun: the pause itself does not make a generation long.
        short = last is not None and now_s < last.next_s + SHORT_S
        self._begun[job] = _Begun(now_s, last.short_ones + 1 if last is not None and short else 0)

    def due(self, job: str) -> bool:
        """Return whether the next generation may begin."""
        last = self._begun.get(job)
        return last is None or self._monotonic() >= last.next_s

    def condition(self, job: str) -> str:
        """Return why the next generation does not begin, an empty string if it may."""
        last = self._begun.get(job)
        if last is None or self.due(job):
            return ""
        return (
            f"its last {last.short_ones} generations were shorter than {SHORT_S:g} s; the next one begins in "
            f"{last.next_s - self._monotonic():.0f} s"
        )

    def keep_only(self, jobs: Collection[str]) -> None:
        """Forget other jobs."""
        self._begun = {job: last for job, last in self._begun.items() if job in jobs}


_FIRST_S, _LONGEST_S = 1.0, 30.0
_UNREACHABLE = "unreachable"


class _Failure(NamedTuple):
    condition: str
    kind: str
    delay_s: float
    again_s: float
    times: int


class Backoff:
    """The last failures of a switch, by job; None is the switch itself. `monotonic` gives seconds.

    The wait before another try is 1 s, then twice as long each time, at most 30 s. A switch that does not answer is
    asked every second: its workers wait, and the question costs little.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._failures: dict[str | None, _Failure] = {}

    def failed(self, error: Exception, part: str | None = None) -> float:
        """Note a failure, and return in how many seconds to try again."""
        last, kind = self._failures.get(part), condition_reason(error)
        # A switch that does not answer costs a packet a second; a refusal is expensive, and is asked for ever more
        # seldom.
        delay_s = _FIRST_S if last is None or kind == _UNREACHABLE else min(2 * last.delay_s, _LONGEST_S)
        times = 1 + (0 if last is None or last.kind != kind else last.times)
        self._failures[part] = _Failure(str(error), kind, delay_s, self._monotonic() + delay_s, times)
        return delay_s

    def should_log(self, part: str | None = None) -> bool:
        """Return whether a failure is the first, second, fourth, eighth... of its kind in a row."""
        failure = self._failures.get(part)
        # A power of two: the log of a failure that stays grows by its logarithm.
        return failure is not None and failure.times & (failure.times - 1) == 0

    def succeeded(self, part: str | None = None) -> None:
        """Forget a failure, if there was one."""
        self._failures.pop(part, None)

    def due(self, part: str | None = None) -> bool:
        """Whether the pause after the last failed attempt has passed."""
        failure = self._failures.get(part)
        return failure is None or self._monotonic() >= failure.again_s

    def condition(self, part: str | None = None) -> str:
        """Return the last failure in words, an empty string when there is none."""
        failure = self._failures.get(part)
        return "" if failure is None else failure.condition

    def kind(self, part: str | None = None) -> str:
        """Return the last failure's kind, see `condition_reason`, an empty string when there is none."""
        failure = self._failures.get(part)
        return "" if failure is None else failure.kind


_log = logging.getLogger(__name__)

DeviceSource = Device | Callable[[], Device]
"""A switch, or what opens a session with it: then it need not answer when the controller starts."""

PROBE_S = 1.0
"""The time between two questions to a switch which program it runs. With them a restart is noticed."""
_PASSES = 4
"""The number of passes through all jobs before the next question to the switch."""
_PATIENCE_S = 1.0
"""The wait for a busy switch, before its counters are left out of an answer."""

MayRemove = Callable[[str, Sequence[str]], bool]


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
    pipeline: the program that the switch must run; it is pushed where none runs. None for whatever runs.
    may_remove: asked once, with the switch's name and a list in words, before foreign entries or another program are
        taken off the switch. Without it nothing is removed: foreign generations that the switch serves stay, and
        `foreign` has them.
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
        self.audits = 0
        self.entries_repaired = 0
        self.findings: tuple[str, ...] = ()
        self._connect = device
        self._device: Device | None = None
        self._forwarding: L2Forwarding | None = None
        self._sessions = 0
        self._cache = cache
        self._reconcile_interval_s = reconcile_interval_s
        self._ready, self._parts, self._links = ready, parts, links
        self._clock = clock
        self._monotonic = monotonic
        self._pipeline = pipeline
        self._may_remove = may_remove
        self.foreign: tuple[ForeignGeneration, ...] = ()
        """Foreign generations that the switch serves, about which no operator has decided yet."""
        self._condemned: frozenset[tuple[object, ...]] = frozenset()
        """Keys of entries that are to go: by a decision, or because they came while this process served the switch."""
        self._lock = threading.Lock()
        self._backoff = Backoff(monotonic)
        self._pace = Pace(monotonic)
        self._served = ""
        """The job that something was done for last."""
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

    @property
    def sessions(self) -> int:
        """Return how many sessions with the switch there have been, 0 where that is not counted."""
        return self._device.sessions if isinstance(self._device, ReconnectingDevice) else 0

    @property
    def limits(self) -> Limits:
        """Return the limits that the switch declares, or the defaults before it was first reached."""
        if self._device is None:
            return Limits()
        can = self._device.capabilities
        return Limits(can.max_window, self._device.program.code_group, can.ops)

    def can_try(self, job: str) -> bool:
        """Return whether the switch answers, and has not refused this job too short ago."""
        return self.controller is not None and self._backoff.due(job)

    def job_condition(self, job: str) -> str:
        """Return why the switch does not do what a job wants, an empty string when it does."""
        return self.condition or self._backoff.condition(job)

    def pause(self, job: str) -> str:
        """Return why the switch does not begin the next generation of a ready job, an empty string if it does."""
        return self._pace.condition(job)

    def refusal(self, spec: JobSpec) -> str:
        """Return why a job like this cannot go on this switch, however much room there is, or an empty string."""
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
        """Do what is to be done, unless a failure was too short ago. `urgent` is a job for which it is not.

        Without `wait` return at once when another thread is at it: what it does not see, the next call does. What
        fails is logged, told by `condition`, and tried again later.
        """
        # One thread at a time is at work on a switch: P4Runtime sessions and EntryTransaction are not thread-safe.
        if not self._lock.acquire(blocking=wait):
            return
        try:
            if urgent is not None:
                # A deletion is tried at once, though something failed a moment ago.
                self._backoff.succeeded()
                self._backoff.succeeded(urgent)
            if self._backoff.due():
                self._reconcile()
        finally:
            self._lock.release()

    def close(self) -> None:
        """Hang up. What stands on the switch stays."""
        with self._lock:
            # What the switch has now is unknown: the controller is made anew from the database. A database that
            # cannot be written says nothing of the switch.
            self.controller = None
            if self._device is not None:
                self._device.close()

    def counters(self, job: Job) -> Mapping[str, int]:
        """Read what the switch did with a job's packets, or nothing when it cannot say soon, or the job is over."""
        return self._look(lambda controller: controller.job_counters(job) if _has(controller, job) else {})

    def drops(self) -> Mapping[str, int]:
        """Read how many packets the switch dropped, by reason, or nothing when it cannot say soon."""
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
            # A restarted switch has no entries: its jobs are over (rule E1), and it is set up again in the same pass.
            except SwitchStateLostError as error:  # what is to be done about it is known, and urgent
                _log.warning("switch %s: %s", self.config.name, error, extra={"switch": self.config.name})
                self.controller = None
                self._reconcile_once()
        except ControlPlaneError as error:
            self._failed(error)
        else:
            self._backoff.succeeded()

    def _reconcile_once(self) -> None:
        if self.controller is not None and self._monotonic() >= self._probe_at_s:
            self._probe()
        controller = self.controller or self._take_over()
        # Between two sessions anybody may have written the switch: each new session begins with an audit.
        before, self._sessions = self._sessions, self.sessions
        is_due = self._reconcile_interval_s > 0 and self._monotonic() >= self._audit_at_s
        if is_due or before != self._sessions:
            self._audit(controller)
        # Before the generation: its members fetch results from each other through the switch as soon as they are
        # told.
        self._forward()
        # Bounded, so that jobs that begin and end all the time do not keep the probe and the audit away.
        for _ in range(_PASSES):
            if not self._serve_all(controller):
                break

    def _probe(self) -> None:
        """Raise SwitchStateLostError when the switch does not run our program any more."""
        self._probe_at_s = self._monotonic() + PROBE_S
        if self._pipeline is not None and self._open().cookie() != self._pipeline.cookie:
            raise SwitchStateLostError("it does not run our program any more", where=self._open().where)

    def _failed(self, error: ControlPlaneError) -> None:
        delay_s = self._backoff.failed(error)
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
        if not self._backoff.due(record.name):
            return False
        if record.leftover(self.config.name) is not None:
            return True
        if self.config.name not in record.next_switches:
            return False
        return not record.ready or (self._pace.due(record.name) and self._ready(record))

    def _work(self, controller: SwitchController, record: JobRecord) -> None:
        try:
            if (left := record.leftover(self.config.name)) is not None:
                self._clear(controller, left)
            elif record.ready:
                self._begin(controller, record)
            elif record.state is JobState.INSTALLING:
                self._write(controller, record)
            else:
                self._remove(controller, record)
        except WriteError as error:
            # A write without an answer: the switch may have applied any part of it.
            if not error.failures:
                raise
            self._backoff.failed(error, record.name)
            # The entry that is in the way may be another client's: an audit finds out.
            self._audit_at_s = self._monotonic()
            _log.error("job %s: %s", record.name, error, extra={"job": record.name, "switch": self.config.name})
        else:
            self._backoff.succeeded(record.name)

    def _forward(self) -> None:
        """Let the switch forward to all members that have joined by now, where it is to."""
        if self._forwarding is not None:
            self._forwarding.sync(self._cache.records(self.config.name))

    def _begin(self, controller: SwitchController, record: JobRecord) -> None:
        self._forward()

        # The generation is on disk before the first entry is written: after a crash the database says what may be on
        # the switch.
        def begin(now: JobRecord) -> JobRecord:
            now = lifecycle.evict_laggards(now)
            if not now.ready:
                return now
            return lifecycle.start_generation(now, *self._parts(now, self._cache.allot_generation(self._clock())))

        begun = self._cache.apply(record.name, begin, missing_ok=True)
        # A worker may have left, or the job been deleted, since `record` was read.
        if begun is not None and begun.state is JobState.INSTALLING:
            self._pace.begun(record.name)
            self._write(controller, begun)

    def _write(self, controller: SwitchController, record: JobRecord) -> None:
        """Write this switch's part, unless it stands already. A generation that cannot be written is over."""
        job, name = record.parts[self.config.name], self.config.name
        # A crash between the write and the next step leaves the entries complete: they are adopted, and only the step
        # is missing.
        actual = {made.generation: made for made in controller.jobs if made not in controller.ending}
        made = actual.get(job.generation)
        if made is None:
            self._forward()
            try:
                made = controller.create_job(
                    job.spec, job_index=job.job_index, region=job.region, generation=job.generation
                )
            except ControlPlaneError as error:
                # Rule E1: entries of a generation are written once. After a failure the next try has another
                # generation.
                self._over(job, f"switch {name} did not take it: {error}")
                if not _has(controller, job):
                    self._gone(job)
                raise
        confirmed = made
        self._if_current(
            job, lambda now: lifecycle.on_installed(now, confirmed, name) if now.state is JobState.INSTALLING else now
        )

    def _remove(self, controller: SwitchController, record: JobRecord) -> None:
        job = record.parts[self.config.name]
        # Only when the switch has confirmed the removal does the database free the slots (rule S1).
        if _has(controller, job):
            controller.delete_job(job)
        self._gone(job)

    def _clear(self, controller: SwitchController, job: Job) -> None:
        """Remove what is left of a job that has moved away."""
        if _has(controller, job):
            controller.delete_job(job)
        self._cache.apply(job.spec.name, lambda record: lifecycle.on_cleared(record, self.config.name), missing_ok=True)

    def _gone(self, job: Job) -> None:
        """Note that nothing of a generation stands here, if it is time for that: a spine notes it after its leaves."""
        name = self.config.name
        self._if_current(
            job, lambda now: lifecycle.on_removed(now, name) if name in now.next_switches and not now.ready else now
        )

    def _over(self, job: Job, reason: str) -> None:
        self._if_current(job, lambda record: lifecycle.end_generation(record, reason))

    def _if_current(self, job: Job, step: Callable[[JobRecord], JobRecord | None]) -> None:
        """Take a step of a job if it still has this generation."""
        self._cache.apply(
            job.spec.name,
            # The record may have gone on since: a step for an older generation must not touch a newer one.
            lambda record: step(record) if record.generation == job.generation else record,
            missing_ok=True,
        )

    def _take_over(self) -> SwitchController:
        device = self._open()
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
        # What the database says runs here, and the switch has lost, is over by rule E1.
        for adoption in controller.adoptions.values():
            if adoption.lost:
                self._over(adoption.job, f"switch {name} does not have it any more: {adoption.reason}")
        for record in self._cache.records(name):
            # Nobody was told of a generation in INSTALLING: ending it costs no worker anything.
            if record.state is JobState.INSTALLING and name in record.parts:
                self._over(record.parts[name], "the controller was interrupted while it was written")
        self._tell("took off", controller.taken_over.removed)
        self.controller = controller
        self._forwarding = L2Forwarding(self.config, device, self._links) if self.config.l2_forwarding else None
        self._audit_at_s = self._monotonic() + self._reconcile_interval_s
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
                what = "switch %s: the database does not have %s; it goes on until somebody decides"
                _log.warning(what, name, kept, extra={"switch": name, "generation": kept.generation})

    def _open(self) -> Device:
        if self._device is None:
            self._device = self._connect if isinstance(self._connect, Device) else self._connect()
        return self._device

    def _check_program(self, device: Device) -> None:
        if self._pipeline is None:
            return
        cookie = device.cookie()
        if cookie == self._pipeline.cookie:
            return
        name, found = self.config.name, "another program" if cookie is not None else "no program"
        for record in self._cache.records(name):
            if name in record.parts:
                # Jobs end before the push: their workers need not wait until the switch is set up again.
                self._over(record.parts[name], f"switch {name} does not have it any more: it runs {found}")
        if cookie is not None and not self._asked([f"a program with cookie {cookie:#x}, and all that stands there"]):
            raise PipelineMismatchError(
                f"it runs a program with cookie {cookie:#x}, not ours with {self._pipeline.cookie:#x}",
                where=device.where,
                hint="stop what uses it, or let the controller remove it, which ends what runs there",
            )
        device.set_pipeline_config(self._pipeline)
        if cookie is not None:
            what = "switch %s: took off a program with cookie %#x, and all that stood there; pushed ours"
            _log.warning(what, name, cookie, extra={"switch": name})

    def _audit(self, controller: SwitchController) -> None:
        if self._forwarding is not None:
            self._forwarding.invalidate()
        audit = controller.audit()
        self._note_foreign(controller.foreign)
        self.audits += 1
        self._audit_at_s = self._monotonic() + self._reconcile_interval_s
        if not audit.clean:
            self._repair(controller, audit)

    def _repair(self, controller: SwitchController, audit: Audit) -> None:
        self.findings = tuple(audit.in_words())
        for line in _first(self.findings):
            _log.warning("switch %s: %s", self.config.name, line, extra={"switch": self.config.name})
        for finding in audit.findings:
            if finding.lost:
                # The database first: the workers of the lost job hear of it before its entries are removed.
                self._over(finding.job, f"switch {self.config.name} lost entries: {finding}")
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


def _has(controller: SwitchController, job: Job) -> bool:
    """Return whether something of the job's generation stands, or may."""
    return any(job.generation == known.generation for known in controller.jobs)
