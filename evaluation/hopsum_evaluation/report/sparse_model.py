# SPDX-License-Identifier: Apache-2.0
"""A model whose parameters are nearly all embeddings: a real workload of codec lossless, its density measured.

Continuous bag of words with negative sampling (Mikolov et al., "Distributed Representations of Words and Phrases",
2013) on the words of the text of `accuracy_models`. A step changes only the rows of the words that it saw and of the
negative samples. Everything else of both tables has a gradient of zero.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import ReductionContext, make_codec
from hopsum.codec.simulate import simulate_switch
from hopsum_evaluation.compare.methods import count_bits
from hopsum_evaluation.report.settings import Settings

if TYPE_CHECKING:
    from torch import nn

WORKERS: Final = 4
BATCH: Final = 64
"""Words that a worker predicts in a step."""
WIDTH: Final = 256
_CONTEXT, _NEGATIVES = 4, 5
"""Words around the predicted one, and negative samples for each."""
_WARM_STEPS, _TIMED_STEPS = 10, 5
PAIR_BYTES: Final = 8
"""Bytes of an index and a value."""


class SparseStep(NamedTuple):
    """One all-reduce of the model's gradients."""

    parameters: int
    density: float
    """The share of a worker's gradient that is not zero, mean of the workers."""
    density_of_sum: float
    compute_s: float
    """The seconds of a step in one thread, without communication."""
    codec_s: float
    """The seconds of one worker in codec lossless, in one thread."""
    bytes_up: float
    bytes_down: float
    pair_bytes: float
    """The bytes that a worker gets from the others if all gather indices and values."""


def measure_sparse(settings: Settings, repeats: int) -> list[dict[str, Any]] | None:
    """Return a SparseStep as a dict for each repeat, or None without torch or the text."""
    if find_spec("torch") is None or find_spec("pydoc_data") is None:
        return None
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the codec is measured
    try:
        return [_measure(settings, repeat)._asdict() for repeat in range(repeats)]
    finally:
        torch.set_num_threads(threads)


def read_words(most: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the text as numbers of words, and each word's chance to be a negative sample.

    Args:
        most: words of the vocabulary at most. Rarer ones are left out of the text.
    """
    from hopsum_evaluation.report.accuracy_models import read_text

    words = re.findall(r"\S+", bytes(read_text().numpy().astype(np.uint8)).decode())
    counts = Counter(words).most_common(most)
    numbers = {word: number for number, (word, _) in enumerate(counts)}
    text = np.array([numbers[word] for word in words if word in numbers], np.int64)
    odds = np.array([count for _, count in counts], np.float64) ** 0.75  # as published
    return text, odds / odds.sum()


def _measure(settings: Settings, repeat: int) -> SparseStep:
    import torch

    text, odds = read_words(settings.pick(1 << 9, 1 << 14, 1 << 14))
    torch.manual_seed(settings.stream("data", "words", repeat) % (1 << 31))
    network = torch.nn.ModuleList([torch.nn.Embedding(len(odds), WIDTH) for _ in range(2)])
    optimiser = torch.optim.SGD(network.parameters(), 0.5)
    rng = settings.rng("batch", "words", repeat)
    took = []
    for _ in range(_WARM_STEPS + _TIMED_STEPS):
        start = time.perf_counter()
        _backward(network, text, odds, rng)
        optimiser.step()
        took.append(time.perf_counter() - start)
    vectors = [_backward(network, text, odds, rng) for _ in range(WORKERS)]
    nonzero = [int(np.count_nonzero(x)) for x in vectors]
    codec_s, bits_up, bits_down = _reduce(vectors, settings.stream("codec", "words", repeat))
    size = vectors[0].size
    union = int(np.count_nonzero(np.any([x != 0 for x in vectors], axis=0)))
    return SparseStep(
        size, float(np.mean(nonzero)) / size, union / size, median(took[_WARM_STEPS:]), codec_s, bits_up * size / 8,
        bits_down * size / 8, PAIR_BYTES * float(np.mean(nonzero)) * (WORKERS - 1),
    )  # fmt: skip


def _backward(
    network: nn.ModuleList, text: NDArray[np.int64], odds: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Compute the gradient of one minibatch. Return it as a new vector, float32[parameters]."""
    import torch
    from torch.nn.functional import logsigmoid

    around, out = network
    centres = rng.integers(_CONTEXT, len(text) - _CONTEXT, BATCH)
    steps = np.delete(np.arange(-(_CONTEXT // 2), _CONTEXT // 2 + 1), _CONTEXT // 2)
    context = torch.from_numpy(text[centres[:, None] + steps])
    target = torch.from_numpy(text[centres])
    negatives = torch.from_numpy(rng.choice(len(odds), (BATCH, _NEGATIVES), p=odds))
    network.zero_grad()
    hidden = around(context).mean(dim=1)
    right = (hidden * out(target)).sum(dim=1)
    wrong = (hidden[:, None] * out(negatives)).sum(dim=2)
    loss = -logsigmoid(right).mean() - logsigmoid(-wrong).sum(dim=1).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([each.grad.flatten() for each in network.parameters() if each.grad is not None]).numpy()


def _reduce(vectors: list[NDArray[np.float32]], seed: int) -> tuple[float, float, float]:
    """Return the seconds of worker 0 in codec lossless, and the bits per element up and down.

    Raises ArithmeticError where the mean is not that of the vectors.
    """
    codec = make_codec("lossless", workers=WORKERS)
    for timed in (False, True):  # the first compiles
        start = time.perf_counter()
        first = codec.start(vectors[0], ReductionContext(seed, int(timed), 0))
        took, used = time.perf_counter() - start, []
        others = [codec.start(x, ReductionContext(seed, int(timed), rank)) for rank, x in enumerate(vectors) if rank]
        while (phase := first.phase) is not None:
            used.append(phase)
            payloads = [phase.payloads, *(each.phase.payloads for each in others if each.phase is not None)]
            results, contributors = simulate_switch(phase.op, payloads, codec.lookup, code_group=codec.code_group)
            start = time.perf_counter()
            first.take(results, contributors)
            took += time.perf_counter() - start
            for each in others:
                each.take(results, contributors)
    mean = first.mean
    exact = np.mean(vectors, axis=0, dtype=np.float64)
    if mean is None or not np.allclose(mean, exact, rtol=1e-5, atol=1e-6 * float(np.abs(exact).max())):
        raise ArithmeticError("codec lossless returned another mean than that of the word model's gradients")
    bits = count_bits(used, vectors[0].size)
    return took, bits.up, bits.down


def step_seconds(step: dict[str, Any], bits_per_s: float) -> tuple[float, float, float]:
    """Return the seconds of a step with a dense float32 gradient, with codec lossless, with indices and values.

    Nothing overlaps. Indices and values cost no processor time here, which favours them.
    """
    dense = step["compute_s"] + 32 * step["parameters"] / bits_per_s
    moved = max(step["bytes_up"], step["bytes_down"])
    lossless = step["compute_s"] + step["codec_s"] + 8 * moved / bits_per_s
    pairs = step["compute_s"] + 8 * step["pair_bytes"] / bits_per_s
    return dense, lossless, pairs
