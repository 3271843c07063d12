# SPDX-License-Identifier: Apache-2.0
"""The kernels of codec thc in plain torch operations, the launches of those in Triton, and a table as both take it.

The definition, to the byte, is that of hopsum/codec/backends/kernels.py. All tensors are contiguous and on one
device. Rows are blocks of 1024 elements. A method fills its argument's own memory.

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
from typing import Any, Final

import torch

from hopsum.codec.backends.kernels import FRACTION_BITS, THC_BLOCK, BlockKeys
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
    def of(cls, values: tuple[int, ...], bound: float, device: torch.device) -> DeviceTable:
        """Copy a table to a device.

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


def as_signed(value: int, bits: int = 64) -> int:
    """Return the integer of `bits` bits, two's complement, that is equal to value modulo 2^bits."""
    # torch has no unsigned 64-bit integers: two's complement is the same modulo 2^bits.
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits)


# ---- plain torch operations --------------------------------------------------------------------------------

_CPU_RUN_BLOCKS: Final = 256
_DEVICE_RUN_BLOCKS: Final = 16384
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
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> None:
        """Fill packed codes uint8[blocks, 512] from float32[blocks, 1024].

        Args:
            scales: float32[blocks], what elements are multiplied with before they are rotated.
            shifts: int32[blocks], k in 0..23: rotated values are multiplied with 2^k.
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
            # One look-up gives the neighbours of a position, their distance, and the code, in one word of 32 bits.
            cell = table.cells[(q >> FRACTION_BITS).long()]
            width = cell & 0xFF
            codes = q + u * width + (width + POSITION - cell)
            codes = _right(codes, 28)
            out[run] = _pack(codes.to(torch.uint8))

    def thc_lookup(self, payloads: torch.Tensor, table: DeviceTable, out: torch.Tensor) -> None:
        """Fill lanes uint8[blocks, 1024] with the table's values of packed codes uint8[blocks, 512]."""
        for run in _runs(payloads):
            out[run] = table.values[_unpack(payloads[run]).long()]

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
            # H is symmetric, so only order and signs are undone.
            x = _hadamard(_from_wire(2 * sums - centre)) * _signs(keys, run, out)
            torch.mul(x.float(), factors[run, None], out=out[run])
        return beyond

    def thc_subtract(
        self, payloads: torch.Tensor, factors: torch.Tensor, table: DeviceTable, keys: BlockKeys, pending: torch.Tensor
    ) -> None:
        """Subtract from pending, float32[blocks, 1024], what packed codes uint8[blocks, 512] add to a sum."""
        for run in _runs(payloads):
            # A sum of one contributor, decoded a run at a time, which bounds the memory for it.
            lanes = torch.empty((run.stop - run.start, THC_BLOCK), dtype=torch.uint8, device=payloads.device)
            self.thc_lookup(payloads[run], table, lanes)
            ones = torch.ones(len(lanes), dtype=torch.int32, device=payloads.device)
            delivered = torch.empty_like(pending[run])
            self.thc_decode(lanes, ones, factors[run], table.granularity, keys.advanced(run.start), delivered)
            pending[run] -= delivered


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


def _pack(codes: torch.Tensor) -> torch.Tensor:
    """Pack as `pack_codes` does with lanes of 8 bits: uint8[blocks, 1024] to uint8[blocks, 512]."""
    groups = codes.reshape(-1, 2, 2, 256)
    return (groups[:, :, 0] << 4 | groups[:, :, 1]).reshape(-1, THC_BLOCK // 2)


def _unpack(payloads: torch.Tensor) -> torch.Tensor:
    words = payloads.reshape(-1, 2, 1, 256)
    return torch.cat((words >> 4, words & 15), dim=2).reshape(-1, THC_BLOCK)


# ---- launches of the Triton kernels ------------------------------------------------------------------------

WARPS: Final = 4
"""The warps of a program, each with a block of its own. Triton before 3.9 makes them wait for each other in an
exchange."""


def options(warps: int) -> dict[str, Any]:
    """Return compiler options: a fused multiply-add would round once where the definition rounds twice."""
    return {"num_warps": warps, "enable_fp_fusion": False}


def triton_is_usable(device: torch.device) -> bool:
    """Say whether the package is installed and can run kernels on this device."""
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
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> None:
        tensors = (x, scales, shifts, table.cells, _words(out))
        numbers = (len(x), *_numbers(keys), table.granularity)
        self._launch(_kernels().thc_encode, x, *tensors, *numbers, self._warps, table.exact_float)

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
            kernel[(programs,)](*arguments, **options(self._warps))


def _numbers(keys: BlockKeys) -> tuple[int, int]:
    """Return the keys of the first block, as int64."""
    return as_signed(keys.rotation + keys.first), as_signed(keys.rounding + keys.first)


def _words(rows: torch.Tensor) -> torch.Tensor:
    """Return bytes as little-endian words, which is the order of every machine that torch runs on with CUDA."""
    return rows.view(torch.uint16)


# ---- the choice


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
