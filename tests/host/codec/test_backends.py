# SPDX-License-Identifier: Apache-2.0
"""Backends agree bit for bit, and the definition is what it says."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.codec import CodecError, ReductionContext, make_codec
from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import THC_BLOCK, BlockKeys, CodeTable, Form, Kernels
from hopsum.codec.hashing import block_keys, derive_key, lane_bits
from hopsum.codec.lookup_table import optimal_table
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.registry import CODECS, self_check
from hopsum.codec.thc import Thc
from hopsum_wire import CODE_GROUPS, unpack_codes

from .vectors import encode_alone, layered, normal, phases, signed_hadamard

KEYS = BlockKeys(rotation=derive_key(1, 2), rounding=derive_key(3, 4), first=0)


FEW = (1, 2, 3, 4, 8, 9, 17)
FORMS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("fixed", {}, FEW),
    ("thc", {}, FEW),
    ("thc", {"bits": 3}, FEW),
    ("thc", {"bits": 2}, (*FEW, 42)),
    ("thc", {"result_bits": 8}, (*FEW, 18, 33, 64)),
    ("thc", {"rounding": "stochastic"}, FEW),
    ("thc", {"rounding": "stochastic", "lane_bits": 16}, FEW),
    *(("uhc", {"bits": bits}, FEW) for bits in (1, 2, 4, 6, 8)),
    ("uhc", {"bits": 3, "lane_bits": 16}, FEW),
    ("uhc", {"bits": 5, "lane_bits": 16}, FEW),
]
"""Codecs, and numbers of workers of theirs."""


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    job=st.sampled_from(FORMS).flatmap(lambda form: st.tuples(st.just(form), st.sampled_from(form[2]))),
    elements=st.integers(1, 5000),
    seed=st.integers(-(1 << 70), 1 << 70),
    step=st.integers(0, 1 << 40),
    exponent=st.integers(-44, 34),
    stretch=st.sampled_from([0.01, 0.5, 1.0, 1.7, 1e4]),
)
def test_numba_equals_numpy(
    job: tuple[tuple[str, dict[str, Any], Any], int], elements: int, seed: int, step: int, exponent: int, stretch: float
) -> None:
    pytest.importorskip("numba")
    x = layered(elements, seed=elements) * np.float32(10.0**exponent)
    (name, options, _), workers = job
    context = ReductionContext(seed, step, workers - 1)
    numpy, numba = (CODECS[name](workers, kernels=load_kernels(backend), **options) for backend in ("numpy", "numba"))
    assert isinstance(numpy, RangeCodec)
    assert isinstance(numba, RangeCodec)
    ranges = numpy.ranges(x)
    if float(ranges.view(np.float32).max()) * max(stretch, 1.0) > 3e38:
        assert numba.ranges(x).tobytes() == ranges.tobytes()
        return
    assert phases(numpy, x, context, stretch) == phases(numba, x, context, stretch)


@pytest.mark.parametrize("lane_bits", [8, 16])
def test_a_group_moves_codes_and_changes_nothing_else(backend: str, lane_bits: int) -> None:
    """Codes of every group are those of the default one, packed by `pack_codes`; what they add to a sum is the same."""
    x = normal(4 * THC_BLOCK).reshape(-1, THC_BLOCK * 8 // lane_bits)
    steps, kernels = CodeTable.from_values(optimal_table(21, 1e-3)), load_kernels(backend)
    scales, shifts = np.full(len(x), 6000.0, np.float32), np.zeros(len(x), np.int32)
    codes, restored = [], []
    for group in CODE_GROUPS:
        form = Form(lane_bits, group_codes=group)
        payloads, out = np.empty((len(x), form.up_bytes), np.uint8), np.empty_like(x)
        kernels.thc_encode(x, scales, shifts, steps, form, KEYS, payloads)
        kernels.thc_dequantize(payloads, 1 / scales, steps, form, KEYS, out, False)
        codes.append(unpack_codes(payloads, lane_bits, group).tobytes())
        restored.append(out.tobytes())
    assert len(set(codes)) == len(set(restored)) == 1


@pytest.mark.parametrize(
    ("spelled", "digest"),
    [
        ("thc:rounding=stochastic", "7dc367905c27fb56"),
        ("thc", "27ae7b4f80e994af"),
        ("thc:bits=3", "68eeb4ae5c5ee414"),
        ("thc:bits=2", "d38cd783f53921ac"),
    ],
)
def test_codes_do_not_change_by_accident(backend: str, spelled: str, digest: str) -> None:
    """All ranks of a job must make the same codes of the same vector, whatever release they run."""
    x = (np.arange(5000) % 97 - 48).astype(np.float32)
    codec = make_codec(spelled, workers=8, backend=backend)
    assert isinstance(codec, RangeCodec)
    payloads, _ = encode_alone(codec, x, ReductionContext(seed=1, step=2, rank=3))
    assert hashlib.sha256(payloads.tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("form", [Form(), Form(16)])
def test_decoding_is_the_signed_hadamard_matrix(backend: str, form: Form) -> None:
    """Unit lanes against a matrix made with Kronecker products."""
    coordinates = [0, 1, 2, 31, 63, 64, 65, 500]
    sums = np.zeros((len(coordinates), form.block_elements), f">u{form.lane_bits // 8}")
    sums[np.arange(len(coordinates)), coordinates] = 20
    out = np.empty(sums.shape, np.float32)
    ones = np.ones(len(sums), np.float32)
    lanes = sums.view(np.uint8)
    load_kernels(backend).thc_decode(lanes, np.ones(len(sums), np.int32), ones, 20, form, KEYS, out)
    for row, found in enumerate(out):
        expected = signed_hadamard(KEYS, form, row).T @ (2 * sums[row].astype(np.int64) - 20)
        np.testing.assert_array_equal(found, expected)


def test_the_largest_sums_of_wide_lanes_do_not_overflow(backend: str) -> None:
    """Lanes that one row of the Hadamard matrix adds up with equal signs, of 65,535 each."""
    form, row = Form(16), 77
    matrix = signed_hadamard(KEYS, form, 0)
    sums = np.where(matrix[:, row] > 0, 65535, 0).astype(">u2")[None].view(np.uint8)
    out = np.empty((1, 512), np.float32)
    counts, factor = np.array([5], np.int32), np.ones(1, np.float32)
    load_kernels(backend).thc_decode(sums, counts, factor, 13107, form, KEYS, out)
    assert out[0, row] == 512 * 65535
    assert np.abs(np.delete(out[0], row)).max() == 0


@pytest.mark.parametrize("form", [Form(), Form(16)])
@pytest.mark.parametrize("shift", [0, 3])
def test_encoding_is_the_signed_hadamard_matrix_and_the_table(backend: str, form: Form, shift: int) -> None:
    """Codes against the definition in float64, away from thresholds by the random number alone."""
    elements, values = form.block_elements, optimal_table(21, 1e-3)
    x, out = normal(4 * elements).reshape(4, -1), np.empty((4, form.up_bytes), np.uint8)
    scales, shifts = np.full(4, 6000.0, np.float32), np.full(4, shift, np.int32)
    load_kernels(backend).thc_encode(x, scales, shifts, CodeTable.from_values(values), form, KEYS, out)
    table = np.array(values)
    lanes = table[unpack_codes(out, form.lane_bits)]
    for block in range(4):
        scaled = np.rint(x[block] * np.float32(6000)).astype(np.int64)
        q = np.clip((signed_hadamard(KEYS, form, block) @ scaled) * 2**shift / 65536 + 10.5, 0, 21)
        upper = np.clip(np.searchsorted(table, q), 1, 15)
        below, above = table[upper - 1].astype(float), table[upper].astype(float)
        assert ((lanes[block] == below) | (lanes[block] == above)).all()
        assert abs((lanes[block] - q).sum()) < 5 * np.sqrt(((above - q) * (q - below)).sum())


@pytest.mark.parametrize("values", [optimal_table(21, 1e-3), tuple(range(22))])
def test_rounding_probability_is_exact_to_sixteen_bits(backend: str, values: tuple[int, ...]) -> None:
    """A constant coordinate between two values: the fraction rounded up is the distance."""
    blocks, form = 256, Form(packed=len(values) <= 16)
    x, out = np.zeros((blocks, THC_BLOCK), np.float32), np.empty((blocks, form.up_bytes), np.uint8)
    given = (np.ones(blocks, np.float32), np.zeros(blocks, np.int32), CodeTable.from_values(values))
    load_kernels(backend).thc_encode(x, *given, form, KEYS, out)
    lanes = np.array(values)[unpack_codes(out) if form.packed else out]
    up = int((lanes == 11).sum())
    assert up + int((lanes == 10).sum()) == lanes.size
    assert abs(up - lanes.size / 2) < 4 * np.sqrt(lanes.size) / 2


def test_splitmix64_and_random_bits() -> None:
    assert derive_key(1) == 0xE220A8397B1DCDAF
    assert block_keys(5, 3, 2).tolist() == [derive_key(1 ^ 8), derive_key(1 ^ 9)]
    bits = lane_bits(block_keys(derive_key(1), 0, 512), 512)
    for shift in range(32):
        ones = int((bits >> np.uint32(shift) & np.uint32(1)).sum())
        assert abs(ones - bits.size / 2) < 4.5 * np.sqrt(bits.size) / 2, f"bit {shift}"
    for half in (bits & np.uint32(0xFFFF), bits >> np.uint32(16)):
        counts = np.bincount((half >> np.uint32(8)).reshape(-1), minlength=256)
        assert abs(((counts - bits.size / 256) ** 2).sum() / (bits.size / 256) - 255) < 5 * np.sqrt(510)
    low, high = (bits & np.uint32(0xFFFF)).astype(float), (bits >> np.uint32(16)).astype(float)
    for other in (high, np.roll(low, 1, axis=0), np.roll(low, 1, axis=1)):
        correlation = np.corrcoef(low.reshape(-1), other.reshape(-1))[0, 1]
        assert abs(correlation) < 4.5 / np.sqrt(bits.size)


def test_keys_depend_on_every_part_and_its_place() -> None:
    keys = [derive_key(), derive_key(0), derive_key(0, 0), derive_key(1, 2), derive_key(2, 1), derive_key(-1)]
    assert len(set(keys)) == len(keys)


def test_ranks_rotate_alike_and_round_apart(backend: str) -> None:
    codec, x = make_codec("thc", workers=4, backend=backend), normal(1 << 16)
    codes = {c: encode_alone(codec, x, ReductionContext(*c))[0] for c in [(1, 1, 0), (1, 1, 1), (1, 2, 0), (2, 1, 0)]}
    first = codes.pop((1, 1, 0))
    high = {c: np.mean(abs((first >> 4).astype(int) - (other >> 4).astype(int)) > 1) for c, other in codes.items()}
    assert high[1, 1, 1] == 0, "the same coordinates: codes are neighbours"
    assert np.any(first != codes[1, 1, 1]), "rounded apart"
    assert min(high[1, 2, 0], high[2, 1, 0]) > 0.5, "other rotations: other coordinates"


def test_importing_codecs_loads_no_numba_until_one_is_made() -> None:
    pytest.importorskip("numba")
    code = (
        "import sys, hopsum.codec; before = 'numba' in sys.modules;"
        "hopsum.codec.make_codec('fixed', workers=2, backend='numpy'); numpy = 'numba' in sys.modules;"
        "made = hopsum.codec.make_codec('fixed', workers=2); sys.exit(before or numpy or made.backend != 'numba')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_threads_may_share_a_codec(backend: str) -> None:
    codec = make_codec("thc", workers=4, backend=backend)
    vectors = [layered(200_000, seed=seed) for seed in range(4)]
    expected = [encode_alone(codec, x, ReductionContext(1, 1, 0))[0].tobytes() for x in vectors]
    found: dict[int, bytes] = {}

    def work(index: int) -> None:
        for _ in range(3):
            found[index] = encode_alone(codec, vectors[index], ReductionContext(1, 1, 0))[0].tobytes()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(4)] == expected


class OffByOne(Kernels):
    """A backend that gets one code wrong."""

    name = "broken"

    def thc_encode(self, x: Any, scales: Any, shifts: Any, steps: Any, form: Any, keys: Any, out: Any) -> None:
        super().thc_encode(x, scales, shifts, steps, form, keys, out)
        out[-1, -1] ^= 1


def test_self_check_finds_a_wrong_code() -> None:
    with pytest.raises(CodecError, match=r"phase 2 \(LOOKUP_ADD_LOOKUP4\) of backend broken"):
        self_check(Thc(4, kernels=OffByOne()), Thc(4, kernels=Kernels()))
    self_check(Thc(4, kernels=Kernels()), Thc(4, kernels=Kernels()))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(CodecError, match="there are thc, uhc, fixed"):
        make_codec("nothing", workers=2)
    with pytest.raises(CodecError, match="one of auto, numpy, numba"):
        make_codec("thc", workers=2, backend="nothing")
