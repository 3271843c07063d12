# SPDX-License-Identifier: Apache-2.0
"""Fragments of a model: parameters that DiLoCo synchronises together, beside their global values.

The local parameters are those that the model computes with. They differ between the replicas. The global parameters
are float32 on the CPU, and are the same on all replicas.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hopsum.torch.tensors import within_range


class Fragment:
    """Parameters by name, and their global values, which begin as the local ones are.

    Args:
        parameters: float tensors of the model, or the DTensors of FSDP2, of which this rank's shard is taken.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.names = tuple(parameters)
        self._local = list(parameters.values())
        self.global_parameters = [
            nn.Parameter(_data(each).to("cpu", torch.float32, copy=True)) for each in parameters.values()
        ]
        """float32 on the CPU, in the order of the names, for the outer optimiser."""
        self.sizes = tuple(each.numel() for each in self.global_parameters)
        self.synced_at = 0
        """The inner step at which the fragment was last sent."""

    @property
    def elements(self) -> int:
        """Return the number of elements of all parameters."""
        return sum(self.sizes)

    def pseudo_gradient(self) -> NDArray[np.float32]:
        """Return the global less the local parameters, float32[elements], a new array.

        The local values are compared with what `merge` writes: the global ones, rounded to the type of the parameter.
        """
        vector = torch.empty(self.elements)
        places = torch.split(vector, list(self.sizes))
        for place, local, shared in zip(places, self._local, self.global_parameters, strict=True):
            start = _rounded(shared.detach(), local.dtype).float()
            torch.sub(start, _data(local).to("cpu", torch.float32), out=place.view(shared.shape))
        return vector.numpy()

    def set_gradients(self, mean: NDArray[np.float32]) -> None:
        """Make a vector, float32[elements], the gradients of the global parameters. They keep its memory."""
        gradients = torch.split(torch.from_numpy(mean), list(self.sizes))
        for each, gradient in zip(self.global_parameters, gradients, strict=True):
            each.grad = gradient.view(each.shape)

    def clear_gradients(self) -> None:
        """Take the gradients of the global parameters away, so that the outer optimiser passes them over."""
        for each in self.global_parameters:
            each.grad = None

    def merge(self, alpha: float = 0.0) -> None:
        """Make the local parameters alpha times what they are and 1 - alpha times the global ones."""
        with torch.no_grad():
            for local, shared in zip(self._local, self.global_parameters, strict=True):
                data = _data(local)
                if alpha:
                    mixed = torch.lerp(shared, data.to("cpu", torch.float32), alpha)
                    data.copy_(_rounded(mixed, local.dtype))
                else:
                    data.copy_(_rounded(shared, local.dtype))

    def read_local(self) -> list[torch.Tensor]:
        """Return copies of the local parameters, where they are."""
        return [_data(each).clone() for each in self._local]

    def write_local(self, values: Sequence[torch.Tensor]) -> None:
        """Set the local parameters to what `read_local` returned."""
        with torch.no_grad():
            for local, value in zip(self._local, values, strict=True):
                _data(local).copy_(value)

    def digest(self, words: str) -> str:
        """Return the first digits of a SHA-256 of words, names and global parameters, equal on equal replicas."""
        found = hashlib.sha256(f"{words}, {self.names}".encode())
        for each in self.global_parameters:
            found.update(each.detach().numpy().data)
        return found.hexdigest()[:16]


def make_fragments(model: nn.Module, fragments: int | Sequence[nn.Module]) -> list[Fragment]:
    """Return the parameters that require gradients, cut into fragments.

    Args:
        fragments: a number: so many runs of parameters in the order of the model, of about as many elements. Or
            modules of the model, a fragment each, which have all of these parameters, and none of them twice.

    Raises:
        ValueError: no such parameter, fewer of them than fragments, or modules that lack some or share some.
    """
    named = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not named:
        raise ValueError(f"{type(model).__name__} has no parameter that requires gradients")
    groups = _runs(named, fragments) if isinstance(fragments, int) else _of_modules(named, fragments)
    return [Fragment({name: named[name] for name in group}) for group in groups]


def _runs(named: Mapping[str, nn.Parameter], count: int) -> list[list[str]]:
    """Return runs of names with about as many elements each, and one name at least."""
    if not 1 <= count <= len(named):
        raise ValueError(f"fragments={count}: 1 to {len(named)}, the parameters of the model that require gradients")
    total = sum(each.numel() for each in named.values())
    groups: list[list[str]] = [[]]
    before = 0
    for number, (name, each) in enumerate(named.items()):
        middle = before + each.numel() / 2
        left, missing = len(named) - number, count - len(groups)
        if groups[-1] and (left == missing or (missing and middle * count >= total * len(groups))):
            groups.append([])
        groups[-1].append(name)
        before += each.numel()
    return groups


def _of_modules(named: Mapping[str, nn.Parameter], modules: Sequence[nn.Module]) -> list[list[str]]:
    names = {parameter: name for name, parameter in named.items()}
    groups = [[names[each] for each in module.parameters() if each in names] for module in modules]
    found = [name for group in groups for name in group]
    if empty := [number for number, group in enumerate(groups) if not group]:
        raise ValueError(f"fragment {empty[0]} has no parameter of the model that requires gradients")
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise ValueError(f"{', '.join(twice[:4])}: in more than one fragment; each parameter is in one")
    if missing := [name for name in named if name not in set(found)]:
        raise ValueError(f"{', '.join(missing[:4])}: in no fragment; each parameter that requires gradients is in one")
    return groups


def _data(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's own memory, of a DTensor this rank's shard."""
    tensor: Any = parameter.detach()
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float32 values in the type of a parameter."""
    return within_range(values, dtype).to(dtype)
