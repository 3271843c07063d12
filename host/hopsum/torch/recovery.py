# SPDX-License-Identifier: Apache-2.0
"""A training loop that survives the loss of workers: newcomers get the others' state dict, the failed step is left.

The callbacks are those of torchft's `Manager.set_state_dict_fns`: one returns the program's state, the other takes it.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import torch

from hopsum.agent import Communicator
from hopsum.errors import WorkersReplacedError

_log: Final = logging.getLogger(__name__)


class StateDictRecovery:
    """A context for every training step, of a controller's job (hopsum://), harmless elsewhere.

        recovery = StateDictRecovery(comm, load_state_dict=load, state_dict=save)
        while step < steps:
            with recovery:
                ...  # all-reduces of this step, and then the optimiser
                step += 1

    Where workers are replaced in a step, its all-reduces raise WorkersReplacedError on all ranks alike. The context
    takes this error, calls `state_dict` for the newcomers, and the loop continues with them. Apply nothing of a step
    before its last all-reduce: the state has to be the same on all ranks.

    Args:
        comm: of this rank. It stays the caller's to close.
        load_state_dict: is called here, once, where this worker has the rank of one that is gone, with the result of
            another rank's `state_dict`, its tensors on the CPU.
        state_dict: returns the state that a newcomer needs (model, optimiser, step), made of tensors, numbers, texts,
            lists and dicts.
        wait_s: seconds for which a newcomer waits until the others' state begins to arrive, and for which no more of it
            may come. The whole state may take longer.

    Raises:
        HopsumError: nothing came for `wait_s`, or the state is too long, see `Communicator.fetch_state`.
    """

    def __init__(
        self,
        comm: Communicator,
        *,
        load_state_dict: Callable[[dict[str, Any]], None],
        state_dict: Callable[[], dict[str, Any]],
        wait_s: float = 60.0,
    ) -> None:
        self._comm, self._state_dict = comm, state_dict
        self.replaced_ranks: tuple[int, ...] = ()
        """The ranks that were replaced in the last step, empty if it went through."""
        if comm.is_newcomer:
            # The bytes are another member's word: nothing but data is made of them.
            load_state_dict(torch.load(io.BytesIO(comm.fetch_state(wait_s)), map_location="cpu", weights_only=True))

    def __enter__(self) -> StateDictRecovery:
        self.replaced_ranks = ()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # Any other error is the program's: only this one is the same on all ranks, with the step undone.
        if not isinstance(error, WorkersReplacedError):
            return False
        self.replaced_ranks = error.ranks
        _log.warning("%s; the loop continues with the newcomers", error)
        self._comm.resume(self._packed)
        return True

    def _packed(self) -> bytes:
        """Return the state as `torch.load` reads it."""
        stream = io.BytesIO()
        torch.save(self._state_dict(), stream)
        return stream.getvalue()
