# SPDX-License-Identifier: Apache-2.0
"""Other schemes over a made-up gloo, and training over links that lose packets."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hopsum.codec import CodecError, ErrorFeedback
from hopsum.codec.interface import blocks_of
from hopsum.codec.thc import LookupTableCodec
from hopsum_evaluation.baselines.two_shot import BLOCK, block_bytes, dequantise, padded, quantise
from hopsum_evaluation.compare.methods import PowerSgdMethod, TwoShotMethod
from hopsum_evaluation.report import other_schemes
from hopsum_evaluation.report.lossy_training import (
    PARAMETERS,
    Case,
    Fate,
    Learner,
    allreduce,
    draw_fate,
    make_case_codec,
)
from hopsum_evaluation.report.other_schemes import (
    TopKState,
    TwoShotExchange,
    TwoShotState,
    largest,
    part_elements,
    topk_hook,
    two_shot_hook,
)

pytestmark = pytest.mark.system
WORKERS = 3
TIMEOUT_S = 60


class Meeting:
    """Collective operations of ranks that are threads; a rank's process group is its number."""

    def __init__(self) -> None:
        self.brought: list[torch.Tensor] = [torch.empty(0)] * WORKERS
        self.ranks = iter(range(WORKERS))
        self.all_here = threading.Barrier(WORKERS)

    def all_to_all_single(self, got: torch.Tensor, sent: torch.Tensor, group: int) -> None:
        for place, brought in zip(got, self.phase(sent, group), strict=True):
            place.copy_(brought[group])

    def all_gather(self, found: list[torch.Tensor], mine: torch.Tensor, group: int) -> None:
        for place, brought in zip(found, self.phase(mine, group), strict=True):
            place.copy_(brought)

    def phase(self, mine: torch.Tensor, rank: int) -> list[torch.Tensor]:
        self.brought[rank] = mine.clone()
        self.all_here.wait(TIMEOUT_S)
        found = list(self.brought)
        self.all_here.wait(TIMEOUT_S)
        return found


BITS = pytest.mark.parametrize("bits", [4, 8])


def normal(elements: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)


@BITS
def test_a_block_errs_by_half_a_step_at_most(bits: int) -> None:
    x = normal(7 * BLOCK)
    x[BLOCK : 2 * BLOCK] = 0
    x[2 * BLOCK : 3 * BLOCK] *= 1e-30
    blocks = quantise(x, bits)
    assert blocks.shape == (7, block_bytes(bits)) == (7, 4 + BLOCK * bits // 8)
    steps = np.abs(x.reshape(-1, BLOCK)).max(axis=1) / ((1 << bits - 1) - 1)
    error = np.abs(dequantise(blocks, bits) - x).reshape(-1, BLOCK).max(axis=1)
    assert (error <= steps * 0.50001).all()
    again = quantise(dequantise(blocks, bits), bits)
    assert again[:, 4:].tobytes() == blocks[:, 4:].tobytes(), "codes are kept"


def test_every_code_comes_back() -> None:
    for bits in (4, 8):
        most = (1 << bits - 1) - 1
        x = np.resize(np.arange(-most, most + 1, dtype=np.float32), BLOCK)
        assert np.array_equal(dequantise(quantise(x, bits), bits), x)


def test_other_bits_are_refused() -> None:
    with pytest.raises(CodecError, match="two-shot with codes of 2 bits: 4 or 8"):
        block_bytes(2)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Meeting:
    made = Meeting()
    monkeypatch.setattr(dist, "new_group", lambda **_: next(made.ranks))
    monkeypatch.setattr(dist, "all_to_all_single", made.all_to_all_single)
    monkeypatch.setattr(dist, "all_gather", made.all_gather)
    return made


@BITS
@pytest.mark.usefixtures("group")
def test_all_ranks_end_with_the_same_mean_and_nothing_is_lost(bits: int) -> None:
    elements, steps = 5 * BLOCK + 9, 6
    exchanges = [TwoShotExchange(bits, WORKERS) for _ in range(WORKERS)]
    left = [np.zeros(part_elements(elements, WORKERS), np.float32) for _ in exchanges]
    residuals = [np.zeros(elements, np.float32) for _ in exchanges]
    put_in, came_out = np.zeros(elements), np.zeros(elements)
    with ThreadPoolExecutor(WORKERS) as pool:
        for step in range(steps):
            vectors = [normal(elements, 10 * step + rank) for rank in range(WORKERS)]
            whole = [x + residual for x, residual in zip(vectors, residuals, strict=True)]
            found = [f.result(TIMEOUT_S) for f in [
                pool.submit(each.mean, x, rest) for each, x, rest in zip(exchanges, whole, left, strict=True)
            ]]  # fmt: skip
            means = {mean.tobytes() for mean, _ in found}
            assert len(means) == 1
            residuals = [x - delivered for x, (_, delivered) in zip(whole, found, strict=True)]
            put_in += np.mean(vectors, axis=0, dtype=np.float64)
            came_out += found[0][0]
    for each in exchanges:
        each.close()
    rest = np.mean(residuals, axis=0, dtype=np.float64) + np.concatenate(left)[:elements]
    assert np.abs(put_in - came_out - rest).max() < 1e-5
    assert np.linalg.norm(rest) < np.linalg.norm(put_in) * (0.5 if bits == 4 else 0.02)


@BITS
@pytest.mark.usefixtures("group")
def test_the_comparison_is_the_same_arithmetic(bits: int) -> None:
    vectors = [normal(3000, rank) for rank in range(WORKERS)]
    exchanges = [TwoShotExchange(bits, WORKERS) for _ in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS) as pool:
        empty = [np.zeros(part_elements(3000, WORKERS), np.float32) for _ in exchanges]
        futures = [pool.submit(each.mean, x, rest) for each, x, rest in zip(exchanges, vectors, empty, strict=True)]
        mean = futures[0].result(TIMEOUT_S)[0]
    for each in exchanges:
        each.close()
    compared = TwoShotMethod(WORKERS, bits).run(vectors, 1, 1)
    assert compared.mean.tobytes() == mean.tobytes()
    assert compared.bits.up == compared.bits.down == pytest.approx(2 * (2 / 3) * (bits + 32 / BLOCK))


class Bucket:
    """As much of DDP's bucket as the hook looks at."""

    def __init__(self, parameters: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        self._parameters, self._buffer = parameters, torch.cat(gradients)

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def index(self) -> int:
        return 0


@pytest.mark.usefixtures("group")
def test_the_hook_keeps_residuals_by_parameter() -> None:
    states = [TwoShotState(TwoShotExchange(4, WORKERS)) for _ in range(WORKERS)]
    parameters = [[torch.zeros(700), torch.zeros(300)] for _ in states]
    gradient = torch.from_numpy(normal(1000))
    total = torch.zeros(1000)
    steps = 40
    for step in range(steps):
        order = (0, 1) if step % 2 else (1, 0)  # DDP may put parameters into other buckets, in another order
        parts = gradient.split([700, 300])
        buckets = [Bucket([own[i] for i in order], [parts[i].clone() for i in order]) for own in parameters]
        futures = [two_shot_hook(state, bucket) for state, bucket in zip(states, buckets, strict=True)]  # type: ignore[arg-type]
        means = [future.wait() for future in futures]
        assert len({mean.numpy().tobytes() for mean in means}) == 1
        mean = means[0] if step % 2 else torch.cat(means[0].split([300, 700])[::-1])
        total += mean
    for state in states:
        state.exchange.close()
    assert float((total / steps - gradient).norm() / gradient.norm()) < 0.03, "without error feedback 0.1"


def test_a_failed_exchange_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "new_group", lambda **_: None)

    def gone(*_: object, **__: object) -> None:
        raise RuntimeError("a peer is gone")

    monkeypatch.setattr(dist, "all_to_all_single", gone)
    state = TwoShotState(TwoShotExchange(8, 2))
    future = two_shot_hook(state, Bucket([torch.zeros(10)], [torch.ones(10)]))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="a peer is gone"):
        future.wait()
    state.exchange.close()


def test_power_sgd_finds_a_matrix_of_low_rank_and_needs_its_bits_only() -> None:
    rng = np.random.default_rng(2)
    exact = (rng.standard_normal((64, 2)) @ rng.standard_normal((2, 64))).astype(np.float32).reshape(-1)
    method = PowerSgdMethod(4, 2)
    outcome = method.run([exact] * 4, 1, 1)
    assert np.linalg.norm(outcome.mean - exact) < 1e-4 * np.linalg.norm(exact)
    assert outcome.bits.up == pytest.approx(2 * 0.75 * 32 * 2 * (64 + 64) / 4096)
    noise = [normal(4096, rank) for rank in range(4)]
    errors = []
    for step in range(5):
        mean = np.mean(noise, axis=0)
        errors.append(np.linalg.norm(method.run(noise, 1, step).mean - mean) / np.linalg.norm(mean))
    assert errors[-1] < errors[0], "Q is kept: a power iteration"


def test_one_worker_has_nobody_to_exchange_with() -> None:
    with pytest.raises(CodecError, match="two-shot: 1 worker has nobody"):
        TwoShotMethod(1, 4)
    with pytest.raises(CodecError, match="powersgd: 1 worker has nobody"):
        PowerSgdMethod(1, 2)


def test_padding_gives_every_worker_whole_blocks() -> None:
    assert padded(normal(1), 3).size == 3 * BLOCK == 3 * part_elements(1, 3)
    assert padded(normal(3 * BLOCK + 1), 3).size == 6 * BLOCK == 3 * part_elements(3 * BLOCK + 1, 3)


class Gathered:
    """An all-gather that is over; other ranks sent what was set before."""

    others: list[torch.Tensor]

    def __init__(self, found: list[torch.Tensor], sent: torch.Tensor, *, async_op: bool) -> None:
        assert async_op
        self.sent = sent
        for place, message in zip(found, [sent, *self.others], strict=True):
            place.copy_(message)

    def get_future(self) -> torch.futures.Future[None]:
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> type[Gathered]:
    """The other ranks; none until `others` is set."""
    monkeypatch.setattr(Gathered, "others", [], raising=False)
    monkeypatch.setattr(other_schemes.dist, "get_world_size", lambda: 1 + len(Gathered.others))
    monkeypatch.setattr(other_schemes.dist, "all_gather", Gathered)
    return Gathered


def message(elements: dict[int, float]) -> torch.Tensor:
    indices = torch.tensor(list(elements), dtype=torch.int32)
    return torch.stack([indices, torch.tensor(list(elements.values())).view(torch.int32)])


def mean(state: TopKState, *gradients: list[float], parameters: list[torch.Tensor]) -> list[list[float]]:
    """Return what the hook makes of a bucket of these parameters' gradients."""
    bucket: Any = Bucket(parameters, [torch.tensor(each) for each in gradients])
    found = topk_hook(state, bucket).wait()
    assert found is bucket.buffer()  # in place, as DDP expects
    return [each.tolist() for each in found.split([len(each) for each in gradients])]


def test_the_largest_are_sent_and_there_is_always_one() -> None:
    x = torch.tensor([0.1, -7.0, 3.0, 0.0, -2.0])
    assert sorted(largest(x, 0.4).tolist()) == [1, 2]
    assert largest(x, 0.01).tolist() == [1]
    assert len(largest(torch.randn(1000))) == 100


def test_the_mean_is_that_of_what_all_ranks_sent(ranks: type[Gathered]) -> None:
    ranks.others = [message({3: 6.0, 0: -3.0}), message({1: 9.0, 3: 1.0})]
    parameters = [torch.zeros(4)]
    state = TopKState(0.5)
    assert mean(state, [3.0, -12.0, 1.0, 2.0], parameters=parameters) == [[0.0, -1.0, 0.0, pytest.approx(7 / 3)]]
    assert state._residuals._residuals[parameters[0]].tolist() == [0.0, 0.0, 1.0, 2.0]


@pytest.mark.usefixtures("ranks")
def test_nothing_is_lost_in_the_long_run() -> None:
    """All means and the last residual are all gradients; without error feedback the small ones would never be sent."""
    parameter, state = torch.zeros(50), TopKState(0.1)
    generator = torch.Generator().manual_seed(3)
    given, sent = torch.zeros(50), torch.zeros(50)
    for _ in range(60):
        gradient = torch.randn(50, generator=generator) + 0.2
        given += gradient
        bucket: Any = Bucket([parameter], [gradient])
        sent += topk_hook(state, bucket).wait()
    torch.testing.assert_close(sent + state._residuals._residuals[parameter], given)
    assert (sent != 0).all()


PACKET_LOSS_WORKERS = 4
ELEMENTS = 3000


@cache
def codec() -> LookupTableCodec:
    return make_case_codec(Case("published", PACKET_LOSS_WORKERS, 1))


@pytest.fixture(scope="module")
def block() -> int:
    return codec().block_elements


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner()


def vectors(workers: int = PACKET_LOSS_WORKERS) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return [np.random.default_rng([1, rank]).standard_normal(ELEMENTS, dtype=np.float32) for rank in range(workers)]


def fate(missing: tuple[int, int] | None = None, lost: tuple[int, int] | None = None) -> Fate:
    """Return what loses one contribution and one result, (worker, chunk) each."""
    present = np.ones((PACKET_LOSS_WORKERS, blocks_of(ELEMENTS, codec().block_elements)), np.bool_)
    gone = np.zeros_like(present)
    if missing:
        present[missing] = False
    if lost:
        gone[lost] = True
    return Fate(present, gone)


def test_the_gradient_is_that_of_the_loss(learner: Learner) -> None:
    rng = np.random.default_rng(2)
    parameters, batch = learner.start(rng), np.arange(64)
    gradient = learner.gradient(parameters, batch)
    for _ in range(5):
        way = rng.standard_normal(PARAMETERS).astype(np.float32) * np.float32(1e-3)
        rise = learner.loss(parameters + way, batch) - learner.loss(parameters - way, batch)
        assert rise / 2 == pytest.approx(float(gradient @ way), rel=0.02, abs=2e-5)
    assert gradient.shape == (PARAMETERS,)


def test_a_missing_contribution_is_divided_away_here_and_zero_there(block: int) -> None:
    feedback = {published: [ErrorFeedback(ELEMENTS) for _ in range(PACKET_LOSS_WORKERS)] for published in (False, True)}
    missing = fate(missing=(2, 1))
    ours, theirs = (
        allreduce(codec(), vectors(), (5, 1), feedback[published], missing, published=published)
        for published in (False, True)
    )
    assert all(np.array_equal(each, ours[0]) for each in ours)
    assert all(np.array_equal(each, theirs[0]) for each in theirs)
    here = slice(block, 2 * block)
    np.testing.assert_allclose(
        theirs[0][here], ours[0][here] * (PACKET_LOSS_WORKERS - 1) / PACKET_LOSS_WORKERS, atol=1e-5
    )
    np.testing.assert_array_equal(theirs[0][:block], ours[0][:block])
    mine, whole = feedback[False][2].residual, vectors()[2]
    np.testing.assert_array_equal(mine[here], whole[here])  # all of it comes back
    believed = feedback[True][2].residual
    assert np.linalg.norm(believed[here]) < 0.5 * np.linalg.norm(whole[here])
    np.testing.assert_array_equal(believed[:block], mine[:block])


def test_a_missing_result_is_zero_at_one_worker_there_and_nowhere_here(block: int) -> None:
    lost = fate(lost=(1, 0))
    ours, theirs = (
        allreduce(codec(), vectors(), (5, 1), [ErrorFeedback(ELEMENTS) for _ in vectors()], lost, published=published)
        for published in (False, True)
    )
    assert not theirs[1][:block].any()
    np.testing.assert_array_equal(theirs[1][block:], theirs[0][block:])
    assert all(np.array_equal(each, theirs[0]) for each in (*ours, theirs[0], theirs[2], theirs[3]))


def test_fates_lose_their_share_and_leave_somebody() -> None:
    found = draw_fate(np.random.default_rng(1), 10, 10_000, 0.05, 3)
    late = ~found.present.any(axis=1)
    assert late.sum() == 3
    assert found.present[~late].mean() == pytest.approx(0.95, abs=0.004)
    assert found.lost.mean() == pytest.approx(0.05, abs=0.004)
    hard = draw_fate(np.random.default_rng(1), 3, 1000, 0.9, 1)
    assert hard.present.any(axis=0).all()
    assert not hard.present.all(axis=1).any()
