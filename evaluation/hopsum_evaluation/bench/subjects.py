# SPDX-License-Identifier: Apache-2.0
"""The subjects of the data-plane benchmark: switches, jobs and loads. All run at the same time and take turns.

part          subjects
----------------------------------------------------------------------------------------------------------------
(always)      memcpy                          packed codes, copied
pipeline      native, interpreter             the engines, frames in memory
sockets       socket, socket_python,          the switch process over UDP, with compiled ports and with those in Python;
              loopback                        the same datagrams without a switch
bmv2          bmv2                            simple_switch_grpc over veth pairs; not where it is not installed
naive         naive_interpreter, naive_bmv2   evaluation/naive; not outside a source tree
naive-native  naive_native                    the same; only when asked for, since LLVM takes a minute for it at first
shards        one_engine, two_engines         native engines at once, each on its own core; only when asked for
start         cold_start, warm_start          the switch process, in seconds
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopsum_controlplane.artifacts import compiled_program
from hopsum_evaluation.bench import naive
from hopsum_evaluation.bench.load import Load
from hopsum_evaluation.bench.pipeline import EngineRun, engine_run
from hopsum_evaluation.bench.side_by_side import ENGINES, EnginePlan, SideBySide, engine_pool
from hopsum_evaluation.bench.sockets import SocketRun, echo_run, load_on
from hopsum_evaluation.bench.startup import NATIVE, Startup
from hopsum_switch.backend import Backend
from hopsum_switch.ports.udp_layout import COMPILED_VARIABLE
from hopsum_topologies.bmv2_process import bmv2_unavailable
from hopsum_topologies.netns import Namespace
from hopsum_topologies.switch_testbed import bmv2_testbed, native_testbed

PARTS = ("pipeline", "sockets", "bmv2", "naive", "naive-native", "shards", "start")
DEFAULT_PARTS = tuple(part for part in PARTS if part not in ("naive-native", "shards"))
PIPELINE_SLOTS = 64
BMV2_SLOTS = 32
COPY_BYTES = 1 << 26
NAIVE_RESEND_S = 5.0

Action = Callable[[float], float]
"""Works for about so many seconds. Returns UPDATEs (memcpy: codes) per second, of a start its seconds."""


@dataclass(frozen=True, slots=True)
class DataplaneSetting:
    """What the user chose. `table` is the job's lookup table, `slots` are those of the socket part."""

    parts: Collection[str]
    workers: int
    slots: int
    seed: int
    table: tuple[int, ...]


class Subjects:
    """All subjects by name, in `actions`. `engines` and `sockets` are those that can say what bounded them.

    Opened on a stack, which ends everything. Raises ControlPlaneError, TopologyError, OSError.
    """

    def __init__(self, stack: ExitStack, setting: DataplaneSetting) -> None:
        self.actions: dict[str, Action] = {"memcpy": copy_codes}
        self.engines: dict[str, EngineRun] = {}
        self.sockets: dict[str, SocketRun] = {}
        self.startup: Startup | None = None
        self._stack = stack
        self._setting = setting
        self._home: Namespace | None = None
        wants_bmv2 = {"bmv2", "naive"} & set(setting.parts) and bmv2_unavailable() is None
        if wants_bmv2:
            # First: gRPC's threads, of which a process has one set, then live where both bmv2 and the rest can be.
            self._home = stack.enter_context(Namespace())
            stack.enter_context(self._home.inside())
        open_part = {
            "pipeline": self._open_pipeline,
            "sockets": self._open_sockets,
            "bmv2": self._open_bmv2,
            "naive": self._open_naive,
            "naive-native": self._open_naive_native,
            "shards": self._open_shards,
            "start": self._open_start,
        }
        for part in PARTS:
            if part in setting.parts:
                open_part[part]()

    def _open_pipeline(self) -> None:
        self._add_engine("native", Backend.NATIVE, PIPELINE_SLOTS, compiled_program())
        self._add_engine("interpreter", Backend.INTERPRETER, PIPELINE_SLOTS, compiled_program())

    def _open_sockets(self) -> None:
        chosen = self._setting
        for name, compiled in (("socket", "1"), ("socket_python", "0")):
            environment = {**os.environ, COMPILED_VARIABLE: compiled}
            switch = native_testbed(chosen.workers, extra=NATIVE, environment=environment)
            testbed = self._stack.enter_context(switch)
            load = self._stack.enter_context(load_on(testbed, chosen.table, chosen.slots, chosen.seed))
            self._add_socket(name, SocketRun(load, testbed.pid, pinned=True))
        echo = self._stack.enter_context(echo_run(chosen.workers, chosen.table, chosen.slots, chosen.seed))
        self._add_socket("loopback", echo)

    def _open_bmv2(self) -> None:
        if self._home is not None:
            testbed = self._stack.enter_context(bmv2_testbed(self._setting.workers, home=self._home))
            load = self._stack.enter_context(
                load_on(testbed, self._setting.table, BMV2_SLOTS, self._setting.seed, resend_s=1.0)
            )
            self._add_socket("bmv2", SocketRun(load, testbed.pid, pinned=False))

    def _open_naive(self) -> None:
        program = naive.naive_program()
        if program is None:
            return
        self._add_engine("naive_interpreter", Backend.INTERPRETER, naive.SLOTS, program)
        if self._home is not None:
            self._add_socket("naive_bmv2", self._naive_on_bmv2(program, self._home))

    def _open_naive_native(self) -> None:
        program = naive.naive_program()
        if program is not None:
            self._add_engine("naive_native", Backend.NATIVE, naive.SLOTS, program)

    def _naive_on_bmv2(self, program: tuple[Path, Path], home: Namespace) -> SocketRun:
        chosen = self._setting
        testbed = self._stack.enter_context(bmv2_testbed(chosen.workers, home=home, program=program, prefix="n"))
        load: Load = self._stack.enter_context(
            load_on(testbed, chosen.table, naive.SLOTS, chosen.seed, adapt=naive.NaiveDevice, resend_s=NAIVE_RESEND_S)
        )
        return SocketRun(load, testbed.pid, pinned=False)

    def _open_shards(self) -> None:
        cores = tuple(sorted(os.sched_getaffinity(0)))
        if len(cores) < ENGINES:
            return  # there is nothing to compare
        chosen = self._setting
        plan = EnginePlan(chosen.workers, PIPELINE_SLOTS, chosen.table, chosen.seed, cores)
        engines = SideBySide(self._stack.enter_context(engine_pool(plan)))
        self._stack.callback(engines.close)
        self.actions["one_engine"], self.actions["two_engines"] = engines.alone, engines.together

    def _open_start(self) -> None:
        self.startup = startup = self._stack.enter_context(Startup())
        self.actions["cold_start"] = lambda _: startup.cold()
        self.actions["warm_start"] = lambda _: startup.warm()

    def _add_engine(self, name: str, backend: Backend, slots: int, program: tuple[Path, Path]) -> None:
        chosen = self._setting
        adapt = naive.NaiveDevice if name.startswith("naive") else None
        run = engine_run(backend, chosen.workers, slots, chosen.table, chosen.seed, program=program, adapt=adapt)
        self.engines[name] = self._stack.enter_context(run)
        self.actions[name] = self.engines[name].run

    def _add_socket(self, name: str, run: SocketRun) -> None:
        self.sockets[name] = run
        self.actions[name] = run.run


def copy_codes(_: float) -> float:
    """Return codes per second of a copy of packed codes, two in a byte."""
    source = np.ones(COPY_BYTES, np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)
    start = time.perf_counter()
    np.copyto(target, source)
    return 2 * COPY_BYTES / (time.perf_counter() - start)
