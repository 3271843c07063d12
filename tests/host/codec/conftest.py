# SPDX-License-Identifier: Apache-2.0
"""Codecs that tests run with, and backends for those of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hopsum.codec import make_codec
from hopsum.codec.range_codec import RangeCodec

MakeCodec = Callable[..., RangeCodec]
REQUANTIZED: dict[str, tuple[str, dict[str, Any]]] = {
    "thc": ("thc", {}),
    "thc3": ("thc", {"bits": 3}),
    "thc2": ("thc", {"bits": 2}),
}
"""Codecs whose results are codes: the switch looks sums up again."""
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "thc8": ("thc", {"result_bits": 8}),
    "stochastic": ("thc", {"rounding": "stochastic"}),
    "stochastic16": ("thc", {"rounding": "stochastic", "lane_bits": 16}),
    "uhc": ("uhc", {}),
    "uhc8": ("uhc", {"bits": 8}),
    "fixed": ("fixed", {}),
}
"""Codecs whose results are whole sums: nothing is lost on the way down."""
NAMES = REQUANTIZED | WHOLE
"""Codecs that every test here runs with; test_options.py has all options of thc and uhc."""
MOST_NMSE = {"thc": 0.03, "thc3": 0.1, "thc2": 0.35}
"""NMSE that no mean of up to 17 workers with much in common exceeds; of the other codecs it is below 0.02."""


@pytest.fixture(params=["numpy", "numba"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "numba":
        pytest.importorskip("numba")
    return str(request.param)


@pytest.fixture(params=list(NAMES))
def codec_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(codec_name: str) -> MakeCodec:
    """Make the codec under test: `make(workers)`. That backends agree is proved for their kernels (test_backends)."""
    return maker(codec_name)


@pytest.fixture(params=list(WHOLE))
def whole_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_whole(whole_name: str) -> MakeCodec:
    """Make the codec under test, as `make` does, of those with whole sums."""
    return maker(whole_name)


def maker(codec_name: str) -> MakeCodec:
    def build(workers: int, **options: Any) -> RangeCodec:
        name, own = NAMES[codec_name]
        made = make_codec(name, workers=workers, **(own | options))
        assert isinstance(made, RangeCodec)
        return made

    return build
