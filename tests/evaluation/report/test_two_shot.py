# SPDX-License-Identifier: Apache-2.0
"""Two-shot all-reduces: blocks come back, all ranks end with the same mean, and nothing is lost for good."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hopsum.codec import CodecError
from hopsum_evaluation.baselines.two_shot import BLOCK, block_bytes, dequantise, padded, quantise
from hopsum_evaluation.compare.endpoints import PowerSgdMethod, TwoShotMethod
from hopsum_evaluation.report.two_shot import TwoShotExchange, TwoShotState, part_elements, two_shot_hook

from .test_software import TIMEOUT_S, WORKERS, Meeting

pytestmark = pytest.mark.system
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
def meeting(monkeypatch: pytest.MonkeyPatch) -> Meeting:
    made = Meeting()
    monkeypatch.setattr(dist, "new_group", lambda **_: next(made.ranks))
    monkeypatch.setattr(dist, "all_to_all_single", made.all_to_all_single)
    monkeypatch.setattr(dist, "all_gather", made.all_gather)
    return made


@BITS
@pytest.mark.usefixtures("meeting")
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
@pytest.mark.usefixtures("meeting")
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


@pytest.mark.usefixtures("meeting")
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
