# SPDX-License-Identifier: Apache-2.0
"""Parameters that tensor parallelism replicates in a model of which it shards others.

Each tensor-parallel rank takes part in a job of its own. The jobs round the gradient of a replicated parameter
differently, since it shares a vector with other shards in each, so compressed copies would drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def replicated_parameters(parameters: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """Return the names of parameters of which ranks have copies where they have shards of others.

    Without shards there are none: the jobs of all ranks have the same vectors, and so the same sums.

    Args:
        parameters: by name; DTensors, what DistributedDataParallel has made of these, and plain tensors.
    """
    sharded = {name: _sharded_over(each) for name, each in parameters.items()}
    everywhere = frozenset[Any]().union(*sharded.values())
    return frozenset(name for name, own in sharded.items() if own != everywhere)


def require_no_copies(parameters: Mapping[str, torch.Tensor], what: str) -> None:
    """Raise ValueError if tensor parallelism replicates some parameters, whose compressed copies would drift apart.

    `what` names the caller in the message.
    """
    if copies := replicated_parameters(parameters):
        raise ValueError(
            f"{what} with tensor parallelism: {join_names(copies)} would drift apart over the ranks that have a "
            "copy, since each rank's job rounds in its own way. DistributedDataParallel(model, device_mesh=mesh['dp']) "
            "with register_comm_hook leaves them uncompressed"
        )


def join_names(names: frozenset[str]) -> str:
    """Return names of parameters as text: the first four in order, and the number of the others."""
    first = ", ".join(sorted(names)[:4])
    return first if len(names) <= 4 else f"{first} and {len(names) - 4} more"


def _sharded_over(parameter: Any) -> frozenset[Any]:
    """Return the dimensions of meshes over which a parameter is sharded, none for a plain tensor."""
    # DistributedDataParallel takes the local tensor of a DTensor, and keeps its layout there (of no public name).
    spec = getattr(parameter, "_st_info", None) or getattr(parameter, "_spec", None)
    if spec is None:
        return frozenset()
    mesh = spec.mesh
    # A dimension of one rank has neither copies nor shards.
    return frozenset(
        (mesh, at) for at, each in enumerate(spec.placements) if not each.is_replicate() and mesh.size(at) > 1
    )
