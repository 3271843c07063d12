# SPDX-License-Identifier: Apache-2.0
"""The choice between hopsum and torch's process group, by the time that whole training steps take with each.

On links that do not bind, compressing costs more time than it saves. So the first steps of a job go both ways, first
through hopsum and then through the process group, and the faster one stays. All ranks decide alike, by the mean of what
they measured. HOPSUM_COMPARE=N measures N steps each way on any job, prints both times and leaves the method as it is.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Final, Literal, get_args

from hopsum.config import ConfigError
from hopsum.torch.step_times import tell

COMPARE_VARIABLE: Final = "HOPSUM_COMPARE"
Method = Literal["hopsum", "auto"]
"""Through hopsum in any case, or whatever is faster here."""
METHODS: Final = get_args(Method)
SETTLING_STEPS: Final = 3
"""Steps each way that are not counted: DDP builds its buckets, memory is touched for the first time."""
COUNTED_STEPS: Final = 5
_log: Final = logging.getLogger(__name__)


class MethodTrial:
    """The trial of one job, with the same calls on all ranks.

    Args:
        agree: returns the mean of each number over all ranks. It is called once, at the beginning of the same step on
            all.
        counted_steps: how many steps each way are counted.
        decides: the faster way stays. With False hopsum stays in any case, and the times are told.
        tells: this rank writes the verdict.
        clock: in seconds.
    """

    def __init__(
        self,
        agree: Callable[[list[float]], list[float]],
        *,
        counted_steps: int = COUNTED_STEPS,
        decides: bool = True,
        tells: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._agree, self._clock = agree, clock
        self._each, self._decides, self._tells = SETTLING_STEPS + counted_steps, decides, tells
        self._begun_at: list[float] = []
        self.compresses = True
        """True while the step in progress goes through hopsum."""
        self.is_over = False
        self.step_s: tuple[float, float] | None = None
        """Seconds of a step through hopsum and through the process group, once the trial is over."""

    def begin_step(self) -> None:
        """Take the time of a step that begins, and decide how it goes."""
        if self.is_over:
            return
        self._begun_at.append(self._clock())
        each, steps = self._each, len(self._begun_at) - 1
        if steps < 2 * each:
            self.compresses = steps < each
            return
        took_s = [after - before for before, after in zip(self._begun_at, self._begun_at[1:], strict=False)]
        own = [median(took_s[SETTLING_STEPS:each]), median(took_s[each + SETTLING_STEPS :])]
        hopsum_s, group_s = self._agree(own)
        self.is_over, self.step_s = True, (hopsum_s, group_s)
        self.compresses = hopsum_s < group_s or not self._decides
        self._tell(hopsum_s, group_s)

    def _tell(self, hopsum_s: float, group_s: float) -> None:
        way = "hopsum" if self.compresses else "the process group"
        verdict = (
            f"a step takes {1e3 * hopsum_s:.1f} ms through hopsum and {1e3 * group_s:.1f} ms through torch's process "
            f"group (median of {self._each - SETTLING_STEPS} steps each way): hopsum is {group_s / hopsum_s:.2f} times "
            f"as fast. From here on gradients go through {way}"
        )
        if self._tells:
            tell(_log, verdict)
        else:
            _log.info("%s", verdict)


def steps_to_compare() -> int:
    """Return the number in HOPSUM_COMPARE, 0 where it is not set. Raises ConfigError for anything but a number."""
    text = os.environ.get(COMPARE_VARIABLE, "0")
    if not text.isdecimal():
        example = f"{COMPARE_VARIABLE}=20"
        raise ConfigError(f"{COMPARE_VARIABLE}={text!r}: the number of steps to measure each way, as in {example}")
    return int(text)
