# SPDX-License-Identifier: Apache-2.0
"""The parts that the files of the URL schemes share: hooks, codec, rank, and the agent at a switch."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from hopsum.agent import Agent, Communicator, Span
from hopsum.codec import Codec, make_codec
from hopsum.codec.backends import NotCompiledError, only_cached
from hopsum.codec.backends.kernels import KernelCodec
from hopsum.codec.registry import BUILT_IN, parse_codec, require_options
from hopsum.compile_ahead import compile_ahead, compiles_in_child
from hopsum.config import Config, ConfigError
from hopsum.notice import log_if_slow
from hopsum.protocol.worker import Timing
from hopsum.transport.link import DatagramLink
from hopsum_wire.membership import JobMembership, RankEndpoint


class Hooks(NamedTuple):
    """The arguments of `connect` that are objects, so that the environment cannot have them."""

    group: Any = None
    """The torch process group of hosts:// or collective://."""
    on_packet: Callable[[Any, bool], None] | None = None
    """As in `connect`."""
    trace: Callable[[Span], None] | None = None
    """As in `connect`."""
    meeting: Any = None
    """The `Meeting` of the ranks that open a communicator together: hosts:// and collective://."""


_settings: Final[WeakKeyDictionary[Communicator, Config]] = WeakKeyDictionary()


def record_settings(comm: Communicator, config: Config) -> None:
    """Keep the settings of a communicator, for `settings_of`."""
    _settings[comm] = config


def settings_of(comm: Communicator) -> Config:
    """Return the settings of a communicator that `connect` made; the defaults for any other."""
    return _settings.get(comm) or Config()


def has_settings(comm: Communicator) -> bool:
    """Return whether the settings of a communicator are kept already."""
    return comm in _settings


def codec_of(config: Config, workers: int) -> Codec:
    """Make the codec of the settings for a number of workers. Raises CodecError for options that do not fit the codec.

    With backend "auto", numpy's kernels may encode first, while a child process compiles others. Otherwise the call
    blocks until all kernels are compiled or loaded.
    """
    slow = (
        f"codec {config.codec}: its kernels are being loaded, or compiled where numba's cache lacks them, which takes "
        "longer on a busy machine"
    )
    # Before `make_codec`, whose own arguments would hide options of the same names.
    require_options(config.codec, config.codec_options)
    given: dict[str, Any] = {"name": config.codec, "workers": workers, "threads": config.threads}
    given |= config.codec_options
    if config.backend == "auto" and compiles_in_child() and parse_codec(config.codec).name in BUILT_IN:
        return make_codec_at_once(**given)
    with log_if_slow(slow):
        return make_codec(**given, backend=config.backend)


def make_codec_at_once(name: str, *, workers: int, threads: int = 1, **options: Any) -> Codec:
    """Make a codec of this package as `make_codec`, without waiting for machine code.

    If numba's cache lacks a kernel, the codec begins with numpy's kernels, and another process compiles them. The codec
    uses the compiled kernels once they are checked. Raises as `make_codec`.
    """
    make: Callable[..., Codec] = partial(make_codec, name, workers=workers, **options)
    try:
        with only_cached():
            return make(threads=threads)
    except NotCompiledError:
        pass
    codec = make(backend="numpy")

    def go_over() -> None:
        made = make(threads=threads)
        assert isinstance(codec, KernelCodec)
        assert isinstance(made, KernelCodec)
        codec.use_kernels(made.kernels)

    compile_ahead(
        "hopsum.codec.registry:make_codec",
        {"name": name, "workers": workers, **options},
        go_over,
        f"codec {codec.name}",
    )
    return codec


def codec_for_job(config: Config, workers: int) -> Codec:
    """Make the codec of a job, as `codec_of`. Raises ConfigError if the job is larger than torchrun's world."""
    _require_world(config, workers)
    return codec_of(config, workers)


def _require_world(config: Config, workers: int) -> None:
    """Refuse a job that has more workers than torchrun (RANK, WORLD_SIZE) has started ranks.

    A smaller job is allowed, because groups of ranks may have a job each. A world of one is allowed, because its ranks
    were started separately.
    """
    variables = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not all(text.isdecimal() for text in variables) or config.rank != int(variables[0]):
        return
    world = int(variables[1])
    if workers > world > 1:
        raise ConfigError(
            f"the job has {workers} workers, and this program was started as rank {variables[0]} of {world} "
            f"(WORLD_SIZE): start {workers} ranks, or make a job for {world} workers"
        )


def rank_of(config: Config, workers: int) -> int:
    """Return the rank of the settings, else 0 in a job of one worker. Raises ConfigError without one otherwise."""
    if config.rank is not None:
        return config.rank
    if workers == 1:
        return 0
    raise ConfigError(
        f"which of the {workers} workers is this? Pass rank=, or set HOPSUM_RANK; torchrun's RANK would do as well"
    )


def open_agent(
    config: Config,
    hooks: Hooks,
    membership: JobMembership,
    rank: int | None = None,
    *,
    codec: Codec | None = None,
    make: Callable[..., Agent] = Agent,
    make_link: Callable[[RankEndpoint], DatagramLink] | None = None,
    **given: Any,
) -> Agent:
    """Make the agent of one worker at a switch.

    Args:
        rank: in the job; by default the rank of the settings.
        codec: for the job's workers; by default made from the settings.
        make: class of the agent.
        make_link: makes the link to each shard; by default the agent makes UDP links.
        given: further arguments of `make`.

    Raises:
        ConfigError: no rank, or a job that is larger than torchrun's world. Further errors as `Agent`. Then the links
            of `make_link` are closed.
    """
    rank = rank_of(config, membership.size) if rank is None else rank
    # An unknown rank is refused before the codec is made, which may take seconds.
    seat = membership.worker(rank)
    codec = codec or codec_for_job(config, membership.size)
    names = ("retransmit_s", "retransmit_min_s", "deadline_s", "flush_after_s", "unreachable_s")
    timing = Timing(**{name: getattr(config, name) for name in names})
    given |= {"timing": timing, "seed": config.seed, "overlap": config.overlap, "trace": hooks.trace}
    if make_link is not None:
        given["link"] = [make_link(shard.worker(rank)) for shard in membership.shards]
    if "link" not in given:
        given["gso"] = config.gso
    try:
        return make(membership, seat.rank, codec=codec, **given)
    except BaseException:
        for link in given["link"] if make_link is not None else ():
            # No agent owns the links yet.
            link.close()
        raise
