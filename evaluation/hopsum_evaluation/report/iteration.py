# SPDX-License-Identifier: Apache-2.0
"""The compute time of a training step. Section `lossless` needs it to tell an iteration from its all-reduce."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any, Final

from hopsum_evaluation.report.settings import Settings

BATCH: Final = 32
_STEPS: Final = 5


def measure_iterations(settings: Settings, repeats: int) -> dict[str, Any] | None:
    """Return the seconds of a training step of model `cnn` in one thread, one per repeat, or None without torch."""
    if find_spec("torch") is None or find_spec("sklearn") is None:
        return None
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the codec is measured
    try:
        steps = [_make_step(settings, repeat) for repeat in range(repeats)]
        compute_s = [_seconds_of(step) for step, _ in steps]
    finally:
        torch.set_num_threads(threads)
    return {"batch": BATCH, "parameters": steps[0][1], "compute_s": compute_s}


def _make_step(settings: Settings, repeat: int) -> tuple[Callable[[], None], int]:
    """Return a step, and the parameters that it changes."""
    from hopsum_evaluation.report.accuracy_models import load_learning, loss

    learning = load_learning("cnn")
    network = learning.make_network(settings.stream("data", "iteration", repeat) % (1 << 31))
    optimiser, rng = learning.make_optimiser(network), settings.rng("batch", "iteration", repeat)

    def step() -> None:
        optimiser.zero_grad()
        loss(network, learning.draw(rng, BATCH)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step, sum(each.numel() for each in network.parameters())


def _seconds_of(step: Callable[[], None]) -> float:
    """Return the median of some steps after the first."""
    step()
    took = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        step()
        took.append(time.perf_counter() - start)
    return median(took)


def iteration_speedup(
    compute_s: float, parameters: int, elements_per_s: float, bytes_of_dense: float, link_bits_per_s: float
) -> float:
    """Return the time of a step with a dense float32 gradient over one with codec and bytes. Nothing overlaps."""
    dense_s = 32 * parameters / link_bits_per_s
    return (compute_s + dense_s) / (compute_s + parameters / elements_per_s + dense_s * bytes_of_dense)
