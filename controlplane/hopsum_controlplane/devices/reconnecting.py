# SPDX-License-Identifier: Apache-2.0
"""A device that comes back: it opens a new session when one was lost, but never pretends that nothing happened.

    closed     no session; each call opens one, unless the last attempt failed and its pause is not over
    open       a session; what runs on the switch has the cookie that we expect: calls go through
    forgotten  a session; something else runs there, or nothing: only read_cookie, push and close go through
    deposed    another client was primary once: all calls raise NotPrimaryError, for good

    closed    -- a call, opened, cookie as expected -->  open
    closed    -- a call, opened, another cookie -->      forgotten
    closed    -- a call, not opened -->                  closed, with a longer pause
    open      -- session lost, no answer -->             closed, without a pause
    forgotten -- push -->                                open
    any       -- another client is primary -->           deposed

A call that finds the session lost before anything was sent is made again over the new one. One that was sent and not
answered raises: what became of it is not known. A pause is never slept: a call within it raises at once.

A deposed device does not come back by itself when the other client leaves: by then its database is older than the
switch. A switch that forgot is not filled again: its generations have ended (rule E1). `sessions` counts, so that the
owner can audit after each new one: entries may have been changed meanwhile.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.entries import CounterValue, MulticastGroup, TableEntry, Update
from hopsum_controlplane.errors import (
    ControlPlaneError,
    NotPrimaryError,
    SessionLostError,
    SwitchStateLostError,
    WriteError,
)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 1.0

_T = TypeVar("_T")


class ReconnectingDevice(Device):
    """The device that `connect` opens, and opens again, as long as the switch runs the program with `cookie`.

    Construction opens the first session and raises as `connect` does. Pauses double from FIRST_PAUSE_S to
    LONGEST_PAUSE_S and are cut by up to half at random, so that controllers do not come back all at once.
    `monotonic` gives seconds, and `chance` the random cuts.
    """

    def __init__(
        self,
        connect: Callable[[], Device],
        cookie: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        self._connect = connect
        self._cookie = cookie
        self._monotonic = monotonic
        self._chance = chance if chance is not None else random.Random()
        # Attempts in a row without a session.
        self._failed = 0
        self._not_before_s = 0.0
        self._why = ""
        self._forgotten = False
        self._closed = False
        self._deposed: NotPrimaryError | None = None
        self.sessions = 0
        """The number of sessions so far."""
        self._device: Device | None = None
        device = self._open()
        self.where = device.where
        self.capabilities, self.program = device.capabilities, device.program

    def write(self, updates: Sequence[Update]) -> None:
        """Write one batch, as Device.write. If the session is lost before anything is sent, a new one is opened first.

        A batch that was sent and not answered raises WriteError and is not written again. The call raises at once, with
        nothing written, in the pause after a failed attempt (SessionLostError), on a switch that has lost its program
        (SwitchStateLostError), and for good after another client was primary (NotPrimaryError).
        """
        self._call(lambda device: device.write(updates))

    def read_table(self, table: str) -> list[TableEntry]:
        return self._call(lambda device: device.read_table(table))

    def read_groups(self) -> list[MulticastGroup]:
        return self._call(lambda device: device.read_groups())

    def read_counter(self, counter: str, start: int = 0, count: int | None = None) -> list[CounterValue]:
        return self._call(lambda device: device.read_counter(counter, start, count))

    def read_cookie(self) -> int | None:
        return self._call(lambda device: device.read_cookie(), program=False)

    def set_pipeline_config(self, pipeline: PipelineConfig) -> None:
        """Make the switch run `pipeline`, and expect its cookie from now on. All entries there are lost (rule E1)."""
        self._call(lambda device: device.set_pipeline_config(pipeline), program=False)
        if self._device is not None:
            self.program = self._device.program
        self._cookie = pipeline.cookie
        self._forgotten = False

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _call(self, action: Callable[[Device], _T], *, program: bool = True) -> _T:
        device = self._ready(program)
        try:
            return action(device)
        # Nothing was sent: the call is made again over a new session, below.
        except SessionLostError:
            self._drop()
        except WriteError as error:
            # The batch was sent and not answered: it must not be sent again, as it may be applied.
            if not error.failures:
                self._drop()
            raise
        except NotPrimaryError as error:
            self._depose(error)
            raise
        return action(self._ready(program))

    def _ready(self, program: bool) -> Device:
        """Return an open session. Where a `program` is wanted, the session's switch runs ours."""
        if self._deposed is not None:
            raise NotPrimaryError(self._deposed.what, where=self.where, hint=self._deposed.hint)
        device = self._device if self._device is not None else self._open()
        if program and self._forgotten:
            raise SwitchStateLostError(
                f"the switch does not run the program with cookie {self._cookie:#018x} (any more): it restarted, or "
                "another one was pushed, and all of its jobs have ended",
                where=self.where,
                hint="push the program; its jobs need new generations",
            )
        return device

    def _open(self) -> Device:
        wait_s = self._not_before_s - self._monotonic()
        if self._closed or (self._failed and wait_s > 0):
            why = "closed" if self._closed else f"{self._why}; attempt {self._failed + 1} in {wait_s:.1f} s"
            raise SessionLostError(f"no session with the switch: {why}", where=self.where)
        try:
            device = self._connect()
            try:
                # A switch that restarted runs no program, or has lost its entries with it: its jobs have ended
                # (rule E1).
                self._forgotten = device.read_cookie() != self._cookie
            except BaseException:
                device.close()
                raise
        except NotPrimaryError as error:
            self._depose(error)
            raise
        except ControlPlaneError as error:
            # Half of the pause is random, so that controllers do not come back in step.
            longest_s = min(FIRST_PAUSE_S * 2**self._failed, LONGEST_PAUSE_S)
            self._failed += 1
            self._why = error.what
            self._not_before_s = self._monotonic() + longest_s * self._chance.uniform(0.5, 1)
            raise
        self._device, self._failed = device, 0
        self.program = device.program
        self.sessions += 1
        return device

    def _depose(self, error: NotPrimaryError) -> None:
        self._deposed = error
        self._drop()

    def _drop(self) -> None:
        device, self._device = self._device, None
        if device is not None:
            device.close()
