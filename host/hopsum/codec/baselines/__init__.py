# SPDX-License-Identifier: Apache-2.0
"""Well-known compressions, for comparisons only: no switch of ours adds them.

    fp16        half precision
    topk        the largest elements and their places
    terngrad    signs, zeros and one scale

Their contract is `hopsum.codec.estimation.base.Estimator`.
"""

from __future__ import annotations

from hopsum.codec.baselines.fp16 import Fp16
from hopsum.codec.baselines.terngrad import TernGrad
from hopsum.codec.baselines.topk import TopK

__all__ = ["Fp16", "TernGrad", "TopK"]
