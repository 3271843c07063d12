# SPDX-License-Identifier: Apache-2.0
"""The DDP communication hook, and the one line in a training script that registers it.

No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.
"""

from contextlib import suppress
from functools import partial
from typing import Unpack

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, by torch's own documentation

from hopsum.agent import Communicator
from hopsum.config import ConfigError, hook_environment, resolve
from hopsum.connection import Hooks, open_resolved
from hopsum.meeting import Arrival
from hopsum.meeting.rank_store import meet_ranks
from hopsum.torch.buckets import ddp_in
from hopsum.torch.options import HookOptions
from hopsum.torch.state import HopsumState


def hopsum_hook(state: HopsumState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket's gradients over the workers that are in the sum: `ddp.register_comm_hook(state, hook)`.

    The future's value is the bucket's buffer with the mean in it, in its own type. It is there as soon as this bucket's
    own sum is done; with `on_nonfinite="skip"`, `on_switch_lost="fall_back"` or unused parameters, when all buckets of
    the backward pass are. Whatever fails reaches the future at the end of the pass: `backward` raises RuntimeError with
    the text, `state.failure` has the exception.
    """
    buffer = bucket.buffer()
    # On a GPU torch makes the streams of the next operations wait for this future: it must know the device.
    arrived: torch.futures.Future[None] = torch.futures.Future(devices=[] if buffer.is_cpu else [buffer.device])
    step, portions = state.submit(bucket, partial(arrived.set_result, None))
    # What `write` raises fails the future for DDP as well. torch has no other way.
    return arrived.then(lambda _: state.write(buffer, step, portions))


def register_comm_hook(ddp: nn.Module, comm: Communicator | None = None, **options: Unpack[HookOptions]) -> HopsumState:
    """Let a communicator average the gradients of a DistributedDataParallel, and return the state for the checkpoint.

    Args:
        ddp: from here on its backward passes use the communicator. A module takes only one hook. It may be in wrappers,
            those of torch.compile and of Lightning's Fabric.
        comm: of this rank. It stays the caller's to close. Without one, `hopsum.connect` makes one from the settings in
            the environment, by `hosts://` where these have no URL, for the ranks of the DistributedDataParallel's
            process group. It is closed when the program ends.
        options: of `HopsumState`. Without a communicator `method` is "auto" over hosts://, unless it is set.

    Raises:
        ConfigError: no communicator can be made of the settings, on all ranks alike.
        TypeError: not a DistributedDataParallel. The message says how to make one. Or an option that HopsumState lacks.
        ValueError: from HopsumState, or communicator and process group disagree about ranks.
        MeetingError: another rank has other options, or fails. All ranks have the same text, with the values that
            differ.
        RuntimeError: it has a communication hook already.
    """
    module = ddp_in(ddp)
    if module is None:
        joined = dist.is_available() and dist.is_initialized()
        first = "" if joined else "torch.distributed.init_process_group('gloo') under torchrun, then "
        raise TypeError(
            f"register_comm_hook takes what DistributedDataParallel returns, not {type(ddp).__name__}: {first}"
            "ddp = DistributedDataParallel(model); register_comm_hook(ddp, comm)"
        )
    # torch refuses a second hook too: after a communicator, and maybe a switch on every host, was started for it.
    if getattr(module, "_comm_hooks", ()):
        raise RuntimeError("register_comm_hook: this DistributedDataParallel has a communication hook already")
    over_hosts = False
    if comm is None:
        comm, over_hosts = _connect(module.process_group)
    meeting = meet_ranks("register_comm_hook", None, module.process_group)
    assert meeting is not None, "a DistributedDataParallel has a process group"
    try:
        # A user who names no method has not said that hopsum is the fastest here.
        if over_hosts and options.get("method") is None and "method" not in hook_environment():
            options["method"] = "auto"
        state = HopsumState(comm, module, **options)
        shared = state.shared_options
    except Exception as error:
        meeting.fail(error)
        raise
    with meeting.opening(Arrival(shared)):
        module.register_comm_hook(state, hopsum_hook)
    return state


def _connect(group: dist.ProcessGroup) -> tuple[Communicator, bool]:
    """Return a communicator of a group's ranks as the environment says, and whether that is hosts://, the default."""
    url, some = "hosts://", len(dist.get_process_group_ranks(group)) < dist.get_world_size()
    with suppress(ConfigError):  # raised below, where the other ranks hear of it
        url = resolve(url=url).url
    if some and url.startswith("collective:"):
        raise ConfigError(
            f"URL {url!r}: the DistributedDataParallel has {dist.get_world_size(group)} of {dist.get_world_size()} "
            "ranks, and needs its process group for itself: make another group of the same ranks by "
            "torch.distributed.new_group on all ranks, and register_comm_hook(ddp, hopsum.connect(url, group=group))"
        )
    # In jobs of other URLs, rank and number of workers are those of the job.
    over_hosts = url.startswith("hosts:")
    comm = open_resolved(lambda: resolve(url="hosts://"), Hooks(group if some and over_hosts else None))
    return comm, over_hosts
