# SPDX-License-Identifier: Apache-2.0
"""Codecs that tests run with, and backends for those of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hopsum.codec import make_codec
from hopsum.codec.range_codec import RangeCodec

MakeCodec = Callable[..., RangeCodec]
NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "thc": ("thc", {}),
    "thc16": ("thc", {"lane_bits": 16}),
    "uhc": ("uhc", {}),
    "uhc8": ("uhc", {"bits": 8}),
    "fixed": ("fixed", {}),
}
"""Codecs that every test here runs with; test_options.py has all options of thc and uhc."""


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

    def build(workers: int, **options: Any) -> RangeCodec:
        name, own = NAMES[codec_name]
        made = make_codec(name, workers=workers, **(own | options))
        assert isinstance(made, RangeCodec)
        return made

    return build
