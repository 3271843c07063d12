# SPDX-License-Identifier: Apache-2.0
"""Laws of every estimator, for every vector."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.codec.interface import CodecError, ReductionContext
from hopsum_evaluation.baselines.estimator_interface import Estimator, Message, estimate_mean
from hopsum_evaluation.baselines.estimators import ESTIMATORS, make_estimator

from .cases import Floats, gaussian, heavy

pytestmark = pytest.mark.system
CONTEXT = ReductionContext(seed=5, step=2, rank=1)
LARGEST = float(np.finfo(np.float32).max)
SIZES = [1, 2, 3, 4, 5, 17, 1000, 1023, 1024, 1025, (1 << 16) + 1, 200_003]
INSTALLED = [name for name in ESTIMATORS if name != "svk" or find_spec("constriction")]
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=True)


@pytest.fixture(params=list(ESTIMATORS))
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "svk":
        pytest.importorskip("constriction")
    return str(request.param)


def round_trip(estimator: Estimator, x: Floats, context: ReductionContext = CONTEXT) -> Floats:
    """Decode from bytes alone, in an object of its own."""
    message = estimator.encode(x, context)
    assert len(message.payload) == -(-message.bits // 8)
    options = {key: value for key, value in vars(estimator).items() if key in ("levels", "fraction", "clip_sigma")}
    fresh = make_estimator(estimator.name, **({} if estimator.name == "sb" else options))
    out = fresh.decode(Message(bytes(message.payload), 0), x.size, context)
    assert out.dtype == np.float32
    assert out.shape == x.shape
    assert np.isfinite(out).all()
    return out


@pytest.mark.parametrize("elements", SIZES)
def test_any_length_makes_the_trip(name: str, elements: int) -> None:
    x = gaussian(elements, 1)[0]
    x.flags.writeable = False
    estimator = make_estimator(name)
    out = round_trip(estimator, x)
    assert out.tobytes() == round_trip(estimator, x).tobytes()
    near = {"sb": 4.5, "sk": 0.4, "srk": 0.4, "svk": 1.5, "fp16": 2.0**-11, "topk": 1.0, "terngrad": 3.0}
    assert np.linalg.norm(out - x) <= near[name] * np.linalg.norm(x) * math.sqrt(math.log(elements + 3))


def test_randomness_follows_seed_step_and_rank(name: str) -> None:
    x = gaussian(1000, 1)[0]
    estimator = make_estimator(name)
    contexts = [CONTEXT, ReductionContext(6, 2, 1), ReductionContext(5, 3, 1), ReductionContext(5, 2, 2)]
    payloads = {estimator.encode(x, context).payload for context in contexts}
    assert len(payloads) == (1 if name in ("fp16", "topk") else 4)


@pytest.mark.parametrize("levels", [2, 3, 16, 1000, 65536])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(values=st.lists(FINITE, min_size=1, max_size=70), step=st.integers(0, 1 << 40))
def test_an_estimate_is_within_one_level(levels: int, values: list[float], step: int) -> None:
    x = np.array(values, np.float32)
    wide = x.astype(np.float64)
    context = ReductionContext(1, step, 0)
    norm, rounding = math.sqrt(wide @ wide), 2.0**-22 * np.abs(wide).max() + 2.0**-149
    widths = {"sk": wide.max() - wide.min(), "svk": math.sqrt(2) * norm}
    for name, width in widths.items():
        if name not in INSTALLED:
            continue
        out = round_trip(make_estimator(name, levels=levels), x, context)
        assert np.abs(out - wide).max() <= width / (levels - 1) * (1 + 1e-9) + rounding
    out = round_trip(make_estimator("srk", levels=levels), x, context)
    reach = math.sqrt(128 * 2) * norm / (levels - 1)  # of at most 128 coordinates, each within one level
    assert np.linalg.norm(out - wide) <= reach + 16 * rounding


@settings(max_examples=60, deadline=None, derandomize=True)
@given(value=FINITE, elements=st.integers(1, 3000))
def test_constant_vectors_are_exact(value: float, elements: int) -> None:
    x = np.full(elements, value, np.float32)
    for name in {"sb", "sk", "svk", "terngrad"}.intersection(INSTALLED):
        assert (round_trip(make_estimator(name), x) == x).all()


@pytest.mark.parametrize(
    "values",
    [
        [LARGEST, -LARGEST],
        [LARGEST, LARGEST, -LARGEST],
        [LARGEST] * 500 + [-LARGEST] * 500,
        [1e-45],
        [1e-45, -1e-45, 0.0],
        [1e-40, 3e-42, -1e-45] * 100,
        [LARGEST, 1e-45],
        [LARGEST] + [1e-45] * 999,
    ],
    ids=["max", "three", "many", "one", "tiny", "subnormal", "both", "spike"],
)
@pytest.mark.parametrize("levels", [2, 16, 65536])
def test_the_ends_of_float32_stay_finite(values: list[float], levels: int) -> None:
    x = np.array(values, np.float32)
    for name in {"sk", "srk", "svk"}.intersection(INSTALLED):
        out = round_trip(make_estimator(name, levels=levels), x)
        if levels == 65536:
            assert np.abs(out - x.astype(np.float64)).max() <= 1e-3 * np.abs(x).max() + 1e-45
    round_trip(make_estimator("terngrad"), x)
    round_trip(make_estimator("topk"), x)


def test_vectors_that_are_not_finite_are_refused(name: str) -> None:
    x = gaussian(1000, 1)[0]
    x[[3, 500, 999]] = np.nan, np.inf, -np.inf
    with pytest.raises(CodecError, match="3 of 1000 elements are not finite, the first is element 3"):
        make_estimator(name).encode(x, CONTEXT)
    with pytest.raises(CodecError, match="contiguous float32"):
        make_estimator(name).encode(x[::2], CONTEXT)


def test_a_payload_of_another_length_is_refused(name: str) -> None:
    estimator = make_estimator(name)
    message = estimator.encode(heavy(1000, 1)[0], CONTEXT)
    wrong = [message.payload[:-1], message.payload + b"\0", message.payload[:2], b""]
    for payload in wrong:
        with pytest.raises(CodecError, match=f"{name}: "):
            estimator.decode(Message(payload, message.bits), 1000, CONTEXT)
    for elements in (0, -1):
        with pytest.raises(CodecError, match=f"{name}: "):
            estimator.decode(message, elements, CONTEXT)
    if name == "svk":
        with pytest.raises(CodecError, match="svk: "):
            estimator.decode(Message(message.payload[:-4], 0), 1000, CONTEXT)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_bytes_from_elsewhere_are_refused_or_decoded(data: st.DataObject) -> None:
    """Any change of a payload gives finite numbers or CodecError."""
    estimator = make_estimator(data.draw(st.sampled_from(INSTALLED)))
    payload = bytearray(estimator.encode(gaussian(100, 1)[0], CONTEXT).payload)
    for _ in range(data.draw(st.integers(1, 8))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        out = estimator.decode(Message(bytes(payload), 0), 100, CONTEXT)
    except CodecError:
        return
    assert np.isfinite(out).all()


BAD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("sk", {"levels": 1}, "1 levels: an estimator has 2 to 65536"),
    ("srk", {"levels": 65537}, "65537 levels"),
    ("svk", {"levels": 0}, "0 levels"),
    ("topk", {"fraction": 0.0}, "fraction 0.0"),
    ("topk", {"fraction": 1.5}, "fraction 1.5"),
    ("terngrad", {"clip_sigma": 0.0}, "clip_sigma 0.0"),
    ("other", {}, "one of sb, sk, srk, svk, fp16, topk, terngrad"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD_OPTIONS)
def test_bad_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        make_estimator(name, **options)


def test_svk_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "constriction", None)
    with pytest.raises(CodecError, match=r"pip install 'hopsum\[estimation\]'"):
        make_estimator("svk")


def test_a_mean_takes_vectors_of_one_length() -> None:
    sk = make_estimator("sk")
    for vectors in ([], [*gaussian(5, 1), *gaussian(6, 1)]):
        with pytest.raises(CodecError, match="a mean takes vectors of one length"):
            estimate_mean(sk, vectors, 1, 1)


def test_the_mean_of_workers_is_that_of_their_estimates() -> None:
    sk, vectors = make_estimator("sk"), gaussian(1000, 3)
    alone = [round_trip(sk, x, ReductionContext(9, 8, rank)).astype(np.float64) for rank, x in enumerate(vectors)]
    mean, bits = estimate_mean(sk, vectors, seed=9, step=8)
    np.testing.assert_allclose(mean, np.mean(alone, axis=0), rtol=1e-6, atol=1e-7)
    assert bits == 3 * (64 + 4000)
