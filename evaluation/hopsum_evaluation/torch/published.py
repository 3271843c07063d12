# SPDX-License-Identifier: Apache-2.0
"""The published worker of THC (Li et al., NSDI 2024) in plain torch operations, for comparison only.

Written from the description of its public implementation, not from its text, and used by nothing but measurements:

    e = x = gradient + e                                   with error feedback
    y = H D x / 32          D: +-1, drawn once for all rounds; H: ten butterfly stages, so blocks of 1024
    y = clamp(y sqrt(d) / max_norm, -t, t)                 max_norm: the largest ||x|| over the workers
    u = (y + t) / (2 t / 1000)                             onto a grid of 1001 points
    i = floor(u) + Bernoulli(u - floor(u))                 first rounding, to the grid
    X = code[i] + Bernoulli(odds[i])                       second rounding, to the table; X is sent
    e = e - D H (T[X] - g/2) (2 t / g) max_norm / sqrt(d) / 32
    mean = D H (S/n - g/2) (2 t / g) max_norm / sqrt(d) / 32          S: the sum of the workers' T[X]

`python -m hopsum_evaluation.torch.published` is a subject of `hopsum bench codec`: it reads names of actions, one a
line, and answers each with a line once it is done, so that whoever asks can time it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch

STAGES = 10
BLOCK = 1 << STAGES
POINTS = 1001
DIAGONAL_SEED = 42
TABLE = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)
"""The default: 4 bits, g = 30, p = 1/32."""
TRUNCATED = 1 / 32


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """What a worker sends, and what it needs for its error feedback."""

    codes: torch.Tensor
    """uint8[elements], 0..15, one per byte."""
    max_norm: float


class PublishedWorker:
    """One worker's side, for vectors of one length, a multiple of 1024. See the module."""

    def __init__(
        self, elements: int, table: Sequence[int] = TABLE, truncated: float = TRUNCATED, seed: int = 0
    ) -> None:
        """Draw the diagonal and fill the sender's tables. Roundings follow from the seed.

        Raises:
            ValueError: no whole number of blocks.
        """
        if elements < BLOCK or elements % BLOCK:
            raise ValueError(f"{elements} elements: a multiple of {BLOCK}")
        self.elements = elements
        self.bound = NormalDist().inv_cdf(1 - truncated / 2)
        self.granularity = table[-1]
        self.error = torch.zeros(elements)
        """float32[elements]: what error feedback keeps."""
        fixed = torch.Generator().manual_seed(DIAGONAL_SEED)
        self._signs = torch.randint(0, 2, (elements,), generator=fixed).float() * 2 - 1
        self._roundings = torch.Generator().manual_seed(seed)
        self._table = torch.tensor(table, dtype=torch.float32)
        self._step = 2 * self.bound / (POINTS - 1)
        self._codes, self._odds = self._sender_tables()

    def encode(
        self, gradient: torch.Tensor, max_norm: float | None = None, *, feedback: bool = False
    ) -> PublishedMessage:
        """Return the codes of a gradient, float32[elements].

        Args:
            gradient: only read.
            max_norm: the largest norm over the workers, of gradient plus error, this worker's own by default.
            feedback: whether `error` is added first and takes what these codes lose.
        """
        x = gradient + self.error if feedback else gradient
        norm = float(x.norm()) if max_norm is None else max_norm
        y = self._rotate(x * self._signs).mul_(self.elements**0.5 / norm)
        u = y.clamp_(-self.bound, self.bound).add_(self.bound).div_(self._step)
        index = (u.floor() + torch.bernoulli(u - u.floor(), generator=self._roundings)).long()
        up = torch.bernoulli(self._odds[index], generator=self._roundings).to(torch.uint8)
        sent = PublishedMessage(self._codes[index] + up, norm)
        if feedback:
            self.error = x - self.decode(self.lookup(sent.codes), 1, norm)
        return sent

    def lookup(self, codes: torch.Tensor) -> torch.Tensor:
        """Return what codes stand for in a sum, float32[elements]."""
        return self._table[codes.long()]

    def decode(self, total: torch.Tensor, workers: int, max_norm: float) -> torch.Tensor:
        """Return the mean, float32[elements], of a sum of looked-up codes of so many workers."""
        middle = total.float() / workers - self.granularity / 2
        y = middle.mul_(2 * self.bound / self.granularity * max_norm / self.elements**0.5)
        return self._rotate(y).mul_(self._signs)

    def _rotate(self, y: torch.Tensor) -> torch.Tensor:
        """Return H y / 32, block by block. y is overwritten."""
        width = 1
        while width < BLOCK:
            pairs = y.view(-1, 2, width)
            low, high = pairs[:, 0], pairs[:, 1]
            low += high
            high.mul_(-2).add_(low)
            width *= 2
        return y.div_(BLOCK**0.5)

    def _sender_tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return by grid point the lower code, uint8, and the odds of the next one, float32."""
        grid = torch.linspace(-self.bound, self.bound, POINTS, dtype=torch.float64)
        values = self._table.double() * (2 * self.bound / self.granularity) - self.bound
        upper = torch.searchsorted(values, grid, right=True).clamp_(1, len(values) - 1)
        low, high = values[upper - 1], values[upper]
        return (upper - 1).to(torch.uint8), ((grid - low) / (high - low)).clamp_(0, 1).float()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve actions by name until the input ends: encode, encode_feedback, decode."""
    parser = argparse.ArgumentParser(prog="python -m hopsum_evaluation.torch.published", description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 22, help=f"a multiple of {BLOCK} (default %(default)s)")
    parser.add_argument("--workers", type=int, default=8, help="workers of the table (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the vectors (default %(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    worker = PublishedWorker(options.elements, seed=options.seed)
    gradient = torch.randn(options.elements, generator=torch.Generator().manual_seed(options.seed))
    sent = worker.encode(gradient)
    total = worker.lookup(sent.codes) * options.workers
    actions: dict[str, Callable[[], object]] = {
        "encode": lambda: worker.encode(gradient),
        "encode_feedback": lambda: worker.encode(gradient, feedback=True),
        "decode": lambda: worker.decode(total, options.workers, sent.max_norm),
    }
    with torch.inference_mode():
        for line in sys.stdin:
            actions[line.strip()]()
            print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
