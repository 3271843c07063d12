# SPDX-License-Identifier: Apache-2.0
"""The published worker in plain torch as a subject: a process of its own, since torch stands in hopsum.torch only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

ACTIONS = ("encode", "encode_feedback", "decode")
_MODULE = "hopsum_evaluation.torch.published"


class PublishedRunError(Exception):
    """The process ended before it was told to. Its last words are above."""


@contextmanager
def published_worker(elements: int, workers: int, seed: int) -> Iterator[dict[str, Callable[[], object]]]:
    """Start the process. Yields its actions by name, each of which returns when it is done, or none without torch.

    It inherits this process's cores, and takes one thread. Asking over a pipe adds some 50 us to an action.
    """
    if not find_spec("torch"):
        yield {}
        return
    command = [sys.executable, "-m", _MODULE, "--elements", str(elements), "--workers", str(workers)]
    with subprocess.Popen(
        [*command, "--seed", str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield {name: _asker(process, name) for name in ACTIONS}
        finally:
            assert process.stdin is not None
            process.stdin.close()


def _asker(process: subprocess.Popen[str], name: str) -> Callable[[], object]:
    assert process.stdin is not None
    assert process.stdout is not None
    ask, answer = process.stdin, process.stdout

    def act() -> None:
        try:
            ask.write(f"{name}\n")
        except BrokenPipeError as error:
            raise PublishedRunError(f"{_MODULE} has ended") from error
        if answer.readline().strip() != "done":
            raise PublishedRunError(f"{_MODULE} ended during {name}")

    return act
