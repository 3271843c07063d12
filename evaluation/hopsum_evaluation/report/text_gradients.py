# SPDX-License-Identifier: Apache-2.0
"""Gradients of the transformer of section `accuracy`, early, in the middle and late in a training.

One replica learns with AdamW on batches of 32 windows. At three moments the parameters are held, and as many
minibatches as there may be workers give a gradient each. Every 32nd block of 1,024 elements is kept, in the order of
the parameters: a codec sees whole blocks of every layer.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from hopsum_evaluation.report.settings import Settings

if TYPE_CHECKING:
    from torch import nn

    from hopsum_evaluation.report.accuracy_models import Batch

TITLES: Final = {
    "text-early": "gradient of the transformer, early",
    "text-middle": "gradient of the transformer, middle",
    "text-late": "gradient of the transformer, late",
}
_SHARES: Final = (0.05, 0.4, 1.0)
"""The shares of the training after which the gradients of TITLES are taken."""
_BLOCK, _EVERY = 1024, 32
_BATCH, _STEP_BATCH = 8, 32
"""Windows of a worker's minibatch, and of a step of the training."""


def capture_text(settings: Settings, steps: int, workers: int) -> dict[str, NDArray[np.float32]]:
    """Return by kind of TITLES the gradients, float32[workers, elements]. None of them where torch or the text lacks.

    Args:
        steps: steps of the training, at least 4.
    """
    if find_spec("torch") is None or find_spec("pydoc_data") is None:
        return {}
    import torch

    from hopsum_evaluation.report.accuracy_models import load_learning

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # other numbers of threads add in another order
    try:
        learning = load_learning("transformer")
        network = learning.make_network(settings.stream("data", "text") % (1 << 31))
        optimiser, rng = learning.make_optimiser(network), settings.rng("batch", "text")
        moments = {max(1, round(share * steps)): kind for kind, share in zip(TITLES, _SHARES, strict=True)}
        found = {}
        for step in range(1, steps + 1):
            _backward(network, learning.draw(rng, _STEP_BATCH))
            optimiser.step()
            if kind := moments.get(step):
                rows = [_gradient(network, learning.draw(rng, _BATCH)) for _ in range(workers)]
                found[kind] = np.stack(rows)
    finally:
        torch.set_num_threads(threads)
    return found


def _gradient(network: nn.Module, batch: Batch) -> NDArray[np.float32]:
    """Return the kept blocks of a minibatch's gradient, float32[elements], new."""
    _backward(network, batch)
    parts = [each.grad.numpy().ravel() for each in network.parameters() if each.grad is not None]
    whole: NDArray[np.float32] = np.concatenate(parts)
    blocks = whole[: whole.size // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
    return blocks[::_EVERY].ravel()


def _backward(network: nn.Module, batch: Batch) -> None:
    from hopsum_evaluation.report.accuracy_models import loss

    network.zero_grad()
    loss(network, batch).backward()  # type: ignore[no-untyped-call]
