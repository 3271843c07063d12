# SPDX-License-Identifier: Apache-2.0
"""The end of a process whose main thread is stuck."""

from __future__ import annotations

import signal
import subprocess
import sys

DEADLINE_S = 60.0
STUCK = """\
import signal, threading
from hopsum_base.process_end import bound_end
signal.signal(signal.SIGTERM, lambda *_: bound_end({within_s}))
print("ready", flush=True)
while True:
    threading.Event().wait(0.01)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        print("ending", flush=True)
        threading.Event().wait()
"""


def stuck(within_s: float) -> subprocess.Popen[str]:
    """Return a process that has had one SIGTERM, and waits for what never comes."""
    command = [sys.executable, "-c", STUCK.format(within_s=within_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "ending\n"
    return process


def test_a_second_signal_ends_it_at_once() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with stuck(within_s=10 * DEADLINE_S) as process:
            process.send_signal(number)
            assert process.wait(DEADLINE_S) == -number


def test_an_end_that_takes_too_long_is_cut_off_with_the_places_of_all_threads() -> None:
    with stuck(within_s=0.2) as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1
        assert "most recent call first" in errors
