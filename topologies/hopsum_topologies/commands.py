# SPDX-License-Identifier: Apache-2.0
"""Programs on the hosts of a network, and the events of their run: lines of output and ends."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Final, NamedTuple

from hopsum_topologies.netns import Namespace, kill_processes_in, processes_in
from hopsum_topologies.process import launcher_command

END_S: Final = 5.0
"""The time between SIGTERM and SIGKILL in which a command can end."""
_POLL_S: Final = 0.1
_READ_BYTES: Final = 1 << 16


class HostTask(NamedTuple):
    """A program for a host. `environment` is the whole environment of the program.

    `label` is unique among the programs of a run. It names the program in its events.
    """

    label: str
    host: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


class OutputLine(NamedTuple):
    """One line of output, without its line end. The last line of a stream may have had none."""

    label: str
    stream: str
    """The stream of the line: stdout or stderr."""
    text: str


class TaskEnded(NamedTuple):
    """The end of a command: its exit status, 128 and the signal's number where a signal ended it."""

    label: str
    status: int


Event = OutputLine | TaskEnded


class LineSplitter:
    """A splitter of a program's output, which arrives in pieces, into lines of text."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Add output. Return the lines that it completes, without line ends. An incomplete last line is kept."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def finish(self) -> list[str]:
        """Return the incomplete last line as a list of one line, or an empty list. Nothing is kept."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest else []


def run_in_namespaces(commands: Sequence[HostTask], hosts: Mapping[str, Namespace]) -> Generator[Event, None, None]:
    """Run commands at once, each in its host's namespace, and yield their events until all have ended.

    The commands start at the first `next`. `hosts` has the namespaces by name of the host. At its end, also when it is
    closed early, the iterator ends the commands, and kills all processes that have come into these namespaces since the
    start. The commands also die with the thread that calls. Raises TopologyError or OSError when one cannot be started.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    children: list[subprocess.Popen[bytes]] = []
    names = {hosts[command.host].name for command in commands}
    # What is there already stays: Mininet has a shell in each of its hosts.
    before = {name: processes_in(name) for name in names}
    try:
        for command in commands:
            children.append(_start(command, hosts[command.host].name))
            # One thread reads one child and hands its events to the caller through the queue.
            Thread(target=_listen, args=(command.label, children[-1], events), daemon=True).start()
        left = len(commands)
        while left:
            event = events.get()
            left -= isinstance(event, TaskEnded)
            yield event
    finally:
        _end(children)
        # Grandchildren in other process groups are found by their namespace.
        for name in names:
            kill_processes_in(name, before[name])


def _start(command: HostTask, namespace: str) -> subprocess.Popen[bytes]:
    arguments, environment = launcher_command(command.arguments, namespace, command.environment)
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def _listen(label: str, child: subprocess.Popen[bytes], events: SimpleQueue[Event]) -> None:
    """Put the lines and the end of one child.

    Its own children may keep its pipes open. So the end of the process counts, not the end of the pipes.
    """
    assert child.stdout is not None
    assert child.stderr is not None
    with selectors.DefaultSelector() as selector, child.stdout, child.stderr:
        for stream, pipe in (("stdout", child.stdout), ("stderr", child.stderr)):
            selector.register(pipe, selectors.EVENT_READ, (stream, LineSplitter()))
        while selector.get_map():
            # The state is read before the pipes: output that was written before the end is in the pipes by now.
            over = child.poll() is not None
            ready = selector.select(0 if over else _POLL_S)
            for key, _ in ready:
                stream, splitter = key.data
                data = os.read(key.fd, _READ_BYTES)
                # No data is the end of the pipe, which completes the last line.
                for text in splitter.feed(data) if data else splitter.finish():
                    events.put(OutputLine(label, stream, text))
                if not data:
                    selector.unregister(key.fileobj)
            if over and not ready:
                break
    status = child.wait()
    events.put(TaskEnded(label, status if status >= 0 else 128 - status))


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End process groups: SIGTERM to all, then SIGKILL to those that are still there."""
    living = [child for child in children if child.poll() is None]
    for child in living:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
    give_up = time.monotonic() + END_S
    for child in living:
        try:
            child.wait(max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
