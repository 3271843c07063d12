# SPDX-License-Identifier: Apache-2.0
"""An all-reduce on a device is the one of numpy: equal payloads, means, residuals and states, whatever happens.

Every rank runs both side by side. What is sent is summed once, so a rank on either side belongs to the same job.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.agent.vector import HostVector
from hopsum.codec import CodecError, ErrorFeedback, NonFiniteError, ReductionContext, make_codec
from hopsum.codec.interface import Codec, CollectivePhase, Reduction
from hopsum.codec.simulate import simulate_switch
from hopsum.torch.device_codec import DeviceCodec, device_codec
from hopsum.torch.device_reduction import DeviceFeedback, DeviceReduction

from .forms import FORMS

CPU = torch.device("cpu")
PIECE = 2 * 1024
"""Vectors of the tests have several pieces."""


class Rank:
    """One rank, twice: on the host and on the device, each with its error feedback."""

    def __init__(self, codec: Codec, place: DeviceCodec, rank: int, elements: int, *, keeps: bool = True) -> None:
        self.codec, self.place, self.rank = codec, place, rank
        self.kept = ErrorFeedback(elements, revocable=True) if keeps else None
        self.held = DeviceFeedback(elements, CPU) if keeps else None

    def start(self, x: NDArray[np.float32], step: int, on_nonfinite: Any = "skip") -> None:
        context = ReductionContext(5, step, self.rank)
        self.host_mean, self.device_mean = x.copy(), torch.from_numpy(x.copy())
        left = 0 if self.kept is None else self.kept.residual
        # The largest finite one: others are dropped.
        self.given = np.nan_to_num(x + left, nan=0.0, posinf=0.0, neginf=0.0)
        self.host = HostVector(self.host_mean, self.kept, self.host_mean).start(
            self.codec, context, tensors=(("w", x.size),), on_nonfinite=on_nonfinite
        )
        self.device = DeviceReduction(
            self.place.codec,
            self.place.staging,
            self.device_mean,
            context,
            self.held,
            out=self.device_mean,
            tensors=(("w", x.size),),
            on_nonfinite=on_nonfinite,
            piece_elements=PIECE,
        )
        self.require_equal()

    @property
    def both(self) -> tuple[Reduction, Reduction]:
        return self.host, self.device

    @property
    def phase(self) -> CollectivePhase:
        assert self.host.phase is not None
        return self.host.phase

    def abort(self, largest: float) -> None:
        """Abort both. On the host a contribution was subtracted and is added again, which rounds to float32.

        largest: magnitude of what all ranks sent, which decides how large a contribution is.
        """
        for reduction in self.both:
            reduction.abort()
        if self.kept is not None and self.held is not None:
            held, kept = self.held.residual.numpy(), self.kept.residual
            np.testing.assert_allclose(held, kept, rtol=0, atol=2.0**-20 * largest)
            held[:] = kept
        self.require_equal()

    def require_equal(self) -> None:
        """Compare all that a communicator, and the next all-reduce, can see of both."""
        host: Any = self.host
        assert host.state is self.device.state
        if host.phase is None or self.device.phase is None:
            assert host.phase is self.device.phase
        else:
            assert host.phase._replace(payloads=0) == self.device.phase._replace(payloads=0)  # type: ignore[arg-type]
            np.testing.assert_array_equal(self.device.phase.payloads, host.phase.payloads)
        assert (host.mean is None) == (self.device.mean is None)
        np.testing.assert_array_equal(host.contributors, self.device.contributors)
        assert self.host_mean.tobytes() == self.device_mean.numpy().tobytes()
        if self.kept is not None and self.held is not None:
            np.testing.assert_array_equal(self.held.residual.numpy(), self.kept.residual)


def sum_up(codec: Codec, ranks: list[Rank], bitmaps: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the sums of a phase, chunk by chunk of the ranks in its bitmap."""
    op = ranks[0].phase.op
    rows = []
    for chunk, bitmap in enumerate(bitmaps.tolist()):
        inside = [each.phase.payloads[chunk : chunk + 1] for each in ranks if bitmap >> each.rank & 1]
        rows.append(simulate_switch(op, inside, codec.lookup, code_group=codec.code_group)[0])
    return np.concatenate(rows)


def take(ranks: list[Rank], results: NDArray[np.uint8], bitmaps: NDArray[np.uint64]) -> bool:
    """Hand all ranks their results. Return whether any refused them, on both sides: it has left the job then."""
    refused = False
    for each in ranks:
        told = [_refusal(reduction, results, bitmaps) for reduction in each.both]
        assert told[0] == told[1]
        refused |= told[0] is not None
        each.require_equal()
    return refused


def _refusal(reduction: Reduction, results: NDArray[np.uint8], bitmaps: NDArray[np.uint64]) -> str | None:
    try:
        reduction.on_results(results, bitmaps)
    except CodecError as error:
        reduction.abort()
        return str(error)
    return None


@settings(max_examples=60)
@given(data=st.data())
def test_any_history_leaves_equal_bytes(data: st.DataObject) -> None:
    """Quorums, late ranges, vectors that are not finite, and all-reduces that end in the middle."""
    form, workers = data.draw(st.sampled_from(FORMS)), data.draw(st.integers(1, 3))
    elements = data.draw(st.sampled_from((1, 255, 1024, 1025, 3 * 1024, 2 * 1536 + 7, 6 * 1024 + 1)))
    codec = make_codec(form, workers=workers, backend="numpy")
    place = device_codec(codec, CPU, backend="torch")
    keeps = data.draw(st.booleans())
    ranks = [Rank(codec, place, rank, elements, keeps=keeps) for rank in range(workers)]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    some = st.integers(1, (1 << workers) - 1)
    for step in range(data.draw(st.integers(1, 3))):
        for each in ranks:
            x = rng.standard_t(3, elements).astype(np.float32) * np.float32(10.0 ** rng.integers(-3, 4))
            x[:: data.draw(st.sampled_from((elements + 1, 2)))] = 0
            bad = data.draw(st.sampled_from((None, None, None, None, np.nan, np.inf, 3e38)))
            if bad is not None:
                x[rng.integers(elements)] = bad
            with np.errstate(over="ignore", invalid="ignore"):
                each.start(x, step)
        abort_in = data.draw(st.sampled_from((None, None, None, "ranges", "sums")))
        for name in ("ranges", "sums"):
            if abort_in == name:
                for each in ranks:
                    each.abort(max(float(np.abs(other.given).max()) for other in ranks))
                break
            chunks = len(ranks[0].phase.payloads)
            bitmaps = np.array([data.draw(some) for _ in range(chunks)], np.uint64)
            with np.errstate(over="ignore", invalid="ignore"):
                if take(ranks, sum_up(codec, ranks, bitmaps), bitmaps):
                    return
            if ranks[0].host.phase is None:
                break


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("elements", [1, 5000])
def test_kernels_and_pieces_change_no_byte(backend: str, form: str, elements: int) -> None:
    """The kernels themselves, under Triton's interpreter."""
    codec = make_codec(form, workers=2, backend="numpy")
    place = device_codec(codec, CPU, backend=backend)
    assert place.codec.backend == backend
    ranks = [Rank(codec, place, rank, elements) for rank in range(2)]
    rng = np.random.default_rng(2)
    for step in range(2):
        for each in ranks:
            each.start(rng.standard_normal(elements).astype(np.float32), step)
        for _ in range(2):
            everybody = np.full(len(ranks[0].phase.payloads), 3, np.uint64)
            assert not take(ranks, sum_up(codec, ranks, everybody), everybody)
    assert all(each.kept is not None and each.kept.residual.any() for each in ranks)


@pytest.mark.parametrize("form", FORMS)
def test_only_ranges_codes_and_sums_cross_the_bus(form: str) -> None:
    """The bytes of the table at the head of device_reduction.py, and three waits an all-reduce."""
    elements = 40 * 1024
    codec = make_codec(form, workers=2, backend="numpy")
    place = device_codec(codec, CPU)
    rank, staging = Rank(codec, place, 1, elements), place.staging
    before = staging.bytes_to_host, staging.bytes_to_device, staging.waits
    rank.start(np.ones(elements, np.float32), 0)
    for _ in range(2):
        everybody = np.full(len(rank.phase.payloads), 2, np.uint64)
        sums = sum_up(codec, [rank], everybody)
        codes = rank.phase.payloads.nbytes
        take([rank], sums, everybody)
    blocks = elements // place.codec.block_elements
    taken = 4 * blocks if place.codec.dither is None else 8 * blocks + 64
    assert staging.bytes_to_host - before[0] == 4 * blocks + codes + 4 + 8 + 8
    assert staging.bytes_to_device - before[1] == 4 * blocks + sums.nbytes + taken
    assert staging.waits - before[2] == 3
    assert (codes, sums.nbytes) == (elements * place.codec.bits / 8, elements * place.codec.result_bits / 8)
    assert codes + sums.nbytes < 8 * elements / 4, "less than a quarter of staging float32"


@pytest.mark.parametrize("form", ["thc:result_bits=8", "thc:rounding=stochastic"])
def test_sums_that_the_table_cannot_make_change_no_residual(form: str) -> None:
    codec = make_codec(form, workers=2, backend="numpy")
    place = device_codec(codec, CPU)
    rank = Rank(codec, place, 0, 5000)
    rank.start(np.linspace(-1, 1, 5000, dtype=np.float32), 0)
    everybody = np.full(len(rank.phase.payloads), 3, np.uint64)
    take([rank], sum_up(codec, [rank], everybody * 0 + 1), everybody)
    sums = sum_up(codec, [rank], np.ones(5, np.uint64))
    sums[3, 77] = 255
    for reduction in rank.both:
        with pytest.raises(CodecError, match=r"chunk 3: a lane of 255 from 2 workers, but the table ends at"):
            reduction.on_results(sums, np.full(5, 3, np.uint64))
    assert rank.held is not None
    rank.abort(1.0)
    np.testing.assert_allclose(rank.held.residual.numpy(), np.linspace(-1, 1, 5000, dtype=np.float32), atol=2.0**-22)


def test_results_after_refused_ones_give_one_sample() -> None:
    codec = make_codec("thc:result_bits=8", workers=2, backend="numpy")
    rank = Rank(codec, device_codec(codec, CPU), 0, 5000)
    rank.start(np.linspace(-1, 1, 5000, dtype=np.float32), 0)
    alone = np.ones(len(rank.phase.payloads), np.uint64)
    take([rank], sum_up(codec, [rank], alone), alone)
    sums = sum_up(codec, [rank], np.ones(5, np.uint64))
    refused = sums.copy()
    refused[3, 77] = 255
    with pytest.raises(CodecError, match="the table ends at"):
        rank.device.on_results(refused, np.ones(5, np.uint64))
    rank.device.on_results(sums, np.ones(5, np.uint64))
    assert len(rank.device.squares) == 2


def test_errors_name_what_the_host_names() -> None:
    """The message names the tensor and the elements."""
    codec = make_codec("thc", workers=1, backend="numpy")
    rank = Rank(codec, device_codec(codec, CPU), 0, 3000)
    x = np.ones(3000, np.float32)
    x[7] = np.nan
    rank.start(x, 0, on_nonfinite="raise")
    told, shared = [], rank.phase.payloads
    for reduction in rank.both:
        with pytest.raises(NonFiniteError) as raised:
            reduction.on_results(shared, np.ones(1, np.uint64))
        told.append(str(raised.value))
    assert told[0] == told[1]
    assert "w: 1 of 3000" in told[0]
    rank.require_equal()


@pytest.mark.parametrize("form", FORMS)
def test_results_that_do_not_fit(form: str) -> None:
    codec = make_codec(form, workers=1, backend="numpy")
    bytes_ = 128 * device_codec(codec, CPU).codec.result_bits
    for results, contributors, message in (
        (5, np.ones(4), r"contributors instead of ranges: \[4\] for 5 blocks"),
        (4, np.ones(5), rf"results of 5000: expected uint8\[5, {bytes_}\], got uint8\[4, {bytes_}\]"),
        (5, np.array([1, 1, 0, 1, 1]), "chunk 2: contributors 0x0 of a job of 1 workers"),
        (5, np.array([1, 1, 1, 1, 2]), "chunk 4: contributors 0x2 of a job of 1 workers"),
    ):
        rank = Rank(codec, device_codec(codec, CPU), 0, 5000)
        rank.start(np.ones(5000, np.float32), 0)
        take([rank], rank.phase.payloads, np.ones(1, np.uint64))
        with pytest.raises(CodecError, match=message):
            rank.device.on_results(np.zeros((results, bytes_), np.uint8), contributors.astype(np.uint64))
        rank.device.abort()
        assert rank.held is not None
        assert rank.held.residual.tolist() == [1] * 5000, "nothing was delivered"
        with pytest.raises(CodecError, match="in state GONE: it takes no results"):
            rank.device.on_results(np.zeros((5, bytes_), np.uint8), np.ones(5, np.uint64))
        with pytest.raises(CodecError, match="in state GONE: there is nothing to abort"):
            rank.device.abort()
