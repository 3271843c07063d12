# SPDX-License-Identifier: Apache-2.0
"""A program begins with numpy's kernels, and goes over to compiled ones that another process has made."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba")

from hopsum.codec import Codec, ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.backends import NotCompiledError, only_cached
from hopsum.codec.backends.jit import LazyKernel
from hopsum.codec.simulate import simulate_phase
from hopsum.compile_ahead import compile_ahead, compiles_in_child
from hopsum.connection.open_agent import make_codec_at_once

PROGRAM = """
import time
from threading import Thread
import numpy as np
import hopsum

found = [[], []]

def work(rank):
    with hopsum.connect("memory://ahead?workers=2", rank=rank, codec="fixed") as comm:
        until = time.monotonic() + 1500
        step, after = 0, 0
        # Three sums after the change: it comes at another time on each rank.
        while after < 3 and time.monotonic() < until:
            x = np.random.default_rng([rank, step]).standard_normal(700).astype(np.float32)
            both = hopsum.allreduce(np.array([comm.codec.backend == "numba"], np.float32), comm)
            mean = hopsum.allreduce(x, comm)
            found[rank].append((comm.codec.backend, mean.tobytes()))
            step, after = step + 1, after + (both[0] == 1)

threads = [Thread(target=work, args=(rank,)) for rank in range(2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert [mean for _, mean in found[0]] == [mean for _, mean in found[1]]
for backends in ([backend for backend, _ in one] for one in found):
    assert backends[0] == "numpy", backends[0]
    assert backends[-1] == "numba", backends[-1]
    assert sorted(backends, reverse=True) == backends, "it changes once"
"""


def test_a_sum_does_not_wait_for_the_compiler(tmp_path: Path) -> None:
    """An empty cache: the first sums are numpy's, later ones are those of machine code, with equal bytes."""
    environment = {name: value for name, value in os.environ.items() if name != "HOPSUM_COMPILED"}
    environment["NUMBA_CACHE_DIR"] = str(tmp_path)
    for backend in ("numpy", "numba"):
        program = PROGRAM if backend == "numpy" else PROGRAM.replace('backends[0] == "numpy"', 'backends[0] == "numba"')
        ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        # The second program finds all of it in the cache.
    assert list(tmp_path.rglob("*.nbc"))


def test_the_environment_says_whether_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, later in (("wait", False), ("0", False), ("1", True)):
        monkeypatch.setenv("HOPSUM_COMPILED", value)
        assert compiles_in_child() is later
    monkeypatch.delenv("HOPSUM_COMPILED")
    assert compiles_in_child()


def test_a_kernel_that_is_in_no_cache_is_not_compiled_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_kernel.py").write_text(
        "from hopsum.codec.backends.jit import filled, kernel\nfrom hopsum_base.record_kernels import types\n\n\n"
        "@kernel(filled(types.int64, 1))\n"
        "def mark(out):\n    out[0] = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    out = np.zeros(1, np.int64)
    mark = import_module("own_kernel").mark
    with only_cached(), pytest.raises(NotCompiledError, match="mark"):
        mark(out)
    assert not out[0]
    mark(out)
    assert out[0] == 1
    again = LazyKernel(mark._function, mark._signature)
    with only_cached():
        again(out)


def test_a_child_that_fails_leaves_numpy(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    called: list[str] = []
    function, done = "hopsum.codec.registry:make_codec", threading.Event()
    compile_ahead(function, {"name": "nonsense", "workers": 2}, lambda: called.append("A"), "A")
    compile_ahead(function, {"name": "two-shot", "workers": 2}, done.set, "B")
    assert done.wait(1500)
    assert not called
    assert "A: compiled code could not be made in the background" in caplog.text
    assert "nonsense" in caplog.text


@pytest.mark.parametrize("name", ["thc", "thc:bits=2", "thc:result_bits=8", "uhc", "fixed", "two-shot", "lossless"])
def test_a_codec_goes_over_in_the_middle_of_a_sum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Callable[[], None]] = []
    monkeypatch.setattr(
        "hopsum.connection.open_agent.compile_ahead", lambda _, arguments, then, what: asked.append(then)
    )
    monkeypatch.setattr("hopsum.connection.open_agent.only_cached", _nothing_is_cached)
    x = np.random.default_rng(1).standard_t(3, 5_000).astype(np.float32)
    whole = make_codec(name, workers=1, backend="numba")
    expected = _sum(whole, x)
    for phase in range(whole.phases):
        codec = make_codec_at_once(name, workers=1)
        assert codec.backend == "numpy"
        assert _sum(codec, x, {phase: asked.pop()}) == expected
        assert codec.backend == "numba"


def _sum(codec: Codec, x: NDArray[np.float32], at: dict[int, Callable[[], None]] | None = None) -> tuple[bytes, bytes]:
    """Return the mean and the residual of a sum of one rank, with something to be done after a phase is made."""
    kept = ErrorFeedback(x.size)
    reduction, number = codec.start(x, ReductionContext(5, 2, 0), kept), 0
    while (phase := reduction.phase) is not None:
        if at and number in at:
            at[number]()
        number += 1
        results, contributors = simulate_phase(codec, [phase])
        reduction.on_results(results, contributors)
    assert reduction.mean is not None
    return reduction.mean.tobytes(), kept.residual.tobytes()


@contextmanager
def _nothing_is_cached() -> Iterator[None]:
    raise NotCompiledError("a kernel")
    yield
