# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with replicas: torch shards and reduces inside a replica, hopsum averages the shards over the replicas.

    mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))
    fully_shard(layer, mesh=mesh); fully_shard(model, mesh=mesh)  # HSDP
    state = register_all_reduce_hook(model, comm)

`comm` is of a job of as many workers as replicas, one job for each shard index; the worker's rank is the rank in the
dimension `replicate`. A mesh of the shards alone, mesh["shard"], will do too. Where `replicate(model)` takes the place
of `fully_shard`, every rank has the whole model, and there is one job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import nn

from hopsum.agent import Communicator
from hopsum.codec.interface import OnNonfinite, require_on_nonfinite
from hopsum.config import CodecOn
from hopsum.connection import settings_of
from hopsum.torch.buckets import Sender
from hopsum.torch.device_codec import DeviceCodecs
from hopsum.torch.low_rank import DENSE_STEPS, matrices_of, require_low_rank
from hopsum.torch.low_rank_factors import Factors, require_device_bytes
from hopsum.torch.options import settings_from
from hopsum.torch.residuals import RankStateDict, Residuals, bare_names, norm_of, redistribute
from hopsum.torch.tensor_parallel import require_no_copies

if TYPE_CHECKING:  # both bring in hundreds of modules, which only users of FSDP need
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

# hosts:// by itself makes one job of all ranks, which would add up different shards.
_HOW: Final = (
    "as hopsum.connect('hosts://', group=mesh.get_group('replicate')), or connect to each with the replica's number"
)
_VERSION: Final = 2


class ReplicaStateDict(RankStateDict):
    """The saved form of a ReplicaState. Loads with `torch.load(..., weights_only=True)`."""

    version: int
    shards: int
    """The ranks of one replica. A rank's residuals have as many elements as its shard, padded."""
    allreduces: int
    averages: int
    factors: dict[str, dict[str, torch.Tensor]]
    """The last Q of each matrix of low rank, float32[rank, columns] on the CPU, by the number of the shard."""


class ReplicaState:
    """Averages this rank's shards over the replicas in backward passes, and keeps what a checkpoint needs for that.

    That is the error feedback of each shard, and with low rank the bases of factors and the counts of steps. Made by
    `register_all_reduce_hook`. A backward pass raises ValueError if a parameter of a module had no gradient.
    """

    def __init__(
        self,
        comm: Communicator,
        shapes: dict[str, dict[str, torch.Size]],
        device: torch.device,
        *,
        shard: int,
        shards: int,
        on_nonfinite: OnNonfinite,
        codec_on: CodecOn = "auto",
        low_rank: int | None = None,
        low_rank_start: int = DENSE_STEPS,
    ) -> None:
        """Begin without residuals.

        Args:
            shapes: of the shards as FSDP reduces them, by FSDP module and parameter.
            device: of the gradients.
        """
        self.comm, self.shard, self.shards = comm, shard, shards
        self.owner, self.workers = f"{comm.rank}/{shard}", comm.workers
        """This rank's name in states, and the number of replicas."""
        self.low_rank, self.low_rank_start = low_rank, low_rank_start
        self.allreduces = 0
        """Numbers of vectors that were handed to the communicator, the same on all ranks."""
        self.averages = 0
        """Modules that were averaged, the same on all ranks: each of them once in a step."""
        self._residuals = Residuals()
        # In place of the parameters, whose own memory comes and goes. A meta tensor has a shape alone.
        self._shards = {
            where: {name: torch.empty(shape, device="meta") for name, shape in found.items()}
            for where, found in shapes.items()
        }
        names = {each: name for found in self._shards.values() for name, each in found.items()}
        self._sizes = {name: each.numel() for each, name in names.items()}
        codecs = DeviceCodecs(comm, codec_on)
        self._factors = Factors()
        matrices = None
        # Here and not in a backward pass: kernels are compiled and checked.
        on_device = codecs.codec_for(device) is not None
        if low_rank is not None:
            matrices = matrices_of(names, frozenset(), low_rank, comm.codec, self._factors)
            if on_device:
                require_device_bytes(self._factors.kernels, device)
        self._sender = Sender(
            communicator=comm,
            names=names,
            uncompressed=frozenset(),
            group=None,
            drops_unused=False,
            residuals=self._residuals,
            error_feedback=True,
            on_nonfinite=on_nonfinite,
            device_codecs=codecs,
            matrices=matrices,
        )

    def register_hook(self, module: FSDPModule, where: str) -> None:
        """Register the hook by which backward passes average the gradients of one FSDP module.

        Args:
            where: the module's name in `shapes`.
        """
        module.set_all_reduce_hook(lambda gradients: self._average(gradients, where))

    def _average(self, gradients: torch.Tensor, where: str) -> None:
        """Replace a module's reduced gradients by their mean over the replicas; called by torch in `backward`."""
        if gradients.is_complex():
            gradients = torch.view_as_real(gradients).view(-1)
        shards = list(self._shards[where].values())
        # FSDP2 packs the gradients of parameters that have one: a missing one would shift all behind it.
        expected = sum(each.numel() for each in shards)
        if gradients.numel() != expected:
            raise ValueError(
                f"module {where or '(root)'!r} has gradients of {gradients.numel()} elements here, its parameters have "
                f"{expected}: some parameter had no gradient in this step, which hopsum cannot tell from the others. "
                "Use all parameters in every step, or shard the module with the unused ones by itself"
            )
        step, portions = self._sender.send_alone(
            gradients.detach(),
            shards,
            number=self.allreduces,
            factor=self.factors_matrices,
            told=[(f"shard {self.shard} of {self.shards}", 0)],
        )
        self.allreduces += sum(each.allreduces for each in portions)
        self.averages += 1
        if step.over.result():
            gradients.fill_(torch.nan)
            return
        for each in portions:
            each.scatter()

    @property
    def factors_matrices(self) -> bool:
        """Return whether matrices of low rank travel as factors in the step in progress, or in the next one."""
        return self.low_rank is not None and self.averages >= self.low_rank_start * len(self._shards)

    def state_dict(self) -> ReplicaStateDict:
        """Return a copy of this rank's residuals, factors and counts for a checkpoint."""
        residuals, factors = self._residuals.as_dict(), self._factors.as_dict()
        return ReplicaStateDict(
            version=_VERSION,
            workers=self.workers,
            shards=self.shards,
            allreduces=self.allreduces,
            averages=self.averages,
            factors={str(self.shard): factors} if factors else {},
            norms={self.owner: norm_of(residuals)},
            residuals={self.owner: residuals},
        )

    def load_state_dict(self, saved: ReplicaStateDict | Iterable[ReplicaStateDict]) -> None:
        """Take over the states of all ranks (`state_dict`), whatever the number of replicas: see `redistribute`.

        Where that number is as it was, this rank's own state is enough.

        Raises:
            ValueError: a state of another version, number of shards or model, or two of one rank. Nothing was changed.
        """
        # Not for another number of shards: they have other rows of a parameter.
        facts = {"version": _VERSION, "shards": self.shards}
        factors: dict[str, torch.Tensor] = {}

        def noted() -> Iterator[Mapping[str, Any]]:
            for state in [saved] if isinstance(saved, Mapping) else saved:
                factors.update(state.get("factors", {}).get(str(self.shard), {}))
                yield state

        state, residuals = redistribute(noted(), self.owner, self.workers, self._sizes, **facts)
        self._residuals.load(residuals)
        self._factors.load(factors, self._sizes)
        # States of before had no counts.
        self.allreduces, self.averages = state.get("allreduces", 0), state.get("averages", 0)


def register_all_reduce_hook(
    model: nn.Module,
    comm: Communicator,
    *,
    on_nonfinite: OnNonfinite | None = None,
    codec_on: CodecOn | None = None,
    low_rank: int | None = None,
    low_rank_start: int | None = None,
) -> ReplicaState:
    """Average the gradients of an FSDP2 model over its replicas, and return the state for the checkpoint.

    All FSDP modules are averaged one after the other, in the order of the backward pass; an error in one of them leaves
    the others of that step averaged, so continue from a checkpoint. The undelivered part of a sum is added to the next.
    torch's own average over the replicas is turned off. An option that is None is that of the environment, as for
    `HopsumState`, else the default.

    Args:
        model: after all calls of `fully_shard`, over ("replicate", "shard") or the shards alone, or of `replicate`.
        comm: of as many workers as replicas, with this replica's number as rank; a job for each shard index.
        on_nonfinite: "raise"; or "skip": the gradients of a module are NaN on all ranks.
        codec_on: as for `HopsumState`.
        low_rank: as for `HopsumState`. A rank's shard of a parameter is the matrix: its rows, padded, of dimension 0.
        low_rank_start: with `low_rank`, how many steps at the start are whole.

    Raises:
        CodecError: an unknown `on_nonfinite`; or codec_on="device" and the codec has no form for the device.
        ConfigError: a variable in the environment that does not fit.
        TypeError: the model has no FSDP module.
        ValueError: `low_rank` is no rank, or pays for no shard, or the codec has no error feedback; the model is
            sharded over another mesh, or the communicator is not one of its replicas; tensor parallelism replicates
            some of its parameters.
    """
    from torch.distributed.fsdp import FSDPModule

    ranks = {"low_rank": low_rank, "low_rank_start": low_rank_start}
    chosen = settings_from({"on_nonfinite": on_nonfinite, "codec_on": codec_on, **ranks})
    on_nonfinite, codec_on = chosen.on_nonfinite, chosen.codec_on
    low_rank, low_rank_start = chosen.low_rank, chosen.low_rank_start
    require_on_nonfinite(on_nonfinite)
    require_low_rank(low_rank, low_rank_start, error_feedback=True)
    modules = {name: each for name, each in model.named_modules() if isinstance(each, FSDPModule)}
    if not modules:
        raise TypeError(f"{type(model).__name__} has no FSDP module: call fully_shard(model, mesh=mesh) first")
    owners = _owners(model, list(modules))
    if not owners:
        raise ValueError("the model's FSDP modules have no parameters")
    for name, _, parameter in owners:
        mesh = parameter.device_mesh
        if mesh.ndim > 1 and not (mesh.ndim == 2 and parameter.placements[0].is_replicate()):
            raise ValueError(
                f"{name} is sharded over a mesh of {mesh.ndim} dimensions, as {parameter.placements}: hopsum averages "
                "over replicas of shards, fully_shard(model, mesh=mesh['replicate', 'shard'])"
            )
    require_no_copies({name: each for name, _, each in owners}, "register_all_reduce_hook")
    infos = [info for module in modules.values() for info in _replicated(module)]
    _require_replica(infos, comm)
    first = owners[0][2]
    shards, mesh = _shards(first), first.device_mesh
    if shards > 1 and settings_of(comm).url.startswith("hosts:") and comm.workers == dist.get_world_size():
        raise ValueError(f"hosts:// made one job of all {comm.workers} ranks: make one for each shard index, {_HOW}")
    shard = mesh.get_local_rank(mesh.ndim - 1) if shards > 1 else 0
    shapes: dict[str, dict[str, torch.Size]] = {}
    for name, owner, each in owners:
        if each.requires_grad:
            shapes.setdefault(owner, {})[name] = _reduced_shape(each)
    state = ReplicaState(
        comm,
        shapes,
        first.to_local().device,
        shard=shard,
        shards=shards,
        on_nonfinite=on_nonfinite,
        codec_on=codec_on,
        low_rank=low_rank,
        low_rank_start=low_rank_start,
    )
    for where in shapes:
        state.register_hook(modules[where], where)
    # Last: what is refused before leaves torch its average.
    _take_over(infos)
    return state


def _owners(model: nn.Module, modules: list[str]) -> list[tuple[str, str, DTensor]]:
    """Return each sharded parameter's name, the innermost FSDP module around it, and the parameter."""
    from torch.distributed.tensor import DTensor

    names, found = {parameter: name for name, parameter in model.named_parameters()}, []
    bare = bare_names(names.values())
    for parameter in _in_fsdp_order(model):
        name = names[parameter]
        inside = [each for each in modules if not each or name.startswith(f"{each}.")]
        tensor: Any = parameter
        if inside and isinstance(tensor, DTensor):
            found.append((bare[name], max(inside, key=len), tensor))
    return found


def _in_fsdp_order(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters in the order in which FSDP reduces those of a module: its children's before its own.

    `named_parameters` has a module's own first.
    """
    modules, found = dict[nn.Module, None](), dict[nn.Parameter, None]()

    def visit(module: nn.Module) -> None:
        if module not in modules:
            modules[module] = None
            for child in module.children():
                visit(child)
            found.update(dict.fromkeys(module.parameters(recurse=False)))

    visit(model)
    return list(found)


def _replicated(module: FSDPModule) -> list[Any]:
    """Return torch's records of the meshes over whose replicas it averages the gradients of an FSDP module."""
    state: Any = module._get_fsdp_state()
    # A module of older torch has one group of parameters, or none.
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    infos = [each.mesh_info for each in groups if each is not None]
    return [each for each in infos if hasattr(each, "replicate_process_group")]


def _require_replica(infos: list[Any], comm: Communicator) -> None:
    """Raise ValueError where the communicator is not one of the replicas."""
    for info in infos:
        there, here = (info.replicate_mesh_rank, info.replicate_mesh_size), (comm.rank, comm.workers)
        if there != here:
            raise ValueError(
                f"replica {there[0]} of {there[1]} in the mesh, but the communicator is rank {here[0]} of {here[1]}: "
                f"make a job of as many workers as replicas for each shard index, {_HOW}"
            )


def _take_over(infos: list[Any]) -> None:
    """Leave the average over replicas to hopsum: torch's own becomes one of this rank alone."""
    if infos:
        # torch calls the hook after its own all-reduce, and has no public way to leave that out.
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        for info in infos:
            info.replicate_process_group = alone


def _shards(parameter: DTensor) -> int:
    """Return over how many ranks FSDP shards a parameter: the last dimension of its mesh, if that is no replica's."""
    mesh = parameter.device_mesh
    return 1 if parameter.placements[-1].is_replicate() else mesh.size(mesh.ndim - 1)


def _reduced_shape(parameter: DTensor) -> torch.Size:
    """Return the shape of a rank's shard as FSDP reduces it; of a complex one, the number of its real numbers."""
    shards, shape = _shards(parameter), list(parameter.shape)
    placement: Any = parameter.placements[-1]
    if shape:
        # FSDP2 pads dimension 0 to a multiple of the shards before it reduces. Any other one divides.
        dimension = 0 if placement.is_replicate() else placement.dim
        shape[dimension] = -(-shape[dimension] // shards)
    # Pairs of real numbers: no matrix.
    return torch.Size([2 * prod(shape)] if parameter.is_complex() else shape)
