# SPDX-License-Identifier: Apache-2.0
"""collective://gloo in processes: the bytes of memory://, and of a switch; errors that all ranks have."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..api.ranks import run_ranks

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402

from hopsum.agent import Communicator  # noqa: E402
from hopsum.codec import ErrorFeedback  # noqa: E402
from hopsum.codec.simulate import lane_values, simulate_switch  # noqa: E402
from hopsum.config import Config, ConfigError  # noqa: E402
from hopsum.connection.collective_url import open_collective  # noqa: E402
from hopsum.connection.open_agent import Hooks  # noqa: E402
from hopsum.connection.url import split_url  # noqa: E402
from hopsum.serial.collective import _operation, pack_words, unpack_words  # noqa: E402
from hopsum_wire import Op, down_bytes, up_bytes  # noqa: E402
from hopsum_wire.payload import SHAPES  # noqa: E402

from .collective_worker import CODECS, SEED, SIZES, digest, vectors  # noqa: E402
from .job import run_processes  # noqa: E402

pytestmark = pytest.mark.system
WORKER = Path(__file__).with_name("collective_worker.py")


def run(scenario: str, folder: Path, workers: int) -> list[dict[str, Any]]:
    """Run a scenario of collective_worker.py on all ranks and return what they print."""
    return run_processes(WORKER, [[scenario, str(rank), str(workers)] for rank in range(workers)], folder)


def test_sums_have_the_bytes_of_memory(tmp_path: Path) -> None:
    workers = 3
    found = run("sums", tmp_path, workers)
    for name, (codec, options) in CODECS.items():

        def work(job: Communicator, codec: str = codec) -> list[str]:
            feedback = [ErrorFeedback(elements) for elements in SIZES]
            means = [
                job.allreduce(x, feedback=kept).mean for x, kept in zip(vectors(job.rank, codec), feedback, strict=True)
            ]
            return [digest(means), digest([each.residual for each in feedback])]

        url = f"memory://collective?workers={workers}"
        expected = run_ranks(url, work, workers, codec=codec, codec_options=options, seed=SEED)
        assert [rank[name] for rank in found] == expected, name


def test_what_all_ranks_learn_alike(tmp_path: Path) -> None:
    first, second = run("agreed", tmp_path, 2)
    assert first["lengths"] == second["lengths"]
    assert "rank 0 has all-reduce 0 of 3 elements" in first["lengths"]
    assert "rank 1 has all-reduce 0 of 4 elements" in first["lengths"]
    assert first["mean"] == second["mean"] == [0.5, 0.5]
    words = r"collective://gloo: rank 0 has codec uhc\(\); rank 1 has codec thc\(\): all ranks need the same"
    assert re.search(words, first["settings"])
    words = "rank=[12], but torch.distributed says [01]; leave rank out"
    assert re.search(words, second["place"]), "its own error, or the other's"


def test_a_group_of_some_ranks(tmp_path: Path) -> None:
    assert run("group", tmp_path, 3) == [{}, *[{"mean": [1.5], "after": 2.0}] * 2]


def test_a_rank_that_fails_alone_is_noticed(tmp_path: Path) -> None:
    first, second = run("fail", tmp_path, 2)
    assert second["error"] == "TypeError"
    assert first["error"] == "AllReduceError"
    assert "collective://gloo: MAX32 failed on rank 0 of 2" in first["text"]
    assert first["soon"]
    assert first["residual"] == second["residual"] == [1, 1]
    for rank in (first, second):
        assert "Connect all ranks again" in rank["after"]
        assert not rank["left"]


def test_a_rank_that_does_not_come_is_an_error_at_the_deadline(tmp_path: Path) -> None:
    first, _ = run("late", tmp_path, 2)
    assert first["error"] == "AllReduceError"
    assert "collective://gloo: agreement failed on rank 0 of 2" in first["text"]


@pytest.mark.parametrize("has_or", [True, False])
@pytest.mark.parametrize("op", [op for op in Op if not SHAPES[op].down_codes], ids=lambda op: op.name)
def test_words_add_up_to_what_a_switch_makes(op: Op, has_or: bool) -> None:
    """Words are added as torch would, and compared with the switch's lanes, at the edge of what lanes hold."""
    rng, workers, chunks = np.random.default_rng(op), 5, 3
    payloads = [rng.integers(0, 256, (chunks, up_bytes(op)), dtype=np.uint8) for _ in range(workers)]
    table = [int(each) for each in np.linspace(0, 51, 16)] if op != Op.LOOKUP_ADD16 else list(range(0, 13105, 819))[:16]
    limit = {Op.ADD8: (">u1", 51), Op.ADD16: (">u2", 13107), Op.MAX32: (">u4", 0x7FFFFFFF)}.get(op)
    if limit is not None:
        dtype, most = limit
        payloads = [(each.view(dtype) % (most + 1)).astype(dtype).view(np.uint8) for each in payloads]
        payloads[0].view(dtype)[0, :4] = most
    expected, _ = simulate_switch(op, payloads, table)
    lanes = [lane_values(op, each, table) for each in payloads]
    before = [each.tobytes() for each in payloads]
    words = [torch.from_numpy(pack_words(op, each, has_or)) for each in lanes]
    combine = {dist.ReduceOp.BOR: torch.bitwise_or, dist.ReduceOp.MAX: torch.maximum, dist.ReduceOp.SUM: torch.add}
    total = reduce(combine[_operation(op, has_or)], words)
    results = unpack_words(op, total.numpy(), lanes[0], has_or)
    assert results.shape == (chunks, down_bytes(op))
    assert results.tobytes() == expected.tobytes()
    assert [each.tobytes() for each in payloads] == before
    assert words[0].dtype == (torch.uint8 if op == Op.OR else torch.int32)


def test_torch_has_to_be_initialised() -> None:
    config = Config(url="collective://gloo")
    with pytest.raises(ConfigError, match=r'call torch.distributed.init_process_group\("gloo"\) first'):
        open_collective(config, split_url(config), Hooks())
