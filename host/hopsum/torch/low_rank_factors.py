# SPDX-License-Identifier: Apache-2.0
"""The matrices that travel as factors of low rank, their bases from step to step, and one bucket's way through them.

For a matrix M_i = gradient + residual of rank i, of m rows and c columns, with a basis Q of c rows and r columns:

    start               P_i = M_i Q                                   summed by the network: P
    make_right_factor   P is made orthonormal. Q_i = M_i^T P          summed by the network: Q
    finish              the mean is P Q^T. The residual is M_i - P q_i^T, where q_i is the part of Q_i that Q
                        has

Vogels, Karimireddy and Jaggi, "PowerSGD" (NeurIPS 2019), algorithms 1 and 2, with two differences. The residual is
against the own part q_i and not against the mean: sums of codes are not what each rank sent, and residuals against the
mean walk at random. And each column of a factor is divided by the norm that it had in the last Q, which all ranks know:
blocks of a codec have one range, in which a weak direction would drown.

P and Q, made orthonormal, and P Q^T have the same bytes on all ranks (hopsum.codec.low_rank). M_i Q and M_i^T P are one
rank's own, so they may be products of BLAS.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import torch

from hopsum.agent import AllReduceResult, Communicator, MismatchError
from hopsum.codec import CodecError, CollectiveError, ErrorFeedback, NonFiniteError
from hopsum.codec.backends import NotCompiledError, only_cached
from hopsum.codec.backends.factor_kernels import FactorKernels
from hopsum.codec.interface import NO_MEAN_HINT, Floats, nonfinite_error
from hopsum.codec.low_rank import load_factor_kernels, orthonormalize, random_columns
from hopsum.compile_ahead import compile_ahead, compiles_in_child
from hopsum.torch.device_codec import DeviceCodec
from hopsum.torch.device_reduction import DeviceFeedback
from hopsum.torch.residuals import Residuals, own_names
from hopsum.torch.step import BucketSlice, Layout, places_of
from hopsum.torch.streams import Staging

_log: Final = logging.getLogger(__name__)
PAYS_BY: Final = 2
"""Factors have at most the elements of the matrix divided by this."""
LEAST_SCALE: Final = np.float32(0.02)
"""The least divisor of a column, as a part of the largest one of its factor."""
_TINY: Final = np.float32(2.0**-100)
_UNITS: Final = np.float32(2.0**-40), np.float32(2.0**40)
"""The least and the largest divisor of a matrix's largest column. A gradient may grow much between two steps."""
_SANE: Final = 2.0**100
"""No factor of a gradient that is worth a step has larger elements, and all codecs take these."""
_RUN_ELEMENTS: Final = 1 << 17
"""The elements of the rows of a matrix that are added and multiplied at a time, so that they stay in the cache."""
_DEVICE_RUN_ELEMENTS: Final = 1 << 24
"""The same on a device, which needs room for as many elements."""


class MatrixShape(NamedTuple):
    """The shape of a matrix."""

    rows: int
    columns: int


def shape_of(parameter: torch.Tensor) -> MatrixShape | None:
    """Return a parameter of two or more dimensions as a matrix of shape[0] rows; None for any other or complex one."""
    if parameter.dim() < 2 or not parameter.numel() or parameter.is_complex():
        return None
    return MatrixShape(parameter.shape[0], parameter.numel() // parameter.shape[0])


def largest_rank(shape: MatrixShape) -> int:
    """Return the largest rank whose factors have at most 1/PAYS_BY of a matrix's elements."""
    return shape.rows * shape.columns // (PAYS_BY * (shape.rows + shape.columns))


class MatrixLayout(Layout):
    """Matrices of a bucket that travel as factors of one rank.

    Args:
        names: of the parameters.
        places: of the parameters in the bucket's buffer.
        elements: of the buffer.
        shapes: of the parameters as matrices.
        rank: of the factors.
    """

    def __init__(
        self, names: Sequence[str], places: Sequence[slice], elements: int, shapes: Sequence[MatrixShape], rank: int
    ) -> None:
        super().__init__(names, places, elements)
        self.shapes, self.rank = tuple(shapes), rank
        self.left = [rank * each.rows for each in shapes]
        """Elements of each matrix's part of P."""
        self.right = [rank * each.columns for each in shapes]
        """Elements of each matrix's part of Q."""

    def parts(self, vector: Any, sizes: Sequence[int]) -> list[Any]:
        """Return the factors in a vector of all P or all Q, an array or a tensor: views [rank, length]."""
        return [vector[place].reshape(self.rank, -1) for place in places_of(sizes)]


class Start(NamedTuple):
    """The basis with which a matrix's next step begins, and the divisors of its factors' columns."""

    basis: Floats
    """float32[rank, columns], orthonormal."""
    scale: Floats
    """float32[rank, 1]"""
    digest: int
    """Checksum of both, by which ranks compare them."""


class Factors:
    """The last decoded Q of each matrix, by the name of its parameter: the same bytes on all ranks.

    A matrix without one, or with one of another shape, begins with random columns that follow from its name.
    """

    def __init__(self) -> None:
        """Begin without any. `prepare` comes before a sum."""
        self._decoded: dict[str, Floats] = {}
        self._starts: dict[str, Start] = {}
        self.kernels = FactorKernels()
        """numpy's where numba's cache lacks the others, until another process has compiled them. Bytes are equal."""
        self._is_prepared = False

    def prepare(self) -> None:
        """Load the compiled kernels, or let a child process compile them and return. Further calls do nothing."""
        if self._is_prepared:
            return
        self._is_prepared = True
        if not compiles_in_child():
            self._load()
            return
        try:
            with only_cached():
                self._load()
        except NotCompiledError:
            compile_ahead("hopsum.codec.low_rank:load_factor_kernels", {}, self._load, "factors of low rank")

    def _load(self) -> None:
        self.kernels = load_factor_kernels()

    def start(self, name: str, rank: int, columns: int) -> Start:
        """Return the basis and divisors with which a matrix's step begins; the same object until `put` or `load`."""
        if name not in self._starts or self._starts[name].basis.shape != (rank, columns):
            decoded = self._decoded.get(name)
            if decoded is None or decoded.shape != (rank, columns):
                decoded = random_columns(salt_of(name), rank, columns)
            basis, norms = orthonormalize(self.kernels, decoded, salt_of(name))
            scale = _scale_of(norms)
            self._starts[name] = Start(basis, scale, crc32(scale.tobytes(), crc32(basis.tobytes())))
        return self._starts[name]

    def put(self, name: str, decoded: Floats) -> None:
        """Keep the decoded Q of a step, float32[rank, columns], which is this object's from here on."""
        self._decoded[name] = decoded
        self._starts.pop(name, None)

    def as_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of each decoded Q, float32[rank, columns] on the CPU, for a checkpoint."""
        return {name: torch.from_numpy(each.copy()) for name, each in self._decoded.items()}

    def load(self, factors: Mapping[str, torch.Tensor], known: Container[str] | None = None) -> None:
        """Replace everything by these; they are copied.

        Args:
            known: the names that parameters have here, if wrappers may have changed them since. Others are left out.
        """
        if known is not None:
            names = own_names(factors, known)
            factors = {names[name]: each for name, each in factors.items() if names[name] in known}
        self._starts.clear()
        self._decoded = {name: each.detach().to("cpu", torch.float32).numpy().copy() for name, each in factors.items()}


def salt_of(name: str) -> int:
    """Return the salt of a parameter's name for `orthonormalize`, the same on all machines: CRC-32 times 2^16.

    The numbers of columns, which are added to salts, fit into the low bits.
    """
    return crc32(name.encode()) << 16


def _scale_of(norms: Floats) -> Floats:
    """Return the divisors of columns of these norms: every rank has the same."""
    largest = norms.max()
    if largest < _TINY:
        return np.ones((len(norms), 1), np.float32)
    unit = np.clip(largest, *_UNITS) / largest
    return np.asarray((np.maximum(norms, LEAST_SCALE * largest) * unit)[:, None])


def _some(told: Sequence[str], between: str = ", ") -> str:
    """Return some of many words."""
    more = f"{between}and {len(told) - 8} more" if len(told) > 8 else ""
    return between.join(told[:8]) + more


# ---- one bucket's matrices ---------------------------------------------------------------------------------


class LowRankPortion(BucketSlice):
    """The matrices of a bucket on their way through two sums. See `BucketSlice` for its calls by the step.

    The residual is a transaction: `start` begins it, `finish` commits it, `withdraw` before that ends it without an
    effect. The step may take a commit back. Q is kept by `keep_factors`, when the whole step has its means.

    Args:
        buffer: of the bucket.
        layout: of the matrices.
        factors: of all matrices.
        residuals: of all parameters.
        copies: means have memory of their own, since the buffer's gradients are needed until the step has ended.
        device: where matrices are multiplied.
    """

    allreduces = 2
    layout: MatrixLayout

    def __init__(
        self,
        buffer: torch.Tensor,
        layout: MatrixLayout,
        factors: Factors,
        residuals: Residuals,
        *,
        copies: bool,
        device: torch.device,
    ) -> None:
        in_place = not copies and buffer.dtype == torch.float32 and buffer.device == device
        x = buffer.detach() if in_place else torch.empty(sum(layout.sizes), dtype=torch.float32, device=device)
        super().__init__(buffer, layout, compressed=True, x=x)
        places = layout.places if in_place else layout.own_places
        self.means = self._matrices(x, places)
        """The mean of each matrix, float32[rows, columns]: views of the buffer, or of `x`."""
        self._factors, self._residuals = factors, residuals
        self._starts: list[Start] = []
        self._decoded: list[Floats] = []

    @abstractmethod
    def start(self) -> None:
        """Begin the residual's transaction, and make P_i."""

    @abstractmethod
    def make_right_factor(self) -> None:
        """Make P orthonormal, and Q_i of it, after the sum of P_i."""

    @abstractmethod
    def finish(self) -> None:
        """Make the mean and commit the residual, after the sum of Q_i."""

    @abstractmethod
    def submit(self, communicator: Communicator, call: Mapping[str, Any]) -> Future[AllReduceResult]:
        """Hand P_i, or after `make_right_factor` Q_i, to the communicator. See `Communicator.submit`."""

    @property
    def energy(self) -> float:
        """Return the sum of the squares of gradient and residual after `start`, of the new residual after `finish`."""
        return sum(float(torch.linalg.vector_norm(each)) ** 2 for each in self._moments)

    @property
    def left_tensors(self) -> list[tuple[str, int]]:
        """Return the names and elements of the parts of P, after the digest of the bases as a name of 0 elements."""
        # Ranks compare names before they sum: those with other bases, as after other checkpoints, hear of it.
        digest = crc32(b"".join(each.digest.to_bytes(4, "big") for each in self._starts))
        names = zip(self.layout.names, self.layout.left, strict=True)
        return [(f"low-rank factors of digest {digest:08x}", 0), *names]

    @property
    def right_tensors(self) -> list[tuple[str, int]]:
        """Return the names and elements of the parts of Q, one for each matrix."""
        return list(zip(self.layout.names, self.layout.right, strict=True))

    @property
    def has_right_factor(self) -> bool:
        """Whether `make_right_factor` was called: the right factor Q_i is there."""
        return bool(self._left)

    def mismatch_error(self, error: MismatchError) -> MismatchError:
        """Return the error of a sum of P with the names of the matrices, and the probable cause: other checkpoints."""
        return MismatchError(
            f"{error}. The vector has the first factors of {_some(self.layout.names)}. Ranks that differ in the digest "
            "of low-rank factors alone continued from different checkpoints: load the checkpoint of one step on all "
            "ranks, or none on any"
        )

    def overflow_error(self, error: CollectiveError, rank: int) -> CollectiveError:
        """Return the error of a sum, which says whether gradients or factors are not finite.

        Args:
            error: of a factor that is not finite on some rank. Any other one is returned.
            rank: of this process.
        """
        gradients = self.gather().to("cpu", torch.float32).numpy()
        if not np.isfinite(gradients).all():
            return nonfinite_error(gradients, self.layout.tensors, rank, what="elements of gradients")
        if not isinstance(error, NonFiniteError) or not (error.count or error.too_large):
            return error
        kind = "second factor" if self.has_right_factor else "first factor"
        told = []
        for name, here, made in zip(self.layout.names, self.layout.own_places, self._in_progress(), strict=True):
            bad = int((~np.isfinite(made)).sum())
            if bad or error.too_large:
                largest = float(np.abs(gradients[here]).max(initial=0))
                reach = f"{bad} of {made.size} elements" if bad else f"{float(np.abs(made).max()):.3g}"
                told.append(f"{name}: gradient up to {largest:.3g}, {kind} {reach}")
        why = "too large for the codec, 2^120 = 1.33e36" if error.too_large else "beyond the range of float32"
        return NonFiniteError(
            f"rank {rank}: gradients are finite, but with residuals and multiplied by a basis of {self.layout.rank} "
            f"columns they are {why}: {_some(told, '; ')}: scale gradients down; {NO_MEAN_HINT}",
            error.count,
            too_large=error.too_large,
        )

    def drop_huge_residuals(self, rank: int) -> None:
        """Drop residuals that are too large for any sum, after one that was refused: else all that follow are refused.

        Gradients near the end of float32 leave them behind. A gradient that is too large by itself is the program's.
        The log has a warning for each residual.
        """
        gradients = self.gather().to("cpu", torch.float32).numpy()
        given = zip(self.layout.names, self.layout.own_places, self.layout.shapes, self._starts, strict=True)
        for (name, here, shape, start), made in zip(given, self._in_progress(), strict=True):
            # Largest that the gradient alone can make of an element, or NaN.
            alone = float(np.abs(gradients[here]).max()) * max(shape) / float(start.scale.min())
            if alone < _SANE and not (np.abs(made) < _SANE).all():
                self._residuals.clear(name)
                _log.warning(
                    "rank %d: the residual of %s is dropped: gradients that were too large have left it, and with it "
                    "factors of low rank are beyond float32 or the codec",
                    rank, name,
                )  # fmt: skip

    def _in_progress(self) -> list[Floats]:
        """Return each matrix's part of P_i, or after `make_right_factor` of Q_i, on the host."""
        sent = torch.as_tensor(self._sent).cpu().numpy()
        return [sent[each] for each in places_of(self.layout.right if self.has_right_factor else self.layout.left)]

    def clear_mean(self, number: int) -> None:
        self.means[number].zero_()

    def keep_factors(self) -> None:
        """Keep the decoded Q of each matrix for the next step, now that the step has its means."""
        # Without a mean there is none.
        if self._decoded:
            for name, decoded in zip(self.layout.names, self._decoded, strict=True):
                self._factors.put(name, decoded)
            self._decoded = []

    def rollback(self) -> None:
        """Take the gradients anew, with residuals and Q as before the step. See `BucketSlice`."""
        # The process group makes the mean of this step: Q is as before it.
        self._decoded = []
        super().rollback()

    def on_failed_step(self) -> None:
        """Roll a commit of the residual back, as the step failed or was given up: residuals are as before it."""
        # Both sums of a step have an effect together or not at all.
        if self.feedback is not None and self.settled:
            self.feedback.rollback(slice(None))

    def withdraw(self) -> None:
        """End without a mean: the residual is as before the step. After `finish` it has no effect."""
        if self.feedback is not None and not self.settled:
            self.feedback.rollback()

    _sent: Any
    """The vector in progress, P_i or Q_i: an array or a tensor."""
    _moments: Sequence[torch.Tensor]
    """Gradient + residual of each matrix, float32[rows, columns], then its new residual."""
    _left: Sequence[Any] = ()
    """P of each matrix, orthonormal, [rank, rows], after `make_right_factor`."""

    def _begin(self) -> None:
        layout = self.layout
        self._starts = [
            self._factors.start(name, layout.rank, shape.columns)
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        ]

    def _bases_of(self, left: Floats) -> list[Floats]:
        """Return P of each matrix, orthonormal, of the decoded sum, float32[all P]."""
        parts = zip(self.layout.names, self.layout.parts(left, self.layout.left), strict=True)
        return [orthonormalize(self._factors.kernels, part, salt_of(name)).columns for name, part in parts]

    def _matrices(self, vector: torch.Tensor, places: Sequence[slice]) -> list[torch.Tensor]:
        return [vector[place].view(shape) for place, shape in zip(places, self.layout.shapes, strict=True)]


class HostPortion(LowRankPortion):
    """Matrices in the host's memory, or copied there."""

    feedback: ErrorFeedback | None

    def start(self) -> None:
        layout = self.layout
        self._begin()
        self._sent = np.empty(sum(layout.left), np.float32)
        self._mean = self._sent
        self._kept: ErrorFeedback | None = None
        self.feedback = self._residuals.feedback(layout.names, layout.sizes)
        self._moments = self._matrices(torch.from_numpy(self.feedback.compensate_by(self._project)), layout.own_places)
        self._is_finite = bool(np.isfinite(self._sent).all())

    def _project(self, residual: Floats, room: Floats) -> None:
        """Fill room with gradient + residual, and P_i with its product, in one pass."""
        layout = self.layout
        sources = self._matrices(self.buffer.detach(), layout.places)
        kept = self._matrices(torch.from_numpy(residual), layout.own_places)
        moments = self._matrices(torch.from_numpy(room), layout.own_places)
        made = layout.parts(torch.from_numpy(self._sent), layout.left)
        for source, left, moment, start, out in zip(sources, kept, moments, self._starts, made, strict=True):
            project(source.to("cpu"), left, moment, torch.from_numpy(start.basis), out, _RUN_ELEMENTS)
            out /= torch.from_numpy(start.scale)

    def submit(self, communicator: Communicator, call: Mapping[str, Any]) -> Future[AllReduceResult]:
        self.submitted = True
        return communicator.submit(self._sent, feedback=self._kept, out=self._mean, **call)

    def make_right_factor(self) -> None:
        assert self.feedback is not None
        assert self.feedback.pending is not None
        layout = self.layout
        if not self._is_finite:
            # The other ranks did not wait for this rank's ranges. As in an ordinary sum, what is infinite is dropped.
            bad = ~np.isfinite(self.feedback.pending)
            self.feedback.pending[bad] = self.feedback.residual[bad]
        self._left = self._bases_of(self._mean)
        self._sent = np.empty(sum(layout.right), np.float32)
        made = layout.parts(torch.from_numpy(self._sent), layout.right)
        for left, moment, start, out in zip(self._left, self._moments, self._starts, made, strict=True):
            torch.mm(torch.from_numpy(left), moment, out=out)
            out /= torch.from_numpy(start.scale)
        self._mean = np.empty_like(self._sent)
        # The residual of Q_i alone says which part of it the sum has. It is not carried to the next step.
        self._kept = ErrorFeedback(self._sent.size)

    def finish(self) -> None:
        assert self.feedback is not None
        assert self._kept is not None
        layout = self.layout
        own = self._sent - self._kept.residual
        own[~np.isfinite(own)] = 0
        parts = [layout.parts(each, layout.right) for each in (self._mean, own)]
        for left, start, mean, mine, moment, out in zip(
            self._left, self._starts, *parts, self._moments, self.means, strict=True
        ):
            mean *= start.scale
            mine *= start.scale
            self._factors.kernels.reconstruct(left, mean, mine, moment.numpy(), out.numpy())
            self._decoded.append(mean)
        self.feedback.commit()
        self.settled = True


class DevicePortion(LowRankPortion):
    """Matrices on a device, which stay there: factors alone cross the bus.

    Operations are queued in the device's stream of kernels, whose order is that of the residual.

    Args:
        place: the codec of the device.
    """

    feedback: DeviceFeedback | None

    def __init__(self, *given: Any, place: DeviceCodec, **options: Any) -> None:
        super().__init__(*given, device=place.device, **options)
        self._place = place
        # One of its own: the communicator's thread has the codec's.
        self._staging = Staging(place.staging.streams)

    def start(self) -> None:
        layout, streams = self.layout, self._staging.streams
        self._begin()
        ready = streams.mark()
        for each in (self.buffer, self.x):
            streams.adopt(each)
        self.feedback = self._residuals.device_feedback(layout.names, layout.sizes, self._place.device)
        self._scales = [self._staging.load(each.scale) for each in self._starts]
        with self._staging.on_kernels(ready):
            self._sent = torch.empty(sum(layout.left), dtype=torch.float32, device=self._place.device)
            self._mean = self._sent
            self._kept: DeviceFeedback | None = None
            room = self.feedback.compensate_by(self._project)
            self._moments = self._matrices(room, layout.own_places)

    @property
    def energy(self) -> float:
        with self._staging.on_kernels():
            return super().energy

    def _project(self, residual: torch.Tensor, room: torch.Tensor) -> None:
        layout = self.layout
        sources = self._matrices(self.buffer.detach(), layout.places)
        kept, moments = (self._matrices(each, layout.own_places) for each in (residual, room))
        bases = [self._staging.load(each.basis) for each in self._starts]
        made = layout.parts(self._sent, layout.left)
        for source, left, moment, basis, out, scale in zip(
            sources, kept, moments, bases, made, self._scales, strict=True
        ):
            project(source, left, moment, basis, out, moment.numel())
            out /= scale
        self._is_finite = self._sent.isfinite().all()

    def submit(self, communicator: Communicator, call: Mapping[str, Any]) -> Future[AllReduceResult]:
        # The vector waits for the stream in which it was made.
        with self._staging.on_kernels():
            vector = self._place.vector(self._sent, self._kept, out=self._mean)
        self.submitted = True
        return communicator.submit(vector, **call)

    def make_right_factor(self) -> None:
        assert self.feedback is not None
        layout, staging = self.layout, self._staging
        with staging.on_kernels():
            decoded, finite = staging.read(self._mean), staging.read(self._is_finite)
        staging.wait()
        self._left = [staging.load(each) for each in self._bases_of(decoded.numpy())]
        with staging.on_kernels():
            if not bool(finite):
                pending = self.feedback.pending
                pending.copy_(torch.where(pending.isfinite(), pending, self.feedback.residual))
            self._sent = torch.empty(sum(layout.right), dtype=torch.float32, device=self._place.device)
            made = layout.parts(self._sent, layout.right)
            for left, moment, scale, out in zip(self._left, self._moments, self._scales, made, strict=True):
                torch.mm(left, moment, out=out)
                out /= scale
            self._mean = torch.empty_like(self._sent)
        self._kept = DeviceFeedback(self._sent.numel(), self._place.device)

    def finish(self) -> None:
        assert self.feedback is not None
        assert self._kept is not None
        layout, staging = self.layout, self._staging
        with staging.on_kernels():
            own = self._sent - self._kept.residual
            own = torch.where(own.isfinite(), own, 0)
            parts = [layout.parts(each, layout.right) for each in (self._mean, own)]
            for left, scale, mean, mine, moment, out in zip(
                self._left, self._scales, *parts, self._moments, self.means, strict=True
            ):
                mean *= scale
                mine *= scale
                reconstruct_tensors(left, mean, mine, moment, out)
            decoded = staging.read(self._mean)
        staging.wait()
        self._decoded = [each.copy() for each in layout.parts(decoded.numpy(), layout.right)]
        self.feedback.commit()
        self.settled = True


def project(
    source: torch.Tensor, residual: torch.Tensor, moment: torch.Tensor, basis: torch.Tensor, out: torch.Tensor, run: int
) -> None:
    """Fill moment, float32[m, c], with source + residual, and out, float32[r, m], with its product with the basis.

    Args:
        source: [m, c], of any floating-point type.
        residual: float32[m, c]
        basis: float32[r, c]
        run: elements that are added and then multiplied at a time.
    """
    rows = max(1, run // source.shape[1])
    for first in range(0, source.shape[0], rows):
        here = slice(first, first + rows)
        # One run after the other: the product reads the sum from the cache.
        torch.add(source[here], residual[here], out=moment[here])
        torch.mm(basis, moment[here].t(), out=out[:, here])


def reconstruct_tensors(
    left: torch.Tensor, mean: torch.Tensor, own: torch.Tensor, rest: torch.Tensor, out: torch.Tensor
) -> None:
    """Do what `FactorKernels.reconstruct` does, to the same bits, on any device.

    Multiplies and adds in two operations of torch, so that no compiler fuses them, which would round otherwise.
    """
    rows = max(1, _DEVICE_RUN_ELEMENTS // out.shape[1])
    for first in range(0, out.shape[0], rows):
        here = slice(first, first + rows)
        for right, target, subtracts in ((mean, out[here], False), (own, rest[here], True)):
            total = torch.zeros_like(target)
            for column, row in zip(left[:, here], right, strict=True):
                total += column[:, None] * row
            if subtracts:
                target -= total
            else:
                target.copy_(total)


def require_device_bytes(kernels: FactorKernels, device: torch.device) -> None:
    """Raise CodecError where products of factors have other bytes on a device than on the host."""
    rank, rows, columns = 5, 70, 45
    factors = [random_columns(length, rank, length) for length in (rows, columns, columns + 1)]
    left, mean, own = factors[0], factors[1], factors[2][:, 1:].copy()
    rest, out = random_columns(0, rows, columns), np.empty((rows, columns), np.float32)
    p, q, part, kept = (torch.from_numpy(each.copy()).to(device) for each in (left, mean, own, rest))
    made = torch.empty((rows, columns), dtype=torch.float32, device=device)
    kernels.reconstruct(left, mean, own, rest, out)
    reconstruct_tensors(p, q, part, kept, made)
    for here, other in ((out, made), (rest, kept)):
        if here.tobytes() != other.cpu().numpy().tobytes():
            raise CodecError(f"factors of low rank on {device}: other bytes than on the host; take codec_on='host'")
