# SPDX-License-Identifier: Apache-2.0
"""The times of training steps, as the hook sees them, compared with the bytes of a ring.

wait         from the last bucket that a backward pass hands over to the means of all its buckets: computing is
             over, and the step waits for the network (and for encoding and decoding)
busy         at least one all-reduce is under way in the communicator
rate         bytes of the busier direction by the busy time. A straggler, encoding and decoding lower the rate
ring         2 (n - 1)/n of the gradients' bytes leave and reach every rank of a ring of n ranks. Its time at this rate
             is an estimate: too long where processors bind, not links, since a ring encodes nothing

HOPSUM_COMPARE=N measures N steps of each method on any job and prints the times (`method_choice.py`). Without
method="auto" the method stays as it was.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from logging import INFO, Logger
from typing import Final, NamedTuple, Protocol

from hopsum.agent import AllReduceResult
from hopsum.config import ConfigError

COMPARE_VARIABLE: Final = "HOPSUM_COMPARE"


class StepTime(NamedTuple):
    """The times of one step, which begins with its first bucket, in the backward pass."""

    step_s: float
    """From its beginning to that of the next one."""
    wait_s: float
    """From its last bucket, handed over, until the means of all buckets are here."""


class Tally(Protocol):
    """A count of all-reduces."""

    def end_allreduce(self, result: AllReduceResult, elements: int) -> None:
        """Add a finished all-reduce, in the communicator's thread.

        Args:
            elements: of the gradients that are averaged with it: 0 for P of matrices, all of them for their Q.
        """


class StepTimes:
    """Seconds that steps took and waited. Ends of all-reduces are noted in the communicator's thread.

    Args:
        clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._first_begun_s: float | None = None
        self._begun_s = 0.0
        self._begun_steps = 0
        self._handed_over_s = 0.0
        self._last_wait_s: float | None = None
        """Seconds that the step in progress has waited, None before its means are here."""
        self._last_end_s = 0.0
        self.waited_steps = 0
        self.wait_s = 0.0
        """Summed over steps."""
        self._hopsum_steps = 0
        """Steps with an all-reduce of the communicator: the others went through torch's process group."""
        self._is_summed = False
        self._busy_s = 0.0
        self._elements = 0
        self._bytes_up = 0
        self._bytes_down = 0

    def begin_step(self) -> StepTime | None:
        """Note that a step has its first bucket. Return the times of the step before, None unless that has ended."""
        now = self._clock()
        before = None if self._last_wait_s is None else StepTime(now - self._begun_s, self._last_wait_s)
        self._begun_s, self._last_wait_s, self._is_summed = now, None, False
        self._begun_steps += 1
        if self._first_begun_s is None:
            self._first_begun_s = self._begun_s
        return before

    def note_last_bucket(self) -> None:
        """Note that the last bucket of the step is on its way."""
        self._handed_over_s = self._clock()

    def end_step(self) -> None:
        """Note that the means of all buckets are here."""
        self._last_wait_s = max(0.0, self._clock() - self._handed_over_s)
        self.wait_s += self._last_wait_s
        self.waited_steps += 1
        self._hopsum_steps += self._is_summed

    def end_allreduce(self, result: AllReduceResult, elements: int) -> None:
        """Add a finished all-reduce to the totals: its elements, its bytes, and the time since the last end."""
        now = self._clock()
        # All-reduces overlap: only the time since the last end is counted anew.
        self._busy_s += max(0.0, now - max(self._last_end_s, now - result.seconds))
        self._last_end_s, self._is_summed = now, True
        self._elements += elements
        self._bytes_up += result.traffic.interface_bytes_sent
        self._bytes_down += result.traffic.interface_bytes_received

    @property
    def step_s(self) -> float:
        """Return the mean seconds from the beginning of a step to that of the next one, NaN before there are two."""
        # One step has a beginning and no end yet.
        if self._first_begun_s is None or self._begun_steps < 2:
            return float("nan")
        return (self._begun_s - self._first_begun_s) / (self._begun_steps - 1)

    def scalars(self, workers: int) -> dict[str, float]:
        """Return the mean times of a step, and bytes and time compared with a ring for the same gradients, by name.

        A figure is NaN where nothing was counted yet.

        Args:
            workers: ranks of the ring.
        """
        ring_bytes, own_bytes = 2 * (workers - 1) / workers * 4 * self._elements, max(self._bytes_up, self._bytes_down)
        ring_fp32_s = ratio(ring_bytes * self._busy_s, own_bytes * self._hopsum_steps)
        return {
            "step_s": self.step_s,
            "wait_s": ratio(self.wait_s, self.waited_steps),
            "rate_bits_per_s": ratio(8 * own_bytes, self._busy_s),
            "bytes_by_ring_fp32": ratio(own_bytes, ring_bytes),
            "bytes_by_ring_bf16": ratio(2 * own_bytes, ring_bytes),
            "ring_fp32_s": ring_fp32_s,
            "ring_bf16_s": ring_fp32_s / 2,
        }

    def format_line(self, steps: int, workers: int, measured: Mapping[str, float] | None = None) -> str:
        """Return the figures of `scalars` as one line of text, and an estimate of a ring's time or measured times.

        Args:
            steps: the number of the last step, for the line.
            measured: seconds of a step by methods that were tried, by name. They take the place of the estimate.
        """
        now = self.scalars(workers)
        fp32_ms, bf16_ms = 1e3 * now["ring_fp32_s"], 1e3 * now["ring_bf16_s"]
        compared = (
            f"estimate: at this rate ({now['rate_bits_per_s'] / 1e6:.0f} Mbit/s) a ring takes {fp32_ms:.1f} ms in fp32 "
            f"and {bf16_ms:.1f} in bf16, less where processors bind; {COMPARE_VARIABLE}=20 measures"
        )
        if measured:
            told = (f"{1e3 * step_s:.1f} ms by {name}" for name, step_s in measured.items())
            compared = f"measured: {', '.join(told)}"
        share = (
            f"{now['bytes_by_ring_fp32']:.2f} of the bytes of a ring in fp32, {now['bytes_by_ring_bf16']:.2f} in bf16"
        )
        if self._hopsum_steps < self.waited_steps:
            share = f"{self._hopsum_steps} of the steps went through hopsum, with {share}"
        if not self._hopsum_steps:
            share, compared = "none of the steps went through hopsum", "nothing to compare"
        return (
            f"step {steps}: {1e3 * now['step_s']:.1f} ms, of which {1e3 * now['wait_s']:.1f} ms waiting for the "
            f"network; {share}; {compared}"
        )


def ratio(dividend: float, divisor: float) -> float:
    """Return a quotient, NaN where the divisor is 0: nothing was counted yet."""
    return dividend / divisor if divisor else float("nan")


def log_or_print(log: Logger, text: str) -> None:
    """Write a text that the user asked for to the log, or to stderr where the log does not take level INFO."""
    if log.isEnabledFor(INFO):
        log.info("%s", text)
    else:
        print(f"hopsum: {text}", file=sys.stderr, flush=True)


def steps_to_compare() -> int:
    """Return the number in HOPSUM_COMPARE, 0 where it is not set. Raises ConfigError for anything but a number."""
    text = os.environ.get(COMPARE_VARIABLE, "0")
    if not text.isdecimal():
        example = f"{COMPARE_VARIABLE}=20"
        raise ConfigError(f"{COMPARE_VARIABLE}={text!r}: the number of steps to measure each way, as in {example}")
    return int(text)
