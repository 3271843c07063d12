# SPDX-License-Identifier: Apache-2.0
"""Well-known compressions, for comparisons only: no switch of ours adds them.

    fp16        half precision
    topk        the largest elements and their places
    terngrad    signs, zeros and one scale
    registry    estimators by name, those of `hopsum.codec.estimation` too

Their contract is `hopsum.codec.estimation.base.Estimator`.
"""

from __future__ import annotations

from hopsum_evaluation.baselines.fp16 import Fp16
from hopsum_evaluation.baselines.terngrad import TernGrad
from hopsum_evaluation.baselines.topk import TopKEstimator

__all__ = ["Fp16", "TernGrad", "TopKEstimator"]
