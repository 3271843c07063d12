# SPDX-License-Identifier: Apache-2.0
"""The methods that are compared, and their parameters."""

from __future__ import annotations

from typing import Any, Final

from hopsum.codec import best_table, make_codec
from hopsum_evaluation.baselines import thc_published
from hopsum_evaluation.baselines.registry import make_estimator
from hopsum_evaluation.baselines.two_shot import BITS
from hopsum_evaluation.compare.endpoints import PowerSgdMethod, TwoShotMethod
from hopsum_evaluation.compare.methods import EstimatorMethod, MethodCandidate, SwitchMethod


def _switch(label: str, codec: str, family: str = "", variant: str = "", **options: Any) -> MethodCandidate:
    def make(workers: int) -> SwitchMethod:
        return SwitchMethod(make_codec(codec, workers=workers, **options))

    return MethodCandidate(label, make, family, variant)


def _estimator(label: str, name: str, family: str = "", **options: Any) -> MethodCandidate:
    return MethodCandidate(label, lambda _: EstimatorMethod(make_estimator(name, **options)), family or name)


def _thc_of_3_bits(workers: int) -> SwitchMethod:
    """Return thc with codes of 3 bits, which travel as 4 and leave room for more workers in lanes of 8 bits."""
    return SwitchMethod(make_codec("thc", workers=workers, table=best_table(workers, bits=3)))


def _two_shot(bits: int) -> MethodCandidate:
    return MethodCandidate(f"two-shot {bits} bits", lambda workers: TwoShotMethod(workers, bits), "two-shot")


def _power_sgd(rank: int) -> MethodCandidate:
    return MethodCandidate(f"powersgd rank {rank}", lambda workers: PowerSgdMethod(workers, rank), "powersgd")


CANDIDATES: Final[tuple[MethodCandidate, ...]] = (
    _switch("thc", "thc", "thc", "8-bit lanes"),
    _switch("thc 16-bit lanes", "thc", "thc", "16-bit lanes", lane_bits=16),
    MethodCandidate("thc 3 bits", _thc_of_3_bits, "thc", "3 bits"),
    _switch("thc 2 bits paired", "thc", "thc", "2 bits paired", bits=2, error_feedback=False),
    _switch("thc packed results", "thc", "thc", "packed results", result_bits=6),
    _switch("thc published", thc_published.NAME, "published", "published"),
    *(_switch(f"uhc {bits} bits", "uhc", "uhc", bits=bits) for bits in (3, 4, 6, 8)),
    _switch("fixed", "fixed", "fixed"),
    _switch("lossless", "lossless", "lossless"),
    _switch("lossless packed", "lossless", "lossless", gamma=0.0),
    _estimator("sb", "sb", "sk"),
    *(_estimator(f"sk {levels} levels", "sk", levels=levels) for levels in (4, 16, 256)),
    *(_estimator(f"srk {levels} levels", "srk", levels=levels) for levels in (4, 16, 256)),
    _estimator("svk", "svk"),
    _estimator("svk 4096 levels", "svk", levels=4096),
    _estimator("fp16", "fp16"),
    _estimator("top 1 %", "topk", fraction=0.01),
    _estimator("top 10 %", "topk", fraction=0.1),
    _estimator("terngrad", "terngrad"),
    *(_two_shot(bits) for bits in BITS),
    *(_power_sgd(rank) for rank in (2, 8)),
)
"""Estimators and baselines have a family of their name, but for sb, which is sk with 2 levels."""
