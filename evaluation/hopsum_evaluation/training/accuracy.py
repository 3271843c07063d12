# SPDX-License-Identifier: Apache-2.0
"""Trainings over shaped links: seconds to a test accuracy or perplexity, and of a step. They need root.

Workers train by DDP, each in a network namespace with a link of its own, both directions shaped. thc is summed by the
embedded switch, in the middle or one on every worker's host. Other schemes run over gloo on the same links. All train
from the same parameters on the same batches, and share this machine's cores. Measuring test data is not in the seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from hopsum.codec import make_codec
from hopsum.transport.worker_loop import compiled_kernel
from hopsum_evaluation.bench.dilation import ProcessorQuotas, dilated_rate, dilated_timing
from hopsum_evaluation.bench.placements import make_job, window_of
from hopsum_evaluation.experiment import Tell
from hopsum_evaluation.training.accuracy_plan import (
    UNSHAPED,
    AccuracyPlan,
    Course,
    TrainingOrder,
    TrainingRun,
    codec_of,
    ranks_codec_of,
)
from hopsum_evaluation.training.time_to_target import is_ours
from hopsum_topologies import Star
from hopsum_topologies.local_cluster import LocalCluster, links_unavailable
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool

WINDOW: Final = 512

Keep = Callable[[dict[str, Any]], None]
"""Called with the figures of each training when it ends."""


@dataclass(frozen=True, slots=True)
class Trainings:
    """The order for `train_all`: trainings that share links, switches and a pool of workers. Starts nothing.

    workers: 2 to 16.
    seeds: one per repeat, as many as any rate of the course needs.
    placement: place of the switches, one of `bench.placements.PLACEMENTS`.
    done: rate, scheme and repeat of trainings that an earlier call has done.
    device, threads, compute_s: as in AccuracyPlan.
    dilate: factor of time dilation, see `bench.dilation`.
    """

    workers: int
    course: Course
    seeds: Sequence[int]
    placement: str = "fabric"
    done: frozenset[tuple[str, str, int]] = frozenset()
    device: str = "cpu"
    threads: int = 1
    compute_s: float = 0.0
    dilate: float = 1.0

    @property
    def switch_schemes(self) -> tuple[str, ...]:
        """The schemes that switches sum."""
        return tuple(dict.fromkeys(filter(is_ours, self.course.schemes)))

    @property
    def count(self) -> int:
        """Number of trainings."""
        return sum(self.course.rates.values()) * len(self.course.schemes)


def trainings_unavailable() -> str | None:
    """Return the reason why trainings cannot run on this machine, None if they can."""
    if find_spec("torch") is None or find_spec("sklearn") is None:
        return "needs torch and scikit-learn: pip install 'hopsum[demo]'"
    return links_unavailable()


def train_all(trainings: Trainings, tell: Tell, keep: Keep = lambda _: None) -> list[dict[str, Any]]:
    """Start links, switches and workers, and do the trainings not done yet, schemes in turn. Return their figures.

    `keep` gets the figures of each training when it ends, `tell` the progress. Raises ControlPlaneError, TopologyError,
    WorkerDiedError, OSError.
    """
    # Here, not above: only this process and the workers need torch.
    from hopsum_evaluation.training.accuracy_worker import work

    # Kernels are compiled here, once: workers find them in the cache.
    codecs = {name: make_codec(codec_of(name), workers=trainings.workers) for name in trainings.switch_schemes}
    compiled_kernel()
    with ExitStack() as stack:
        quotas = stack.enter_context(ProcessorQuotas(trainings.dilate))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hopsum-report-")))
        tell(0.0, f"starting the switch and {trainings.workers} workers")
        cluster = stack.enter_context(LocalCluster(trainings.workers, placement=trainings.placement))
        assert cluster.star is not None
        switches = cluster.switches
        services = tuple(switch.service for switch in switches)
        timed = trainings.course.seconds > 0
        plan = AccuracyPlan(
            trainings.workers, trainings.course.model, trainings.switch_schemes * (1 + timed), folder,
            tuple(dict.fromkeys(filter(ranks_codec_of, trainings.course.schemes))), services,
            dilated_timing(trainings.dilate), trainings.device, trainings.threads,
            trainings.dilate * trainings.compute_s,
        )  # fmt: skip
        pool = stack.enter_context(WorkerPool(cluster.seats, work, plan, gpus=trainings.device == "cuda"))
        # Workers open the sockets of one codec after the other, and wait for its job: the order is that of plan.codecs.
        # A job of its own for each codec: the lookup table is the job's, so codecs cannot share one.
        for number, name in enumerate(plan.codecs):
            path, window = folder / f"report{number}.json", window_of(WINDOW, len(plan.codecs))
            stack.push(make_job(cluster, pool, codecs[name], window, path))
        pool.gather("ready")
        quotas.assign([*([process.pid] for process in pool.processes), *([switch.pid] for switch in switches)])
        runs = _train_by_turns(trainings, cluster.star, pool, tell, keep)
        pool.send(None)
        # Workers end before their switch does: a worker without a switch would send again until its deadline.
        pool.gather("finished")
    return runs


def _train_by_turns(trainings: Trainings, star: Star, pool: WorkerPool, tell: Tell, keep: Keep) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    course = trainings.course
    for rate, repeats in course.rates.items():
        # Shaping again empties the queues and begins the counts at zero.
        star.shape(None if rate == UNSHAPED else dilated_rate(rate, trainings.dilate))
        slow = star.rate_bits_per_s()
        bits_per_s = None if slow is None else trainings.dilate * slow
        for repeat, seed in enumerate(trainings.seeds[:repeats]):
            for scheme in rotate_schemes(course.schemes, repeat):
                if (rate, scheme, repeat) in trainings.done:
                    continue
                tell(len(runs) / trainings.count, f"{course.model}, {rate}, {scheme}, seed {repeat + 1}")
                seconds = trainings.dilate * course.seconds
                pool.send(tuple(TrainingOrder(scheme, seed, course.steps, course.batch, course.every, seconds)))
                runs.append({
                    "model": course.model, "rate": rate, "bits_per_s": bits_per_s, "scheme": scheme,
                    "placement": trainings.placement, "repeat": repeat,
                    **gather_runs(pool)[0].undilated(trainings.dilate)._asdict(),
                })  # fmt: skip
                keep(runs[-1])
    return runs


def rotate_schemes(schemes: Sequence[str], repeat: int) -> Sequence[str]:
    """Return the schemes rotated by the number of the repeat, since the first one finds cold caches."""
    first = repeat % len(schemes)
    return (*schemes[first:], *schemes[:first])


def gather_runs(pool: WorkerPool) -> list[TrainingRun]:
    """Wait until all workers have ended a training. Return their figures by rank.

    A worker reports steps meanwhile, so that the pool does not take a long training for one that hangs. Raises
    WorkerDiedError.
    """
    found: dict[int, TrainingRun] = {}
    while len(found) < len(pool.pipes):
        rank, message = pool.receive()
        if message[0] == "done":
            found[rank] = TrainingRun(*message[1:])
        elif message[0] != "step":
            raise WorkerDiedError(f"worker {rank} sent {message[0]!r} in a training")
    return [found[rank] for rank in range(len(pool.pipes))]
