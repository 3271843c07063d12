# SPDX-License-Identifier: Apache-2.0
"""Trainings over shaped links: targets, the order of schemes, and a failure in the other process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hopsum_evaluation.experiment import NotRunError, measure_apart
from hopsum_evaluation.training.accuracy import Trainings, rotate_schemes, train_all
from hopsum_evaluation.training.accuracy_plan import MODELS, Course
from hopsum_evaluation.training.time_to_target import seconds_to_target


@pytest.mark.parametrize(("model", "better", "worse"), [("cnn", 0.91, 0.89), ("transformer", 6.9, 7.1)])
def test_a_target_has_a_direction(model: str, better: float, worse: float) -> None:
    plan = MODELS[model]
    assert plan.is_reached(better)
    assert plan.is_reached(plan.target)
    assert not plan.is_reached(worse)
    assert not plan.is_reached(float("nan"))
    points = [[1, 0.5, worse], [2, 1.0, None], [3, 1.5, better], [4, 2.0, worse]]
    assert seconds_to_target(plan, {"points": points}) == 1.5


@pytest.mark.system
def test_what_fails_in_the_other_process_is_told_here() -> None:
    trainings = Trainings(0, Course("cnn", 1, 1, 1, {"200mbit": 1}, ("thc",)), (1,))
    with pytest.raises(NotRunError, match="0 workers"):
        measure_apart(train_all, trainings, lambda *_: None)


INTERRUPTED = """
import os
import signal
import threading
import time
from hopsum_evaluation.experiment import measure_apart

if __name__ == "__main__":
    # A test run in the background of a shell's script has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(SECONDS, os.killpg, (0, signal.SIGINT)).start()
    try:
        measure_apart(time.sleep, 600)
    except KeyboardInterrupt:
        print("stopped")
"""


@pytest.mark.system
@pytest.mark.parametrize("seconds", ["0.1", "3"])
def test_an_interrupt_ends_the_other_process_without_a_word(seconds: str, tmp_path: Path) -> None:
    script = tmp_path / "apart.py"
    script.write_text(INTERRUPTED.replace("SECONDS", seconds))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, start_new_session=True)
    assert (done.stdout, done.stderr) == ("stopped\n", "")


def test_another_scheme_begins_with_each_seed() -> None:
    assert [rotate_schemes("abc", repeat) for repeat in range(4)] == [
        tuple("abc"),
        tuple("bca"),
        tuple("cab"),
        tuple("abc"),
    ]
