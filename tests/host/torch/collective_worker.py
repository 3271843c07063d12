# SPDX-License-Identifier: Apache-2.0
"""One rank of the collective tests, as a process: `collective_worker.py SCENARIO RANK WORKERS STORE`; prints JSON."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

import hopsum
from hopsum.agent import Communicator, MismatchError
from hopsum.codec import ErrorFeedback
from hopsum.config import ConfigError
from hopsum.errors import GenerationEndedError, HopsumError

SEED = 77
SIZES = (1, 3000, 2048, 5000)
CODECS: dict[str, tuple[str, dict[str, Any]]] = {
    "thc": ("thc", {}),
    "thc16": ("thc", {"lane_bits": 16, "rounding": "stochastic"}),
    "thc2": ("thc", {"bits": 2}),
    "thc3": ("thc", {"bits": 3}),
    "thc8": ("thc", {"result_bits": 8}),
    "uhc4": ("uhc", {"bits": 4}),
    "uhc6": ("uhc", {"bits": 6}),
    "uhc8": ("uhc", {"bits": 8}),
    "fixed": ("fixed", {}),
    "lossless": ("lossless", {}),
    "two-shot": ("two-shot", {}),
    "two-shot8": ("two-shot", {"bits": 8}),
}


def vectors(rank: int, codec: str) -> list[NDArray[np.float32]]:
    """Return what a rank sums; sparse for lossless."""
    rng = np.random.default_rng((rank, 5))
    drawn = [rng.standard_t(3, elements).astype(np.float32) for elements in SIZES]
    if codec == "lossless":
        drawn = [x * (rng.random(x.size) < 0.05).astype(np.float32) for x in drawn]
    return drawn


def digest(arrays: list[NDArray[Any]]) -> str:
    return hashlib.sha256(b"".join(each.tobytes() for each in arrays)).hexdigest()


def connect(**settings: Any) -> Communicator:
    settings = {"backend": "numpy", "codec": "fixed", "deadline_s": 60.0, "seed": SEED, **settings}
    return hopsum.connect("collective://gloo", **settings)


def sums(rank: int) -> dict[str, Any]:
    """Sum with every codec, several vectors in flight, while the script's own collectives continue."""
    found = {}
    for name, (codec, options) in CODECS.items():
        with connect(codec=codec, codec_options=options) as job:
            feedback = [ErrorFeedback(elements) for elements in SIZES]
            futures = [job.submit(x, feedback=kept) for x, kept in zip(vectors(rank, codec), feedback, strict=True)]
            total = torch.ones(3)
            dist.all_reduce(total)
            assert total.tolist() == [job.workers] * 3
            results = [future.result(60) for future in futures]
            assert all(set(each.contributors.tolist()) == {(1 << job.workers) - 1} for each in results)
            assert job.statistics.traffic.bytes_sent >= job.statistics.elements / 2
            found[name] = [digest([each.mean for each in results]), digest([each.residual for each in feedback])]
    return found


def agreed(rank: int) -> dict[str, Any]:
    """What all ranks learn alike: unequal lengths; then the next sum, and other settings."""
    with connect() as job:
        try:
            job.allreduce(np.ones(3 + rank, np.float32))
        except MismatchError as error:
            lengths = str(error)
        mean = job.allreduce(np.full(2, rank, np.float32)).mean.tolist()
    try:
        connect(codec_options={}, codec="thc" if rank else "uhc")
    except HopsumError as error:
        settings = str(error)
    try:
        connect(rank=rank + 1)
    except ConfigError as error:
        place = str(error)
    return {"lengths": lengths, "mean": mean, "settings": settings, "place": place}


def group(rank: int) -> dict[str, Any]:
    """Sum in a process group of the last two ranks; RANK is not the rank in it."""
    pair = dist.new_group([1, 2])
    if rank == 0:
        return {}
    with connect(group=pair) as job:
        mean = hopsum.allreduce(np.float32([rank]), job).tolist()
        assert (job.rank, job.workers) == (rank - 1, 2)
    after = torch.ones(1)
    dist.all_reduce(after, group=pair)
    return {"mean": mean, "after": after.item()}


def fail(rank: int) -> dict[str, Any]:
    """Rank 1 cannot encode; rank 0 must notice long before its deadline, and keep its vector."""
    with connect(deadline_s=600.0) as job:
        if rank == 1:
            job.codec.start = None  # type: ignore[method-assign,assignment]  # not callable
        feedback, start = ErrorFeedback(2), time.monotonic()
        error = job.submit(np.ones(2, np.float32), feedback=feedback).exception(300)
        seconds = time.monotonic() - start
        try:
            job.submit(np.ones(2, np.float32))
        except GenerationEndedError as over:
            after = str(over)
    name = "hopsum collective"
    left = [each.name for each in threading.enumerate() if each.name.startswith(name)]
    residual = feedback.residual.tolist()
    return {
        "error": type(error).__name__,
        "text": str(error),
        "soon": seconds < 300,
        "after": after,
        "residual": residual,
        "left": left,
    }


def late(rank: int) -> dict[str, Any]:
    """Rank 1 never comes; rank 0 has an error at its deadline."""
    with connect(deadline_s=1.0) as job:
        if rank == 1:
            return {}
        error = job.submit(np.ones(2, np.float32)).exception(60)
        return {"error": type(error).__name__, "text": str(error)}


def main() -> None:
    scenario, rank, workers, store = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(workers))
    scenarios = {"sums": sums, "agreed": agreed, "group": group, "fail": fail, "late": late}
    print(json.dumps(scenarios[scenario](int(rank))))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
