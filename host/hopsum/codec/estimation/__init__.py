# SPDX-License-Identifier: Apache-2.0
"""Mean estimation with few bits, decoded at the receiver (Suresh, Yu, Kumar, McMahan, ICML 2017).

A switch cannot add these messages: each worker has levels of its own, and `svk` an entropy code. They are the
yardstick: what error a budget of bits buys when the receiver decodes every message by itself.

    estimator    the interface, the mean of several workers; random numbers, levels, packed codes
    quantizers   sb, sk: levels from the smallest to the largest element; srk: the same after a rotation of the whole
                 vector; svk: levels as wide as the norm, codes entropy coded
    bounds       theoretical bounds of error and bits

The package constriction is imported when `svk` is made, not before.
"""

from __future__ import annotations

from hopsum.codec.estimation.estimator import Estimate, Estimator, Message, estimate_mean
from hopsum.codec.estimation.quantizers import Sb, Sk, Srk, Svk

__all__ = ["Estimate", "Estimator", "Message", "Sb", "Sk", "Srk", "Svk", "estimate_mean"]
