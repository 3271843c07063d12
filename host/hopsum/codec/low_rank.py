# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of factors of low rank that all ranks have to do alike: orthogonalisation, and products of factors.

A matrix M of m rows and c columns is replaced by P Q^T, P of m rows and Q of c rows, both of r columns
(Vogels, Karimireddy and Jaggi, "PowerSGD", NeurIPS 2019, algorithm 1). A factor is kept as float32[r, length]: one
column after the other, as it travels.

Every rank makes the next basis of the same sums, so it has to have the same bytes on every processor. So each operation
is one of IEEE 754, and each sum has one order. Nothing here is a call of BLAS or LAPACK, whose orders are their own.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final, NamedTuple

import numpy as np

from hopsum.codec.backends import compiled_is_wanted
from hopsum.codec.backends.factor_kernels import LANES, FactorKernels
from hopsum.codec.hashing import derive_key, mix_keys
from hopsum.codec.interface import CodecError, Floats

_RANDOM: Final = 0x4C52
_CHECKED: Final = (5, 70, 45)
"""Rank, rows and columns of the matrix on which a backend is checked. No length is a multiple of LANES."""


class OrthonormalFactor(NamedTuple):
    """A factor with orthonormal columns, and the norms that its columns had."""

    columns: Floats
    """float32[r, length]"""
    norms: Floats
    """float32[r]"""


def load_factor_kernels(backend: str = "auto") -> FactorKernels:
    """Return the arithmetic of a backend, "numpy", "numba" or "auto", and check that its bytes are those of numpy.

    numba's kernels are compiled here, which may take seconds, or loaded from its cache. "auto" is numba where it is
    installed, unless HOPSUM_COMPILED=0.

    Raises:
        CodecError: numba made other bytes than numpy of a small matrix; or it is asked for and not installed.
        NotCompiledError: in a block of `only_cached`, a kernel is not in numba's cache.
    """
    if backend == "numpy" or (backend == "auto" and not (compiled_is_wanted() and find_spec("numba"))):
        return FactorKernels()
    try:
        from hopsum.codec.backends.low_rank_kernels import CompiledFactorKernels  # here: numba takes a second to import
    except ModuleNotFoundError as error:
        raise CodecError(f"factors by numba need the package {error.name}; install it or use numpy") from error
    made = CompiledFactorKernels()
    # Other bytes would split the replicas of a job. This also compiles all kernels now, and not in a backward pass.
    if sample_output(made) != sample_output(FactorKernels()):
        raise CodecError(
            "factors of low rank: compiled code made other bytes than numpy; remove numba's cache if another version "
            "made it, and report this. HOPSUM_COMPILED=0 avoids it"
        )
    return made


def orthonormalize(kernels: FactorKernels, factor: Floats, salt: int) -> OrthonormalFactor:
    """Return the basis of a factor's columns, from the first to the last: Cholesky's QR in a fixed order.

    A column that lies in the span of those before it is replaced by a random one, so that no direction is lost for
    ever. Golub and Van Loan, "Matrix Computations", 5.2: R of QR is Cholesky's factor of the products of columns.

    Args:
        factor: float32[r, length], finite. It is only read.
        salt: random columns follow from it, and from nothing else.
    """
    rank, length = factor.shape
    columns = np.zeros((rank, -(-length // LANES) * LANES), np.float32)
    columns[:, :length] = factor
    weights = np.empty((rank, rank))
    gram = kernels.gram(columns)
    # A norm may be too large for float32 though no element is. Divided by infinity a factor would be NaN.
    norms = np.minimum(np.sqrt(np.diag(gram)), np.finfo(np.float32).max).astype(np.float32)
    if kernels.fill_weights(gram, weights):
        # The weights of such columns are zero.
        for column in np.flatnonzero(np.diag(weights) == 0):
            columns[column, :length] = random_columns(salt + int(column), 1, length)[0]
        kernels.fill_weights(kernels.gram(columns), weights)
    made = kernels.combine(columns, weights)
    return OrthonormalFactor(np.ascontiguousarray(made[:, :length]), norms)


def random_columns(salt: int, rank: int, length: int) -> Floats:
    """Return a factor of random numbers of -1 to 1, float32[rank, length], the same for the same arguments."""
    bits = mix_keys(derive_key(_RANDOM, salt), np.arange(rank * length, dtype=np.uint64))
    # 24 bits are exact in float32, and so is the difference.
    unit = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23)
    return np.asarray(unit - np.float32(1)).reshape(rank, length)


def sample_output(kernels: FactorKernels, shape: tuple[int, int, int] = _CHECKED) -> bytes:
    """Return the bytes that a backend makes of a matrix, with a column in the span of others and a zero one.

    Args:
        shape: rank, 4 or more, rows and columns.
    """
    rank, rows, columns = shape
    factor = random_columns(1, rank, rows) * np.float32(3e-3)
    factor[2] = factor[0] - factor[1]
    factor[3] = 0
    left = orthonormalize(kernels, factor, salt=7)
    mean, own = (random_columns(salt, rank, columns) for salt in (2, 3))
    rest, out = random_columns(4, rows, columns), np.empty((rows, columns), np.float32)
    kernels.reconstruct(left.columns, mean, own, rest, out)
    return b"".join(each.tobytes() for each in (*left, rest, out))
