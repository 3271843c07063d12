# SPDX-License-Identifier: Apache-2.0
"""The parts: packed codes, draws, the rotation, the entropy coder's stream; and the baselines' own rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.codec.interface import CodecError, ReductionContext
from hopsum_evaluation.baselines.estimator_interface import RUN, Message, pack, packed_bytes, signs, uniforms, unpack
from hopsum_evaluation.baselines.estimators import make_estimator
from hopsum_evaluation.baselines.suresh import EntropyCoder, hadamard

from .cases import gaussian

pytestmark = pytest.mark.system
CONTEXT = ReductionContext(1, 2, 3)


@pytest.mark.parametrize("elements", [1, 7, 8, 9, 1000, RUN, RUN + 5])
@pytest.mark.parametrize("width", [0, 1, 2, 3, 8, 9, 16, 17, 31, 32])
def test_codes_are_packed_without_gaps(elements: int, width: int) -> None:
    codes = np.random.default_rng(1).integers(0, 1 << width, elements, np.uint32)
    data = pack(codes, width)
    assert len(data) == packed_bytes(elements, width)
    assert (unpack(data, elements, width) == codes).all()
    if elements == 7:
        text = "".join(f"{code:0{width}b}" for code in codes) if width else ""
        assert data.hex() == (int(text.ljust(len(data) * 8, "0"), 2).to_bytes(len(data), "big").hex() if text else "")


def test_draws_depend_on_the_place_alone() -> None:
    whole = uniforms(77, slice(0, RUN))
    assert (uniforms(77, slice(1024, 5000)) == whole[1024:5000]).all()
    assert ((whole > 0) & (whole < 1)).all()
    assert abs(whole.mean() - 0.5) < 4 * np.sqrt(1 / 12 / RUN)
    assert abs(np.square(whole - 0.5).mean() * 12 - 1) < 4 * np.sqrt(0.8 / RUN)
    coins = signs(77, slice(0, RUN))
    assert (signs(77, slice(1024, 5000)) == coins[1024:5000]).all()
    assert set(np.unique(coins)) == {-1.0, 1.0}
    assert abs(coins.sum()) < 4 * np.sqrt(RUN)


@pytest.mark.parametrize("power", [0, 1, 2, 5, 8])
def test_the_rotation_is_the_hadamard_matrix(power: int) -> None:
    size = 1 << power
    places = np.arange(size)
    odd = np.array([[(row & column).bit_count() & 1 for column in places.tolist()] for row in places.tolist()])
    x = np.random.default_rng(1).integers(-50, 50, size).astype(np.float32)
    found = x.copy()
    hadamard(found)
    assert (found == (1 - 2 * odd) @ x).all()


def test_rotating_twice_multiplies_by_the_size() -> None:
    """Longer than a run, so that pairs lie in different tiles; on small integers float32 is exact."""
    x = np.random.default_rng(1).integers(-3, 3, 4 * RUN).astype(np.float32)
    found = x.copy()
    hadamard(found)
    assert np.square(found, dtype=np.float64).sum() == x.size * np.square(x, dtype=np.float64).sum()
    hadamard(found)
    assert (found == x.size * x).all()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_streams_hold_any_codes(data: st.DataObject) -> None:
    pytest.importorskip("constriction")
    levels = data.draw(st.sampled_from([2, 3, 16, 700, 65536]))
    values = data.draw(st.lists(st.integers(0, levels - 1), min_size=1, max_size=200))
    codes = np.array(values, np.uint16)
    coder = EntropyCoder()
    stream = coder.compress(codes, levels)
    assert (coder.expand(stream, codes.size, levels) == codes).all()


def test_long_streams_cross_runs() -> None:
    pytest.importorskip("constriction")
    codes = np.random.default_rng(1).geometric(0.01, 2 * RUN + 77).clip(0, 65535).astype(np.uint16)
    coder = EntropyCoder()
    assert (coder.expand(coder.compress(codes, 65536), codes.size, 65536) == codes).all()


def test_streams_of_another_shape_are_refused() -> None:
    pytest.importorskip("constriction")
    coder = EntropyCoder()
    codes = np.random.default_rng(1).integers(0, 16, 5000).astype(np.uint16)
    stream = coder.compress(codes, 16)
    for data, elements, levels in [
        (stream, 4999, 16),
        (stream, 5000, 17),
        (stream[:-8], 5000, 16),
        (stream + stream[:40], 5000, 16),
        (stream[:-2], 5000, 16),
    ]:
        with pytest.raises(CodecError, match="svk: "):
            coder.expand(data, elements, levels)


def test_a_changed_bit_never_gives_other_codes() -> None:
    """Most changes make the range coder end elsewhere; what passes that has another histogram than was sent."""
    pytest.importorskip("constriction")
    coder = EntropyCoder()
    codes = np.random.default_rng(1).integers(0, 16, 5000).astype(np.uint16)
    stream = bytearray(coder.compress(codes, 16))
    refused = 0
    for place in range(len(stream)):
        stream[place] ^= 1
        try:
            assert (coder.expand(bytes(stream), 5000, 16) == codes).all(), f"byte {place}"
        except CodecError:
            refused += 1
        stream[place] ^= 1
    assert refused >= len(stream) - 4, "but in the last word, where not all bits count"


def test_fp16_is_the_cast() -> None:
    x = np.array([0.1, -65504.0, 65519.0, 1e-8, 1e-7, -3.0], np.float32)
    fp16 = make_estimator("fp16")
    message = fp16.encode(x, CONTEXT)
    assert message.bits == 16 * x.size
    assert (fp16.decode(message, x.size, CONTEXT) == x.astype(np.float16).astype(np.float32)).all()


def test_fp16_refuses_what_it_cannot_hold() -> None:
    x = np.array([1.0, 65520.0, -1e6], np.float32)
    with pytest.raises(CodecError, match=r"2 of 3 elements are beyond 65504, the largest is 1e\+06; scale the vector"):
        make_estimator("fp16").encode(x, CONTEXT)
    with pytest.raises(CodecError, match="1 of 3 elements received are not finite"):
        make_estimator("fp16").decode(Message(np.array([1, np.inf, 2], "<f2").tobytes(), 48), 3, CONTEXT)


def test_topk_sends_the_largest() -> None:
    x = gaussian(1000, 1)[0]
    topk = make_estimator("topk", fraction=0.05)
    message = topk.encode(x, CONTEXT)
    out = topk.decode(message, x.size, CONTEXT)
    assert message.bits == 50 * (32 + 10)
    largest = np.argsort(-np.abs(x), kind="stable")[:50]
    assert set(np.flatnonzero(out)) == set(largest.tolist())
    assert (out[largest] == x[largest]).all()


def test_topk_takes_the_first_of_equal_magnitudes() -> None:
    x = np.array([1, -2, 2, 1, -1, 1, 0], np.float32)
    topk = make_estimator("topk", fraction=4 / 7)
    assert topk.decode(topk.encode(x, CONTEXT), 7, CONTEXT).tolist() == [1, -2, 2, 1, 0, 0, 0]
    everything = make_estimator("topk", fraction=1.0)
    assert (everything.decode(everything.encode(x, CONTEXT), 7, CONTEXT) == x).all()


def test_terngrad_sends_five_digits_a_byte() -> None:
    x = gaussian(1003, 1)[0]
    terngrad = make_estimator("terngrad")
    message = terngrad.encode(x, CONTEXT)
    assert message.bits == 32 + 8 * 201
    out = terngrad.decode(message, x.size, CONTEXT)
    scale = np.abs(x).max()
    assert set(np.unique(out)) <= {-scale, np.float32(0), scale}
    assert (np.sign(out) * np.sign(x) >= 0).all()
    assert (terngrad.encode(out, CONTEXT).payload) == message.payload, "digits of certain elements stay"
    with pytest.raises(CodecError, match="a byte of 243"):
        terngrad.decode(Message(message.payload[:-1] + b"\xf3", 0), x.size, CONTEXT)
