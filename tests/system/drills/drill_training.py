# SPDX-License-Identifier: Apache-2.0
"""A small training: a model, gradients that depend on the model and on the rank, and the plan of a job.

Every rank pulls the model towards a common target, with noise of its own. All of it follows from the seed, so two runs
of the same steps have the same bits if the means have.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import hopsum
from hopsum.codec import ErrorFeedback

from .journal import digest

LEARNING_RATE: Final = np.float32(0.1)
NOISE: Final = np.float32(0.5)


class WorkerOrder(StrEnum):
    """A drill's order to one worker, which it follows between two steps."""

    RAISE = "raise"
    """An exception that nobody handles."""
    RAISE_IN_FLIGHT = "raise in flight"
    """The same, with an all-reduce under way."""
    FORK = "fork"
    """A child that exits normally."""


@dataclass(frozen=True)
class DrillPlan:
    """The settings of all workers of a job."""

    url: str
    token_file: str
    folder: str
    """The folder of journals, and of the files `goal` and `leave`."""
    workers: int
    codec: str = "thc"
    codec_options: dict[str, Any] = field(default_factory=dict)
    backend: str = "numpy"
    """numpy needs no compilation, so a worker begins at once."""
    elements: int = 8 * 1024 + 100
    seed: int = 1
    pace_s: float = 0.01
    """A step takes so long in addition to the all-reduce."""
    deadline_s: float = 60.0
    membership_wait_s: float = 60.0

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> DrillPlan:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `connect` in addition to URL and rank."""
        return {
            "codec": self.codec,
            "codec_options": self.codec_options,
            "backend": self.backend,
            "seed": self.seed,
            "deadline_s": self.deadline_s,
            "membership_wait_s": self.membership_wait_s,
            "replacement_wait_s": self.membership_wait_s,
        }

    def journal(self, rank: int) -> Path:
        return Path(self.folder) / f"rank{rank}.jsonl"

    def order(self, rank: int) -> Path:
        return Path(self.folder) / f"order{rank}"

    def take_order(self, rank: int) -> WorkerOrder | None:
        """Return the order to a rank, and remove it, or None without one."""
        path = self.order(rank)
        if not path.exists():
            return None
        order = WorkerOrder(path.read_text(encoding="utf-8"))
        path.unlink()
        return order

    @property
    def goal(self) -> Path:
        """Return the file with the number of steps, which the drill writes at its end."""
        return Path(self.folder) / "goal"

    @property
    def leave(self) -> Path:
        """Return the file that lets workers leave, once all of them have done the last step."""
        return Path(self.folder) / "leave"


def options_of(codec: str) -> dict[str, Any]:
    """Return the codec's options: whole sums, since the books do not know the error of requantised results."""
    return {"result_bits": 8} if codec == "thc" else {}


class DrillModel:
    """The model of one rank: float32[elements]."""

    def __init__(self, plan: DrillPlan, rank: int) -> None:
        self._plan, self._rank = plan, rank
        self._target = np.random.default_rng([plan.seed, 1]).normal(size=plan.elements).astype(np.float32)
        self.weights: NDArray[np.float32] = np.zeros(plan.elements, np.float32)

    def gradient(self, step: int) -> NDArray[np.float32]:
        """Return this rank's gradient, float32[elements], a new array."""
        noise = np.random.default_rng([self._plan.seed, 2, self._rank, step]).normal(size=self._plan.elements)
        made: NDArray[np.float32] = self.weights - self._target + NOISE * noise.astype(np.float32)
        return made

    def dump(self, step: int) -> bytes:
        """Return the state that a newcomer needs to continue with a step."""
        return step.to_bytes(8, "big") + self.weights.tobytes()

    def load(self, state: bytes) -> int:
        self.weights = np.frombuffer(state[8:], np.float32).copy()
        return int.from_bytes(state[:8], "big")

    def apply(self, mean: NDArray[np.float32]) -> None:
        self.weights -= LEARNING_RATE * mean


def added(mean: NDArray[np.float32], contributors: NDArray[np.uint64], block_elements: int) -> NDArray[np.float64]:
    """Return the sum, float64[elements]: chunk by chunk the mean times the number of its contributors."""
    counts = np.array([int(bits).bit_count() for bits in contributors], np.float64)
    return mean.astype(np.float64) * np.repeat(counts, block_elements)[: mean.size]


def reference(plan: DrillPlan, steps: int) -> list[str]:
    """Train in this process's memory, without switch, network or faults. Return the model's digest after each step."""

    def train(rank: int) -> list[str]:
        model, feedback, found = DrillModel(plan, rank), ErrorFeedback(plan.elements), []
        url = f"memory://reference?workers={plan.workers}"
        with hopsum.connect(url, rank=rank, **plan.settings()) as job:
            for step in range(steps):
                result = job.allreduce(model.gradient(step), feedback=feedback, step=step)
                model.apply(result.mean)
                found.append(digest(model.weights))
        return found

    with ThreadPoolExecutor(plan.workers) as pool:
        return next(iter(pool.map(train, range(plan.workers))))
