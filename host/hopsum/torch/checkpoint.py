# SPDX-License-Identifier: Apache-2.0
"""States from torch's Distributed Checkpoint, which by itself fills only tensors that a rank has already.

    dcp.save({"model": model.state_dict(), "hopsum": state}, checkpoint_id=folder)  # on all ranks
    load_checkpoint(state, folder)  # on any number of ranks

The model is loaded by DCP itself.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from hopsum.torch.diloco import DiLoCo
from hopsum.torch.fsdp import ReplicaState
from hopsum.torch.residuals import inherits_residuals
from hopsum.torch.state import HopsumState

State = HopsumState | ReplicaState | DiLoCo


def load_checkpoint(state: State, folder: str | os.PathLike[str], key: str = "hopsum") -> None:
    """Load a state from a distributed checkpoint that `torch.distributed.checkpoint.save` wrote on all ranks.

    torch unpickles the folder's metadata, which runs any code in it: only for folders that nobody else can write.

    With as many workers as before a rank reads its own residuals, else those of all, one rank's after the other.

    Args:
        key: of the state in the checkpoint.

    Raises:
        KeyError: the checkpoint has no such key.
        ValueError: from the state's `load_state_dict`.
    """
    state.load_state_dict(_states(state, folder, key))


def _states(state: State, folder: str | os.PathLike[str], key: str) -> Iterator[Any]:
    """Yield what ranks have in common, and then the states of the ranks whose residuals this one takes."""
    # Hundreds of modules, which only users of distributed checkpoints need.
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict  # of no public name
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(folder)
    metadata = reader.read_metadata()
    # DCP joins names by dots, which names of parameters have too: only a path says where a parameter's name begins.
    paths = {name: path for name, path in (metadata.planner_data or {}).items() if path[0] == key}
    if not paths:
        raise KeyError(f"{key!r} is not in the checkpoint {os.fspath(folder)}")

    def read(*place: str) -> Any:
        """Return the entries at a place of the state; at none, those that are of no rank."""
        values: dict[str, Any] = {}
        for name, (_, kind, *rest) in paths.items():
            if (kind, *rest)[: len(place)] == place and (place or kind not in ("norms", "residuals")):
                # DCP fills tensors in place, and replaces other values.
                stored = metadata.state_dict_metadata[name]
                values[name] = None
                if isinstance(stored, TensorStorageMetadata):
                    values[name] = torch.empty(stored.size, dtype=stored.properties.dtype, device="cpu")
        with warnings.catch_warnings():
            # Each rank reads other names, so the ranks do not read together, about which DCP warns.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            load(values, storage_reader=reader, no_dist=True)
        found: Any = unflatten_state_dict(values, paths).get(key, {})
        for each in place:
            found = found.get(each, {})
        return found

    common = read()
    yield {**common, "norms": {}, "residuals": {}}
    for owner, norm in read("norms").items():
        if inherits_residuals(state.owner, owner, same_workers=common["workers"] == state.workers):
            yield {**common, "norms": {owner: norm}, "residuals": {owner: read("residuals", owner)}}
