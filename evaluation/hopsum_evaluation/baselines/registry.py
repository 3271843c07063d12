# SPDX-License-Identifier: Apache-2.0
"""Estimators by name: those of the paper, and the baselines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hopsum.codec.estimation import Estimator, Sb, Sk, Srk, Svk
from hopsum.codec.interface import CodecError
from hopsum_evaluation.baselines import Fp16, TernGrad, TopKEstimator

ESTIMATORS: Final[dict[str, Callable[..., Estimator]]] = {
    "sb": Sb,
    "sk": Sk,
    "srk": Srk,
    "svk": Svk,
    "fp16": Fp16,
    "topk": TopKEstimator,
    "terngrad": TernGrad,
}
"""Called with the estimator's own options. All have defaults."""


def make_estimator(name: str, **options: Any) -> Estimator:
    """Make an estimator.

    Args:
        name: "sb", "sk" and "srk" (option levels), "svk" (levels, needs constriction), "fp16", "topk" (fraction),
            "terngrad" (clip_sigma).

    Raises:
        CodecError: unknown name, an option out of its range, or a package that is missing.
    """
    if name not in ESTIMATORS:
        raise CodecError(f"estimator {name!r}: one of {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name](**options)
