# SPDX-License-Identifier: Apache-2.0
"""The process-group backend "hopsum": all_reduce of large float tensors by an agent, everything else by Gloo.

    dist.init_process_group("hopsum", pg_options=ProcessGroupHopsum.Options(comm))

It serves code that calls `all_reduce` itself, and DDP without a hook. The hook is the better way where there is one:
a tensor of a process group has no name, so there is no error feedback, and what a sum does not deliver is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from hopsum.codec.interface import OnNonfinite, require_on_nonfinite
from hopsum.communicator import Communicator

BACKEND: Final = "hopsum"
_MIN_ELEMENTS: Final = 1024
_LOSSY: Final = (torch.float32, torch.float16, torch.bfloat16)

_log: Final = logging.getLogger(__name__)


class _AgentWork(dist.Work):
    """An all-reduce of the agent. torch's own work around a future does not raise when that failed."""

    def __init__(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the result, as long as the agent's deadline lets it.

        Raises the error of a failed all-reduce.
        """
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """Whether the collective operation has ended, with a result or an error."""
        return self._future.done()

    def get_future(self) -> Any:
        """Return the future of a list of the one tensor."""
        return self._future


class ProcessGroupHopsum(dist.ProcessGroup):
    """A Gloo process group whose all_reduce of float32, float16 and bfloat16 by SUM and AVG goes through an agent.

    float64 stays exact. A sum is the mean of the workers that are in it, times all workers.
    """

    @dataclass(frozen=True, slots=True)
    class Options:
        """`pg_options` of `init_process_group` and `new_group`: the same on all ranks, but for the rank of `comm`.

        Args:
            comm: sums. It stays the caller's to close, after the process group. Of as many workers as the group has
                ranks.
            min_elements: tensors of fewer elements than this are summed exactly, by Gloo: counts, losses and flags.
            on_nonfinite: what becomes of a tensor with NaN or infinity on some rank: NaN on all ranks ("skip"), or an
                error on all ranks ("raise").
            timeout: of Gloo's operations. `init_device_mesh(..., backend_override=...)` reads it as `_timeout`.
        """

        comm: Communicator
        min_elements: int = _MIN_ELEMENTS
        on_nonfinite: OnNonfinite = "skip"
        timeout: timedelta = default_pg_timeout

        @property
        def _timeout(self) -> timedelta:
            """Return the time-out under the name of torch's own options."""
            return self.timeout

        def __post_init__(self) -> None:
            require_on_nonfinite(self.on_nonfinite)
            if self.min_elements < 0:
                raise ValueError(f"min_elements={self.min_elements}: 0 is the least")

    def __init__(self, gloo: Any, options: Options | None, *, is_told: bool = False) -> None:
        super().__init__(gloo.rank(), gloo.size())  # type: ignore[call-arg]
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._options = options
        self._told = is_told
        """The user has heard which way large sums go, or knows it anyway."""

    @property
    def gloo(self) -> Any:
        """Return torch's backend, whose calls give the GIL up.

        Not so those of `super()`: torch's class for process groups in Python holds the GIL while it calls the backend,
        which waits for the lock of its queue, whose holder may wait for the GIL to free a finished work.
        """
        return self._get_backend(torch.device("cpu"))

    def getBackendName(self) -> str:
        """Return the name that torch shows."""
        return BACKEND

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]  # all of torch's overloads
        """Begin to replace tensors, a list of one, by their sum or mean. torch calls it."""
        opts = dist.AllreduceOptions() if opts is None else opts
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        average = opts.reduceOp == dist.ReduceOp.AVG
        if len(tensors) == 1 and self._fits(tensors[0], opts.reduceOp):
            self._tell_once(tensors[0])
            if self._options is not None:
                return self._submit(self._options, tensors[0], average)
        if average:  # which Gloo has not
            for each in tensors:
                each.div_(self.size())
            opts.reduceOp = dist.ReduceOp.SUM
        return self.gloo.allreduce(tensors, opts)

    def _tell_once(self, tensor: torch.Tensor) -> None:
        """Say which way large sums of this group go, where a program may take it for the other one."""
        if self._told:
            return
        # Once a group, whichever way its first large sum goes.
        self._told = True
        if self._options is None:
            _log.warning(
                "an all-reduce of %d elements in a process group of backend 'hopsum' that was made without options "
                "goes through Gloo, not through hopsum, as do the groups that init_device_mesh and new_group make. For "
                "HSDP use hopsum.torch.register_all_reduce_hook, or backend_override={'replicate': ('hopsum', "
                "ProcessGroupHopsum.Options(comm))}",
                tensor.numel(),
            )
        elif self.size() == dist.get_world_size():
            _log.warning(
                "backend 'hopsum' for all ranks: every all-reduce of %d and more float elements is lossy, without "
                "error feedback, whatever it is for. For gradients use backend 'gloo' and "
                "hopsum.torch.register_comm_hook",
                self._options.min_elements,
            )

    def _fits(self, tensor: torch.Tensor, op: Any) -> bool:
        dense = tensor.layout is torch.strided and tensor.dtype in _LOSSY
        large = tensor.numel() >= max(1, _MIN_ELEMENTS if self._options is None else self._options.min_elements)
        adds = op == dist.ReduceOp.SUM or op == dist.ReduceOp.AVG
        return dense and large and adds

    def _submit(self, options: Options, tensor: torch.Tensor, average: bool) -> Any:
        x = tensor.detach().to(torch.float32).contiguous().flatten()
        # torch waits for this future in its own threads. The communicator's future is no torch future.
        arrived: torch.futures.Future[None] = torch.futures.Future()
        submitted = options.comm.submit(x.numpy(), on_nonfinite=options.on_nonfinite)

        def write(_: torch.futures.Future[None]) -> list[torch.Tensor]:
            """Write the result. What this raises, and nothing else, fails the work: `set_exception` would not."""
            mean = torch.from_numpy(submitted.result().mean)
            tensor.detach().copy_((mean if average else mean.mul_(self.size())).view(tensor.shape))
            return [tensor]

        written = arrived.then(write)
        submitted.add_done_callback(lambda _: arrived.set_result(None))
        return _AgentWork(written)


def _of_gloo(name: str) -> Callable[..., Any]:
    """Return the method of a group that is method `name` of its backend."""

    def operation(self: ProcessGroupHopsum, *arguments: Any, **options: Any) -> Any:
        return getattr(self.gloo, name)(*arguments, **options)

    operation.__doc__ = f"Call `{name}` of Gloo; called by torch."
    return operation


_SAME: Final = ("allgather", "allreduce_coalesced", "barrier", "broadcast", "reduce_scatter", "send", "recv")
_RENAMED: Final = {"all_to_all_single": "alltoall_base", "alltoall_base": "alltoall_base"}  # the first since torch 2.13
# What else passes torch's class, two coalesced forms of single tensors, the backend does not show to Python.
for _name, _gloos in (dict(zip(_SAME, _SAME, strict=True)) | _RENAMED).items():
    setattr(ProcessGroupHopsum, _name, _of_gloo(_gloos))


def _create(base: Any, options: ProcessGroupHopsum.Options | None) -> ProcessGroupHopsum:
    """Make a process group. torch calls it. Without options it is Gloo by another name, as for `new_group`."""
    rank, workers = base.group_rank, base.group_size
    if options is not None and not isinstance(options, ProcessGroupHopsum.Options):
        raise TypeError(
            f"pg_options of backend {BACKEND!r} is a ProcessGroupHopsum.Options of hopsum.torch, not "
            f"{type(options).__name__}"
        )
    if options is not None and (options.comm.rank, options.comm.workers) != (rank, workers):
        agent = options.comm
        raise ValueError(
            f"rank {rank} of {workers} in the process group, but the agent is rank {agent.rank} of {agent.workers}: "
            "make the agent with the rank of the process group, and the job for as many workers"
        )
    gloo = dist.ProcessGroupGloo(base.store, rank, workers, base.timeout)
    return ProcessGroupHopsum(gloo, options)


def register() -> None:
    """Make the backend known to torch. The import of `hopsum.torch` does so. Harmless when it is."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
