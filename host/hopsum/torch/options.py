# SPDX-License-Identifier: Apache-2.0
"""The options of DDP's hook as keyword arguments, for editors and type checkers. Tests compare them with the settings.

`hopsum.config.HookSettings` has their defaults and their variables in the environment, `HopsumState` their meanings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict

import torch.distributed as dist

from hopsum.codec.interface import OnNonfinite
from hopsum.config import CodecOn, HookSettings, Method, OnSwitchLost, hook_environment
from hopsum_base.shown import name_hint


class Scaler(Protocol):
    """The part of torch.amp.GradScaler that is used here."""

    def get_scale(self) -> float:
        """Return the factor of losses at present."""


class HookOptions(TypedDict, total=False):
    """The options of `HopsumState` and `register_comm_hook`."""

    error_feedback: bool
    on_nonfinite: OnNonfinite
    small_tensor_bytes: int
    uncompressed: Sequence[str]
    start_iter: int
    method: Method
    on_switch_lost: OnSwitchLost
    log_every: int
    codec_on: CodecOn
    low_rank: int | None
    low_rank_start: int
    process_group: dist.ProcessGroup | None
    scaler: Scaler | None


OF_OBJECTS = ("process_group", "scaler")
"""Options that are no `HookSettings`: no text can name them."""


def settings_from(options: Mapping[str, Any]) -> HookSettings:
    """Return the settings of a hook: its options, else those of the environment, else the defaults.

    An option that is None counts as not given. `process_group` and `scaler` are accepted and left out.

    Raises:
        TypeError: an unknown option, with the nearest one.
        ConfigError: a variable in the environment that does not fit.
    """
    for name in options:
        if name not in HookOptions.__annotations__:
            raise TypeError(f"there is no option {name!r}; {name_hint(name, HookOptions.__annotations__)}")
    given = {name: value for name, value in options.items() if value is not None and name not in OF_OBJECTS}
    return HookSettings(**(hook_environment() | given))
