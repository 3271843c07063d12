# SPDX-License-Identifier: Apache-2.0
"""Mean estimation with few bits, decoded at the receiver (Suresh, Yu, Kumar, McMahan, ICML 2017).

A switch cannot add these messages: each worker has levels of its own, and `svk` an entropy code. They are the
yardstick: what error a budget of bits buys when the receiver decodes every message by itself.

    base        the interface of an estimator; the mean of several workers
    rng         random numbers by seed, step, rank and place
    levels      equidistant levels, rounding to them without bias, packed codes
    uniform     sb, sk: levels from the smallest to the largest element
    rotated     srk: the same after a random rotation of the whole vector
    variable    svk: levels as wide as the norm, codes entropy coded
    entropy     the stream of svk: a histogram, then codes by its frequencies
    bounds      what theory promises of error and bits

The package constriction is imported when `svk` is made, not before.
"""

from __future__ import annotations

from hopsum.codec.estimation.base import Estimate, Estimator, Message, estimate_mean
from hopsum.codec.estimation.rotated import Srk
from hopsum.codec.estimation.uniform import Sb, Sk
from hopsum.codec.estimation.variable import Svk

__all__ = ["Estimate", "Estimator", "Message", "Sb", "Sk", "Srk", "Svk", "estimate_mean"]
