# SPDX-License-Identifier: Apache-2.0
"""The kernels of codec thc in plain torch operations, the launches of those in Triton, and tables as both take them.

The definition, to the byte, is that of hopsum/codec/backends/kernels.py. All tensors are contiguous and on one
device. Rows are blocks of 1024 elements. A method fills its argument's own memory. Its `form` has lanes of 8 bits, and
packed codes in groups of LANE_GROUP_CODES.

Two backends. Plain torch operations run on any device; Triton kernels are compared with them where numpy would be too
slow. Triton runs on CUDA devices, and on the CPU under its interpreter (TRITON_INTERPRET=1 before triton is imported),
which is how its results are tested on machines without a GPU. triton_kernels.py is imported at the first use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from hopsum.codec.backends.kernels import FRACTION_BITS, THC_BLOCK, BlockKeys, Form
from hopsum.codec.dither import CLASSES, SHARES, Dither
from hopsum.codec.hashing import LANE_FIRST, LANE_SECOND, LANE_STRIDE
from hopsum.codec.interface import CodecError

MAX_ENTRIES: Final = 16
MAX_GRANULARITY: Final = 127
"""The largest granularity of a table: widths, codes and values have fields of a 32-bit word."""
CELLS: Final = MAX_GRANULARITY + 2
"""Cells of a table's grid: cell i is [i, i + 1). From the table's end on they stand for the end."""
FLOAT_LIMIT: Final = 14.0
"""Largest g/(2t) for which the rotation may add in float32, to the byte.

Let n be the 2-norm of v, at most 2^16 g/(2t) + 16. After k stages it is 2^(k/2) n, which bounds every value: up to
stage 8 all are below 2^24, and exact. Let P and Q be the two values of stage 9 that make a y = P + Q or P - Q. If both
are within 2^24, y is exact or beyond 2^24. If |P| is not, Q^2 <= 2^9 n^2 - 2^48 < (2^24 - 2^22)^2, so |y| is above
2^22. Either way y is right, or beyond the table's end (g 2^15 < 2^22) on the right side, where it is clamped.
"""
POSITION: Final = 0x3F800000
"""Bits of the float32 1: a position on the table's scale, 16 bits after the point, is added to them."""


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """A table on a device."""

    granularity: int
    exact_float: bool
    """True where rotated values of an encoding are exact in float32."""
    values: torch.Tensor
    """uint8[16]"""
    doubled: torch.Tensor
    """float32[16]: twice the values"""
    cells: torch.Tensor
    """int32[129], by cell, modulo 2^32: POSITION + upper 2^16 + width - (code of upper) 2^28

    Upper is the table's value above the cell, width its distance to the one below. For a position q in the cell and
    random bits u, POSITION + q + (u + 1) width - cell = (code of upper) 2^28 + (q + u width - upper 2^16), whose
    highest 4 bits are the code: that of upper, less one if the bracket is negative.
    """

    @classmethod
    def from_values(cls, values: tuple[int, ...], bound: float, device: torch.device) -> DeviceTable:
        """Return the table of these values on a device.

        Args:
            values: T[0..], rising from 0 to g; codes that there are not stand for the last value.
            bound: t

        Raises:
            CodecError: too many values, or too large ones.
        """
        granularity = values[-1]
        if len(values) > MAX_ENTRIES or granularity > MAX_GRANULARITY:
            raise CodecError(
                f"a table of {len(values)} values up to {granularity}: codec thc on torch tensors takes at most "
                f"{MAX_ENTRIES} values up to {MAX_GRANULARITY}"
            )
        # Codes beyond the table are never sent. A look-up of 16 values needs no bounds check.
        padded = values + (granularity,) * (MAX_ENTRIES - len(values))
        words = [
            POSITION + (upper << 16) + upper - lower - (code << 28)
            for code, (lower, upper) in enumerate(pairwise(values), start=1)
            for _ in range(lower, upper)
        ]
        # Cells at and beyond the table's end: the last code, whatever the random bits are.
        end = POSITION + (granularity << 16) - (len(values) - 1 << 28)
        words += [end] * (CELLS - len(words))
        return cls(
            granularity,
            granularity / (2 * bound) <= FLOAT_LIMIT,
            torch.tensor(padded, dtype=torch.uint8, device=device),
            torch.tensor(padded, dtype=torch.float32, device=device) * 2,
            torch.tensor([as_signed(word, 32) for word in words], dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True)
class DeviceDither:
    """A subtractive dither on a device, see hopsum/codec/dither.py. Its values w are small integers in float32."""

    granularity: int
    unit: int
    offsets: torch.Tensor
    """float32[ranks, 16]: what is subtracted from `unit` times a code of each rank, by the shared bits. It is the known
    dither and the middle of the levels."""
    bounds: torch.Tensor
    """int32[ranks + 1, CLASSES - 1], see `ResultValues`. It has no rows where results are whole sums."""
    values: torch.Tensor
    """float32[ranks + 1, CLASSES, 16], see `ResultValues`. It has no rows where results are whole sums."""

    @classmethod
    def from_dither(cls, dither: Dither, device: torch.device) -> DeviceDither:
        """Return a copy of a dither on a device."""
        offsets = dither.own.astype(np.float32) + dither.unit * dither.granularity // 2
        bounds, values = np.empty((0, CLASSES - 1), np.int32), np.empty((0, CLASSES, SHARES), np.float32)
        if dither.results is not None:
            bounds, values = dither.results.bounds.astype(np.int32), dither.results.values.astype(np.float32)
        tensors = (torch.tensor(each, device=device) for each in (offsets, bounds, values))
        return cls(dither.granularity, dither.unit, *tensors)


class DeviceContributors(NamedTuple):
    """The contributors to the sums of blocks, on a device."""

    counts: torch.Tensor
    """int32[blocks]: their number."""
    rows: torch.Tensor
    """int32[blocks], the row of `offsets` for each block. It is empty without a dither."""
    offsets: torch.Tensor
    """float32[sets, 16], what is subtracted from w by the shared bits, for each set of contributors: the sum of their
    known dithers, and of a whole sum the middle of its levels. It is empty without a dither."""

    def part(self, blocks: slice) -> DeviceContributors:
        """Return the contributors of a run of blocks."""
        return self._replace(counts=self.counts[blocks], rows=self.rows[blocks])


def as_signed(value: int, bits: int = 64) -> int:
    """Return the integer of `bits` bits, two's complement, that is equal to value modulo 2^bits."""
    # torch has no unsigned 64-bit integers: two's complement is the same modulo 2^bits.
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits)


# ---- plain torch operations --------------------------------------------------------------------------------

_CPU_RUN_BLOCKS: Final = 256
_DEVICE_RUN_BLOCKS: Final = 16384
_QUARTER: Final = THC_BLOCK // 4
_OWN_BITS: Final = 12
"""The bits of a dithered rank's random number that are its own."""
_OWN_MASK: Final = (1 << _OWN_BITS) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


class TorchKernels:
    """The kernels of a backend. This class is the reference, in plain torch operations, and the base of the others."""

    name = "torch"

    def root_mean_square(self, x: torch.Tensor) -> torch.Tensor:
        """Return the root mean square of each row of float32[blocks, 1024], float32[blocks]."""
        out = torch.empty(len(x), dtype=torch.float32, device=x.device)
        for run in _runs(x):
            # 16 running sums, then halved: numpy's order of additions, to the bit.
            lanes = torch.zeros((run.stop - run.start, 16), dtype=torch.float64, device=x.device)
            for row in range(0, x.shape[1], 16):
                part = x[run, row : row + 16].double()
                lanes += part * part
            for half in (8, 4, 2, 1):
                lanes = lanes[:, :half] + lanes[:, half : 2 * half]
            out[run] = (lanes[:, 0] / x.shape[1]).sqrt().float()
        return out

    def compensate(self, x: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor) -> torch.Tensor:
        """Fill pending with x + residual, float32[blocks, 1024] all. Return its root mean squares."""
        torch.add(x, residual, out=pending)
        return self.root_mean_square(pending)

    def thc_encode(
        self,
        x: torch.Tensor,
        scales: torch.Tensor,
        shifts: torch.Tensor,
        table: DeviceTable,
        form: Form,
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> None:
        """Fill packed codes uint8[blocks, up_bytes] from float32[blocks, 1024].

        Args:
            scales: float32[blocks], factors of elements before they are rotated.
            shifts: int32[blocks], k in 0..23: rotated values are multiplied with 2^k.
            table: with a dither its values are its codes.
            keys: with `shift` >= 0 for a dither.
        """
        top = table.granularity << FRACTION_BITS
        for run in _runs(x):
            # torch.round rounds half to even, as numpy's rint.
            v = torch.round(x[run] * scales[run, None]).to(torch.int32) * _signs(keys, run, x)
            shift = shifts[run, None]
            # Clamp before the shift: with k of up to 23 bits it would leave 32.
            most = ((top >> 1) >> shift) + 1
            q = torch.maximum(torch.minimum(_to_wire(_hadamard(v)), most), -most) << shift
            q = q.add_(top >> 1).clamp_(0, top)
            u = _fractions(keys, run, x)
            if keys.shift >= 0:
                known = (_shared_bits(keys, run, x.device) + keys.shift) & (SHARES - 1)
                codes = (q + ((u & _OWN_MASK) | known << _OWN_BITS)) >> FRACTION_BITS
            else:
                # One look-up gives the neighbours of a position, their distance, and the code, in one word of 32 bits.
                cell = table.cells[(q >> FRACTION_BITS).long()]
                width = cell & 0xFF
                codes = _right(q + u * width + (width + POSITION - cell), 28)
            out[run] = pack_codes(codes.to(torch.uint8), form.code_bits)

    def thc_decode(
        self,
        lanes: torch.Tensor,
        counts: torch.Tensor,
        factors: torch.Tensor,
        granularity: int,
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Fill float32[blocks, 1024] from lane sums uint8[blocks, 1024] of counts[block] (int32) workers.

        Returns:
            int32[1], 0 if all sums are within counts * granularity.
        """
        beyond = torch.zeros(1, dtype=torch.int32, device=lanes.device)
        for run in _runs(lanes):
            sums, centre = lanes[run].to(torch.int32), counts[run, None] * granularity
            # Kept on the device: a check on the host here would wait for it.
            beyond |= (sums > centre).any().to(torch.int32)
            out[run] = _back(2 * sums - centre, factors, keys, run)
        return beyond

    def thc_subtract(
        self, payloads: torch.Tensor, factors: torch.Tensor, table: DeviceTable, keys: BlockKeys, pending: torch.Tensor
    ) -> None:
        """Subtract from pending, float32[blocks, 1024], the share of packed codes, uint8[blocks, 512], in a sum."""
        for run in _runs(payloads):
            values = table.values[unpack_codes(payloads[run], 4).long()]
            pending[run] -= _back(2 * values.to(torch.int32) - table.granularity, factors, keys, run)

    def dither_decode(
        self,
        results: torch.Tensor,
        contributors: DeviceContributors,
        factors: torch.Tensor,
        dither: DeviceDither,
        form: Form,
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Fill float32[blocks, 1024] from RESULT payloads uint8[blocks, down_bytes].

        Returns:
            int32[1], 0 if all whole sums are within the number of contributors times the granularity.
        """
        beyond = torch.zeros(1, dtype=torch.int32, device=results.device)
        for run in _runs(results):
            counts, rows, offsets = contributors.part(run)
            if form.requantized:
                codes = unpack_codes(results[run], form.code_bits).to(torch.int32)
                energies = ((2 * codes - (1 << form.code_bits) + 1) ** 2).sum(dim=1, keepdim=True)
                classes = (dither.bounds[counts.long()] > energies).sum(dim=1)
                w = _chosen(dither.values[counts.long(), classes], codes)
            else:
                sums = results[run].to(torch.int32)
                beyond |= (sums > counts[:, None] * dither.granularity).any().to(torch.int32)
                w = dither.unit * sums
            w = w - _chosen(offsets[rows.long()], _shared_bits(keys, run, out.device))
            out[run] = _back(w, factors, keys, run)
        return beyond

    def dither_subtract(
        self,
        payloads: torch.Tensor,
        factors: torch.Tensor,
        dither: DeviceDither,
        rank: int,
        form: Form,
        keys: BlockKeys,
        pending: torch.Tensor,
    ) -> None:
        """Subtract from pending, float32[blocks, 1024], the share of a rank's dithered payloads in a sum."""
        for run in _runs(payloads):
            codes = unpack_codes(payloads[run], form.code_bits).to(torch.int32)
            offsets = dither.offsets[rank].expand(len(codes), SHARES)
            w = dither.unit * codes - _chosen(offsets, _shared_bits(keys, run, pending.device))
            pending[run] -= _back(w, factors, keys, run)


def _runs(rows: torch.Tensor) -> Iterator[slice]:
    blocks = len(rows)
    # On the CPU a run stays in a cache. A GPU needs many blocks at once to be busy.
    step = _CPU_RUN_BLOCKS if rows.device.type == "cpu" else _DEVICE_RUN_BLOCKS
    for start in range(0, blocks, step):
        yield slice(start, min(start + step, blocks))


def _block_keys(key: int, run: slice, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the low and the high half of splitmix64(key + block), int32[blocks] each."""
    value = torch.arange(run.start, run.stop, dtype=torch.int64, device=device) + as_signed(key + _GOLDEN)
    value = (value ^ _right(value, 30, 64)) * as_signed(_FIRST)
    value = (value ^ _right(value, 27, 64)) * as_signed(_SECOND)
    value = value ^ _right(value, 31, 64)
    # Little-endian: the low half comes first.
    halves = value.view(torch.int32).reshape(-1, 2)
    return halves[:, 0], halves[:, 1]


def _lane_bits(key: int, run: slice, lanes: int, device: torch.device) -> torch.Tensor:
    """Return random bits, int32[blocks, lanes]."""
    low, high = _block_keys(key, run, device)
    bits = torch.arange(lanes, dtype=torch.int32, device=device) * as_signed(LANE_STRIDE, 32) + low[:, None]
    bits = ((bits ^ _right(bits, 16)) * as_signed(LANE_FIRST, 32)) ^ high[:, None]
    bits = (bits ^ _right(bits, 15)) * as_signed(LANE_SECOND, 32)
    return bits ^ _right(bits, 16)


def _right(value: torch.Tensor, shift: int, bits: int = 32) -> torch.Tensor:
    # torch shifts in the sign. The mask makes it a shift of an unsigned integer.
    return (value >> shift) & ((1 << (bits - shift)) - 1)


def _signs(keys: BlockKeys, run: slice, like: torch.Tensor) -> torch.Tensor:
    """Return +1 and -1 for rows like these, int32[blocks, B]: -1 where the bit is set."""
    elements, device = like.shape[1], like.device
    shifts = torch.arange(elements // 32, dtype=torch.int32, device=device)[None, :, None]
    bits = _lane_bits(keys.rotation + keys.first, run, 32, device)[:, None, :] >> shifts
    return (1 - 2 * (bits & 1)).reshape(-1, elements)


def _fractions(keys: BlockKeys, run: slice, like: torch.Tensor) -> torch.Tensor:
    """Return 16 random bits per element of rows like these, int32[blocks, B]."""
    elements = like.shape[1]
    bits = _lane_bits(keys.rounding + keys.first, run, elements // 2, like.device)
    bits = bits.reshape(-1, max(1, elements // 512), 1, min(elements, 512) // 2)
    return torch.cat((bits & 0xFFFF, _right(bits, 16)), dim=2).reshape(-1, elements)


def _shared_bits(keys: BlockKeys, run: slice, device: torch.device) -> torch.Tensor:
    """Return the 4 bits of each coordinate that all ranks draw, int32[blocks, 1024]."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=device)[None, :, None]
    bits = _lane_bits(keys.dither + keys.first, run, THC_BLOCK // 8, device)[:, None, :] >> shifts
    return (bits & (SHARES - 1)).reshape(-1, THC_BLOCK)


def _chosen(tables: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return entries of the tables of each block, integers in float32[blocks, 16], at places below 16, as int32."""
    return torch.gather(tables, 1, places.long()).to(torch.int32)


def _back(w: torch.Tensor, factors: torch.Tensor, keys: BlockKeys, run: slice) -> torch.Tensor:
    """Return the elements of int32[blocks, 1024], those of a run of blocks, in float32."""
    # H is symmetric, so only order and signs are undone.
    x = _hadamard(_from_wire(w)) * _signs(keys, run, w)
    return x.float() * factors[run, None]


def _hadamard(v: torch.Tensor) -> torch.Tensor:
    """Return H v for each row of int32[blocks, B], in the natural (Sylvester) order."""
    shape = v.shape
    stride = shape[1] // 2
    while stride:
        pair = v.reshape(len(v), -1, 2, stride)
        v = torch.stack((pair[:, :, 0] + pair[:, :, 1], pair[:, :, 0] - pair[:, :, 1]), dim=2)
        stride //= 2
    return v.reshape(shape)


def _to_wire(y: torch.Tensor) -> torch.Tensor:
    return y.reshape(len(y), -1, 16).transpose(1, 2).reshape(y.shape)


def _from_wire(w: torch.Tensor) -> torch.Tensor:
    return w.reshape(len(w), 16, -1).transpose(1, 2).reshape(w.shape)


def pack_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack codes of 4, 3 or 2 bits as `hopsum_wire.payload` does for lanes of 8 bits.

    uint8[blocks, 1024] becomes uint8[blocks, 128 bits].
    """
    first, second, third, last = codes.reshape(-1, 4, _QUARTER).unbind(1)
    if bits == 4:
        return torch.cat((first << 4 | second, third << 4 | last), dim=1)
    if bits == 2:
        return first << 6 | second << 4 | third << 2 | last
    # Two codes of 3 bits leave 2 bits of a byte: the last quarter fills them.
    half, high = _QUARTER // 2, last >> 2
    rest = third[:, :half] | third[:, half:] << 3 | high[:, :half] << 6 | high[:, half:] << 7
    return torch.cat((first | second << 3 | (last & 3) << 6, rest), dim=1)


def unpack_codes(payloads: torch.Tensor, bits: int) -> torch.Tensor:
    """Undo `pack_codes`: uint8[blocks, 128 bits] to uint8[blocks, 1024]."""
    if bits == 4:
        words = payloads.reshape(-1, 2, 1, _QUARTER)
        return torch.cat((words >> 4, words & 15), dim=2).reshape(-1, THC_BLOCK)
    if bits == 2:
        return torch.cat([payloads >> shift & 3 for shift in (6, 4, 2, 0)], dim=1)
    a, b = payloads[:, :_QUARTER], payloads[:, _QUARTER:]
    high = torch.cat((b >> 6 & 1, b >> 7), dim=1)
    return torch.cat((a & 7, a >> 3 & 7, b & 7, b >> 3 & 7, a >> 6 | high << 2), dim=1)


# ---- launches of the Triton kernels ------------------------------------------------------------------------

WARPS: Final = 4
"""The warps of a program, each with a block of its own. Triton before 3.9 makes them wait for each other in an
exchange."""


def compiler_options(warps: int) -> dict[str, Any]:
    """Return Triton's compiler options for so many warps, without fused multiply-add, which rounds otherwise."""
    return {"num_warps": warps, "enable_fp_fusion": False}


def triton_is_usable(device: torch.device) -> bool:
    """Return whether Triton is installed and can run kernels on this device."""
    return find_spec("triton") is not None and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")


def _kernels() -> Any:
    from hopsum.torch.codec import triton_kernels  # here: triton is an optional package, and takes a second to import

    return triton_kernels


class TritonKernels(TorchKernels):
    """The kernels in Triton. `warps` of a program, a power of 2, change no result."""

    name = "triton"

    def __init__(self, warps: int = WARPS) -> None:
        self._warps = warps

    def root_mean_square(self, x: torch.Tensor) -> torch.Tensor:
        return self._root_mean_square(x, x, x, compensate=False)

    def compensate(self, x: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor) -> torch.Tensor:
        return self._root_mean_square(x, residual, pending, compensate=True)

    def thc_encode(
        self,
        x: torch.Tensor,
        scales: torch.Tensor,
        shifts: torch.Tensor,
        table: DeviceTable,
        form: Form,
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> None:
        rotation, rounding, dither = _numbers(keys)
        tensors = (x, scales, shifts, table.cells, _words(out))
        numbers = (len(x), rotation, rounding, dither, table.granularity, max(keys.shift, 0))
        chosen = (self._warps, table.exact_float, form.code_bits, keys.shift >= 0)
        self._launch(_kernels().thc_encode, x, *tensors, *numbers, *chosen)

    def thc_decode(
        self,
        lanes: torch.Tensor,
        counts: torch.Tensor,
        factors: torch.Tensor,
        granularity: int,
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> torch.Tensor:
        beyond = torch.zeros(1, dtype=torch.int32, device=lanes.device)
        tensors = (_words(lanes), counts, factors, out, beyond)
        self._launch(_kernels().thc_decode, lanes, *tensors, len(lanes), _numbers(keys)[0], granularity, self._warps)
        return beyond

    def thc_subtract(
        self, payloads: torch.Tensor, factors: torch.Tensor, table: DeviceTable, keys: BlockKeys, pending: torch.Tensor
    ) -> None:
        tensors = (_words(payloads), table.doubled, factors, pending)
        numbers = (len(payloads), _numbers(keys)[0], table.granularity)
        self._launch(_kernels().thc_subtract, payloads, *tensors, *numbers, self._warps)

    def dither_decode(
        self,
        results: torch.Tensor,
        contributors: DeviceContributors,
        factors: torch.Tensor,
        dither: DeviceDither,
        form: Form,
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> torch.Tensor:
        beyond = torch.zeros(1, dtype=torch.int32, device=results.device)
        rotation, _, shared = _numbers(keys)
        tensors = (_words(results), *contributors, factors, out)
        if form.requantized:
            given = (*tensors, dither.bounds, dither.values, len(results), rotation, shared, self._warps)
            self._launch(_kernels().requantized_decode, results, *given, form.code_bits)
        else:
            numbers = (len(results), rotation, shared, dither.granularity, dither.unit)
            self._launch(_kernels().dither_decode, results, *tensors, beyond, *numbers, self._warps)
        return beyond

    def dither_subtract(
        self,
        payloads: torch.Tensor,
        factors: torch.Tensor,
        dither: DeviceDither,
        rank: int,
        form: Form,
        keys: BlockKeys,
        pending: torch.Tensor,
    ) -> None:
        rotation, _, shared = _numbers(keys)
        tensors = (_words(payloads), dither.offsets[rank], factors, pending)
        given = (*tensors, len(payloads), rotation, shared, dither.unit, self._warps, form.code_bits)
        self._launch(_kernels().dither_subtract, payloads, *given)

    def _root_mean_square(
        self, x: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor, *, compensate: bool
    ) -> torch.Tensor:
        """Launch with half a warp for a block: 16 lanes."""
        # A block's 16 running sums take half a warp, so that a warp has two blocks.
        blocks = 2 * self._warps
        sums = torch.empty(len(x), dtype=torch.float64, device=x.device)
        tensors = (x, residual, pending, sums)
        self._launch(_kernels().square_sums, x, *tensors, len(x), blocks, compensate, blocks=blocks)
        return (sums / THC_BLOCK).sqrt().float()

    def _launch(self, kernel: Any, rows: torch.Tensor, *arguments: Any, blocks: int | None = None) -> None:
        """Run one program per `blocks` rows (as many as warps if left out) on the rows' device."""
        if not len(rows):
            return
        programs = -(-len(rows) // (blocks or self._warps))
        # Triton's interpreter, which knows no options.
        if rows.device.type != "cuda":
            kernel[(programs,)](*arguments)
            return
        # A launch goes to the current device, which may be another one of the process.
        with torch.cuda.device(rows.device):
            kernel[(programs,)](*arguments, **compiler_options(self._warps))


def _numbers(keys: BlockKeys) -> tuple[int, int, int]:
    """Return the keys of the first block, as int64: rotation, rounding, dither."""
    rotation, rounding, dither = (as_signed(key + keys.first) for key in (keys.rotation, keys.rounding, keys.dither))
    return rotation, rounding, dither


def _words(rows: torch.Tensor) -> torch.Tensor:
    """Return bytes as little-endian words, which is the order of every machine that torch runs on with CUDA."""
    return rows.view(torch.uint16)


# ---- the choice of a backend -------------------------------------------------------------------------------


def load_torch_kernels(backend: str, device: torch.device) -> TorchKernels:
    """Return a backend by name: "torch", "triton", or "auto", which is triton on CUDA where it is installed.

    Raises:
        CodecError: unknown backend, or triton that is not installed, or not for this device.
    """
    if backend not in ("auto", "torch", "triton"):
        raise CodecError(f"torch backend {backend!r}: one of auto, torch, triton")
    # Triton where the GPU runs it. Plain operations serve every other device.
    if backend == "auto":
        backend = "triton" if device.type == "cuda" and triton_is_usable(device) else "torch"
    if backend == "triton" and not triton_is_usable(device):
        raise CodecError(
            f"backend 'triton' on device {device}: it needs the package triton, and a CUDA device or "
            "TRITON_INTERPRET=1 in the environment; use backend 'torch'"
        )
    return TritonKernels() if backend == "triton" else TorchKernels()
