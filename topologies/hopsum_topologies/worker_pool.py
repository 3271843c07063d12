# SPDX-License-Identifier: Apache-2.0
"""Worker processes and the pipes to them.

A worker runs `main(seat, plan, pipe)`. Its messages to the parent are tuples that begin with a word. "failed" (with a
traceback) and "finished" are sent by this module. A worker ends with its parent. Workers compute on processors: they
see no GPU, and no Ctrl-C.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from hopsum_base.process_end import die_with_parent

SILENCE_S = 600.0
"""The time without a message from any worker after which the pool reports a hang."""
JOIN_S = 10.0
_GPUS = "CUDA_VISIBLE_DEVICES"

WorkerMain = Callable[[Any, Any, Connection], None]


class WorkerDiedError(Exception):
    """A worker process ended early or failed. The message has its rank and traceback."""


class WorkerPool:
    """The worker processes, one for each seat, and their pipes. The context manager ends all of them.

    Construction starts the processes. A worker's rank is the place of its seat.

    seats, plan: any values that can be pickled. Every worker gets its seat, and the same plan.
    main: a function of a module, since processes are spawned. A worker runs `main(seat, plan, pipe)`.
    gpus: True where the workers see the machine's GPUs.
    """

    def __init__(self, seats: Sequence[Any], main: WorkerMain, plan: Any, *, gpus: bool = False) -> None:
        # spawn, not fork: gRPC and numba do not survive a fork with threads.
        context = multiprocessing.get_context("spawn")
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        self._finished: set[int] = set()
        self._kept: list[tuple[int, tuple[Any, ...]]] = []
        """Messages that arrived while other messages were gathered, with their ranks."""
        for seat in seats:
            ours, theirs = context.Pipe()
            process = context.Process(target=_run, args=(main, seat, plan, os.getpid(), theirs), daemon=True)
            with nullcontext() if gpus else _hidden_gpus(), sigint_blocked():
                process.start()
            # With our copy of the other end open, the end of the worker would not be EOF here.
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)

    def receive(self) -> tuple[int, tuple[Any, ...]]:
        """Wait for the next message of any worker. Return its rank and the message, which begins with its kind.

        "finished" is the last message of a worker. Do not call it when all workers have finished.

        Raises WorkerDiedError when a worker failed or ended, and after SILENCE_S without a message.
        """
        if self._kept:
            return self._kept.pop(0)
        # The pipe of a worker that has finished is at its end, and would be ready for ever.
        listening = [pipe for rank, pipe in enumerate(self.pipes) if rank not in self._finished]
        ready = wait(listening, timeout=SILENCE_S)
        if not ready:
            raise WorkerDiedError(f"no worker said anything in {SILENCE_S:.0f} s")
        rank = next(rank for rank, pipe in enumerate(self.pipes) if pipe is ready[0])
        try:
            message: tuple[Any, ...] = self.pipes[rank].recv()
        except EOFError:
            # The pipe is closed a moment before the process has an exit status.
            self.processes[rank].join(JOIN_S)
            raise WorkerDiedError(f"worker {rank} ended with status {self.processes[rank].exitcode}") from None
        if message[0] == "failed":
            raise WorkerDiedError(f"worker {rank} failed:\n{message[1]}")
        if message[0] == "finished":
            self._finished.add(rank)
        return rank, message

    def gather(self, kind: str) -> list[tuple[Any, ...]]:
        """Wait for one message of this kind from every worker. Return them without the kind, in the order of ranks.

        Later messages of a worker, while others have not sent theirs, are kept for `receive`. Raises WorkerDiedError as
        `receive` does, and when a worker sends a message of another kind first.
        """
        found: dict[int, tuple[Any, ...]] = {}
        kept = list[tuple[int, tuple[Any, ...]]]()
        while len(found) < len(self.pipes):
            rank, message = self.receive()
            if rank in found:
                kept.append((rank, message))
            elif message[0] != kind:
                raise WorkerDiedError(f"worker {rank} sent {message[0]!r} instead of {kind!r}")
            else:
                found[rank] = message[1:]
        self._kept = kept + self._kept
        return [found[rank] for rank in range(len(self.pipes))]

    def send(self, message: Any) -> None:
        """Send every worker the same message, any value that can be pickled.

        Raises BrokenPipeError when one has ended. Workers before it have the message then.
        """
        for pipe in self.pipes:
            pipe.send(message)

    def close(self) -> None:
        """Close the pipes, end all processes with SIGTERM, and wait up to 10 s for the end of each. May be repeated."""
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            pipe.close()
            if process.is_alive():
                process.terminate()
            process.join(JOIN_S)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Let processes that are started in the block begin with SIGINT blocked.

    In the calling thread SIGINT waits for the end of the block.
    """
    # The tracker, which the first process would start, unblocks SIGINT.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _hidden_gpus() -> Iterator[None]:
    """Let processes that are started meanwhile see no GPU: CUDA and ROCm read the list of visible devices."""
    # torch behaves otherwise where it sees a GPU, also with tensors of the host: its PowerSGD hook then synchronises
    # with a CPU device, which is an error. A child that cleared the list itself would have imported torch before.
    before = os.environ.get(_GPUS)
    os.environ[_GPUS] = ""
    try:
        yield
    finally:
        if before is None:
            del os.environ[_GPUS]
        else:
            os.environ[_GPUS] = before


def _run(main: WorkerMain, seat: Any, plan: Any, parent_pid: int, pipe: Connection) -> None:
    try:
        die_with_parent(parent_pid)
        main(seat, plan, pipe)
        pipe.send(("finished",))
    except (EOFError, BrokenPipeError):
        # The parent has ended. _exit, since threads of the library may wait for a network that is gone.
        os._exit(1)
    except BaseException:
        # The parent may have closed the pipe, as after Ctrl-C.
        with suppress(BrokenPipeError):
            pipe.send(("failed", traceback.format_exc()))
