# SPDX-License-Identifier: Apache-2.0
"""The choice of the method that averages gradients: the first steps of a job try each of them, the fastest stays.

    codec           gradients travel whole, as the communicator's codec encodes them
    low rank R      matrices travel as factors of rank R, the rest as by the codec
    process group   torch's process group averages, in the gradients' own type

Times of whole steps decide, from the beginning of one to that of the next: computing that a method hides counts for
it. No link is modelled, so that what binds (a wire, a processor, a slow rank) counts as it does in this job.

    state       event                                                           then
    WAITING     a step begins, and some rank compiles its codec still           WAITING, by the first method
    WAITING     a step begins, and no rank compiles                             TRYING the first method
    TRYING      a step begins, and the method has all its steps, or is slow     TRYING the next method
    TRYING      the same for the last method                                    CHOSEN
    CHOSEN      steps wait for the network twice as long as before, or half     TRYING the first method
    CHOSEN      low rank delivers less of the gradients than it has to          TRYING the first method

Slow: two steps in succession took more than twice as long as a step of the best method so far.

Error. What a codec loses is known before (docs/codecs.md), and the user has chosen the codec. What factors of low rank
lose depends on the gradients: so low rank stays only where it delivers at least LEAST_DELIVERED of the energy of
gradient and residual in a step. Where it is the fastest so far, further steps measure that. All numbers are means over
the ranks, so that all ranks decide alike.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

from hopsum.compile_ahead import is_compiling
from hopsum.torch.step_times import COMPARE_VARIABLE, log_or_print

PROCESS_GROUP: Final = "process group"
"""The name of the method without hopsum."""
LOW_RANK: Final = "low rank {}"
"""The name of the method of factors, by their rank."""
SETTLING_STEPS: Final = 3
"""Steps of each method that are not counted: DDP builds its buckets, memory is touched for the first time."""
COUNTED_STEPS: Final = 5
MEASURED_STEPS: Final = 7
"""Steps in which low rank says how much of the energy it delivers: after those counted, and the last ones before a look
at the waits. Their median decides, since single steps differ by a factor of seven (docs/performance.md)."""
WATCHED_STEPS: Final = 100
"""Steps between two looks at how long steps wait. Doubled with every new trial, which costs steps."""
LEAST_DELIVERED: Final = 0.1
"""The least share of the energy of gradient and residual that low rank delivers in a step, or is left out: below those
of trainings that took as many steps as fp32, above that of gradients of no low rank (docs/performance.md)."""
_SLOW: Final = 2.0
_CHANGED: Final = 2.0
_LEAST_CHANGE: Final = 0.1
"""Share of a step: a smaller change of the time that steps wait for the network starts no trial."""
_log: Final = logging.getLogger(__name__)


class AveragingMethod(NamedTuple):
    """A method to average gradients."""

    name: str
    compresses: bool
    """False: the process group averages."""
    factors: bool = False
    """Matrices travel as factors of low rank."""
    least_delivered: float = 0.0
    """The least share of the energy of gradient and residual that a step delivers, else the method is left out."""


class MethodTime(NamedTuple):
    """The time of a method, the same on all ranks."""

    method: AveragingMethod
    step_s: float
    wait_s: float
    delivered: float
    """Share of the energy of gradient and residual that low rank delivers in a step. 1 where nobody measured it: for
    other methods, and for low rank that is slower than another method."""

    @property
    def is_safe(self) -> bool:
        """Whether the method delivers as much of a gradient as it has to."""
        return self.delivered >= self.method.least_delivered


class MethodChoice:
    """The trials of one job, with the same calls on all ranks. `begin_step` sets `method` for the step that begins.

    A trial is made again where steps wait much longer or shorter than after it, or the chosen method delivers too
    little.

    Args:
        methods: the first is used until a trial has ended.
        agree: returns the mean of each number over all ranks. Called at the beginning of the same steps on all.
        counted_steps: how many steps of each method are counted.
        decides: the fastest method that delivers enough stays until the next trial. With False the first one stays in
            any case, the times are only reported, and there is one trial.
        tells: this rank reports the verdict to the user. Other ranks only log it.
        is_ready: whether this rank's codecs are compiled as far as they will be. No trial begins before all ranks are.
        has_ended: whether this rank's communicator takes no vector any more: no trial begins then.
        clock: in seconds.
    """

    def __init__(
        self,
        methods: Sequence[AveragingMethod],
        agree: Callable[[list[float]], list[float]],
        *,
        counted_steps: int = COUNTED_STEPS,
        decides: bool = True,
        tells: bool = False,
        is_ready: Callable[[], bool] = lambda: not is_compiling(),
        has_ended: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.methods, self._agree, self._is_ready, self._clock = tuple(methods), agree, is_ready, clock
        self._has_ended = has_ended
        self._counted, self._decides, self._tells = counted_steps, decides, tells
        self.method = self.methods[0]
        """The method of the step in progress."""
        self.times: tuple[MethodTime, ...] = ()
        """Of the last trial, in the order of the methods."""
        self.is_trying = True
        self._found: list[MethodTime] = []
        self._tried: list[tuple[float, float, float]] = []
        """Seconds of each step of the method on trial, seconds that it waited, and the share that it delivered."""
        self._begun_s: float | None = None
        """When the step in progress began, None before the first one of a trial."""
        self._waits: list[tuple[float, float]] = []
        """Seconds that each step since the last look waited, and the share that it delivered."""
        self._usual_wait_s: float | None = None
        """What steps waited at the first look after the trial. In a trial ranks begin together, and wait less."""
        self._watched_steps = WATCHED_STEPS

    @property
    def measures_delivered(self) -> bool:
        """Whether low rank says after the step in progress how much of the energy it delivered."""
        # Not in the steps that are counted: it takes two passes over the matrices.
        if self.is_trying:
            due = len(self._tried) >= SETTLING_STEPS + self._counted
        else:
            due = len(self._waits) >= self._watched_steps - MEASURED_STEPS
        return self.method.least_delivered > 0 and due

    def begin_step(self, last_wait_s: float = 0.0, delivered: float = 1.0) -> None:
        """Note that a step begins, and decide its `method`. Report a new choice, and the reason for a new trial.

        It may call `agree`, in the same steps on all ranks.

        Args:
            last_wait_s: seconds that the step before waited for the network.
            delivered: share of the energy that low rank delivered in the step before.
        """
        if not self.is_trying:
            self._watch(last_wait_s, delivered)
            return
        now, before_s = self._clock(), self._begun_s
        took_s = 0.0 if before_s is None else now - before_s
        # Ranks tell whether they still compile: their mean is exactly 0 if none does. If all told that they are ready,
        # the mean of n ones, each divided by n before the sum, could be less than 1.
        compiling = float(not self._is_ready())
        took_s, wait_s, delivered, compiling = self._agree([took_s, last_wait_s, delivered, compiling])
        if before_s is not None:
            self._tried.append((took_s, wait_s, delivered))
            self._advance()
        if before_s is not None or not compiling:
            self._begun_s = now

    def _advance(self) -> None:
        """Go to the next method where the one on trial has all its steps."""
        best_s = min((each.step_s for each in self._found), default=float("inf"))
        timed = SETTLING_STEPS + self._counted
        # One slow step may be a pause of the program.
        slow = self._decides and 2 < len(self._tried) <= timed and min(self._tried[-2:])[0] > _SLOW * best_s
        if len(self._tried) < timed and not slow:
            return
        counted = self._tried[-2:] if slow else self._tried[SETTLING_STEPS:timed]
        # Medians, as one checkpoint or data stall would decide the mean.
        step_s, wait_s = median(each[0] for each in counted), median(each[1] for each in counted)
        delivered = 1.0
        if self.method.least_delivered and step_s < best_s:
            if len(self._tried) < timed + MEASURED_STEPS:
                return
            delivered = median(each[2] for each in self._tried[timed:])
        self._found.append(MethodTime(self.method, step_s, wait_s, delivered))
        self._tried = []
        if len(self._found) < len(self.methods):
            self.method = self.methods[len(self._found)]
        else:
            self._choose()

    def _choose(self) -> None:
        self.times, self._found, self.is_trying = tuple(self._found), [], False
        self._usual_wait_s = None
        safe = [each for each in self.times if each.is_safe] if self._decides else self.times[:1]
        self.method = min(safe, key=lambda each: each.step_s).method
        self._say(self.verdict)

    def _watch(self, wait_s: float, delivered: float) -> None:
        """Look now and then whether steps wait as long as they did, and whether low rank delivers enough."""
        if not self._decides or len(self.methods) < 2:
            return
        self._waits.append((wait_s, delivered))
        if len(self._waits) < self._watched_steps:
            return
        own_wait_s = median(each[0] for each in self._waits[self._watched_steps // 2 :])
        own_delivered = median(each[1] for each in self._waits[-MEASURED_STEPS:])
        self._waits = []
        wait_s, delivered, over = self._agree([own_wait_s, own_delivered, float(self._has_ended())])
        then = next(each for each in self.times if each.method is self.method)
        usual_s = wait_s if self._usual_wait_s is None else self._usual_wait_s
        self._usual_wait_s = usual_s
        less_s, more_s = sorted((wait_s, usual_s))
        if over:
            return
        if not delivered >= self.method.least_delivered:
            reason = f"{self.method.name} delivers {delivered:.2f} of a gradient's energy in a step"
        elif more_s > _CHANGED * less_s and more_s - less_s > _LEAST_CHANGE * then.step_s:
            reason = (
                f"a step waits {1e3 * wait_s:.1f} ms for the network, after {1e3 * usual_s:.1f} ms when "
                f"{self.method.name} was chosen"
            )
        else:
            return
        self._say(f"{reason}: all methods are tried again")
        self._watched_steps *= 2
        self.method, self.is_trying, self._begun_s = self.methods[0], True, None

    def _say(self, text: str) -> None:
        if self._tells:
            log_or_print(_log, text)
        else:
            _log.info("%s", text)

    @property
    def verdict(self) -> str:
        """Return the times of the last trial and the choice, in words."""
        told = ", ".join(f"{1e3 * each.step_s:.1f} ms by {each.method.name}" for each in self.times)
        lost = "".join(
            f"{each.method.name} delivers {each.delivered:.2f} of a gradient's energy in a step, and "
            f"{each.method.least_delivered:g} is the least. "
            for each in self.times
            if not each.is_safe
        )
        end = f"From here on gradients are averaged by {self.method.name}"
        if not self._decides:
            end = f'{end}: {COMPARE_VARIABLE} only measures, method="auto" takes the fastest'
        return f"a step takes {told} (medians of {self._counted} steps, of two where they are slow). {lost}{end}"
