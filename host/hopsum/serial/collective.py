# SPDX-License-Identifier: Apache-2.0
"""`collective://gloo` and `collective://nccl`: torch.distributed adds in place of a switch.

The route without a switch. A phase of codes takes two shots, in which the ranks share the switch's work:

    LOOKUP_ADD*   every rank owns 1/n of the chunks: all-to-all of the codes, the owner looks up and adds as the switch
                  would, all-gather of the sums. A link carries (n - 1)/n of codes and sums, each once. Fewer chunks
                  than ranks: this rank looks its codes up, then as ADD

Every other phase is one collective operation on 32-bit words, which carries lanes twice:

    ADD8, ADD16   lanes in the machine's byte order, 4 or 2 of them in one word, SUM: codecs never overflow a lane, so
                  nothing carries from one into the next
    ADD32         SUM, modulo 2^32 as in the switch
    MAX32         MAX of signed words: values have 31 bits
    OR            BOR of bytes with gloo; NCCL has no OR: MAX of bytes that hold one bit each

All ranks contribute to every chunk. Before every all-reduce the ranks compare texts of the call (200 bytes each), so
that ranks which are not at the same all-reduce have an error and do not wait. Operations use a separate process group:
collectives of one group must come in one order on all ranks, and the script's own run in other threads meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hopsum.codec import Codec, CollectivePhase
from hopsum.codec.interface import Bytes
from hopsum.codec.simulate import lane_values, simulate_switch
from hopsum.config import ConfigError
from hopsum.errors import AllReduceError
from hopsum.serial.serial_communicator import SerialCommunicator, Summed, require_agreement
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES

# all_gather needs tensors of one size.
_CALL_BYTES: Final = 200


def require_group(kind: str, group: dist.ProcessGroup | None) -> int:
    """Return the number of ranks of a process group, or of all ranks without one.

    Raises ConfigError: torch.distributed is not initialised, or the backend of the group is not `kind`.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise ConfigError(
            f"collective://{kind}: torch.distributed is not initialised; call "
            f'torch.distributed.init_process_group("{kind}") first, under torchrun without further arguments'
        )
    if group is not None and dist.get_backend(group) != kind:
        raise ConfigError(f"collective://{kind} with a process group of backend {dist.get_backend(group)}")
    return dist.get_world_size(group)


class CollectiveCommunicator(SerialCommunicator):
    """One rank of a process group. The contract is `hopsum.agent.Communicator`.

    A phase in progress cannot be interrupted: `close` waits for it, up to the group's timeout.

    Args:
        kind: "gloo" or "nccl".
        group: of the codec's workers. Nothing else uses it.
        rank: of this process in the group.
        owned: the group is destroyed with this object, and when an all-reduce fails on this rank, which the other ranks
            notice.
    """

    def __init__(
        self, kind: str, group: dist.ProcessGroup, rank: int, *, codec: Codec, seed: int, owned: bool = True
    ) -> None:
        self._group: dist.ProcessGroup | None = group
        self._owned = owned
        self._has_or = kind == "gloo"
        self._device = torch.device("cuda", torch.cuda.current_device()) if kind == "nccl" else torch.device("cpu")
        super().__init__(f"collective://{kind}", rank=rank, codec=codec, seed=seed)

    @classmethod
    def create(
        cls, kind: str, group: dist.ProcessGroup | None, *, codec: Codec, seed: int, timeout_s: float
    ) -> CollectiveCommunicator:
        """Return a communicator over a process group, or with None over a new group of all ranks.

        All ranks call this at the same point. The new group has the timeout `timeout_s` and is destroyed with the
        communicator. A given group keeps its own timeout.
        """
        # A group of its own: collectives of the training script run at the same time in other threads.
        own = dist.new_group(backend=kind, timeout=timedelta(seconds=timeout_s)) if group is None else group
        return cls(kind, own, dist.get_rank(own), codec=codec, seed=seed, owned=group is None)

    def _agree(self, call: str) -> None:
        calls: list[bytes] = []
        self._run("agreement", lambda: calls.extend(_gather(self._group, call.encode(), _CALL_BYTES)))
        require_agreement({rank: told.decode().rstrip() for rank, told in enumerate(calls)})

    def _sum(self, phase: CollectivePhase) -> Summed:
        shape = SHAPES[phase.op]
        # A collective adds lanes as wider words: signed lanes would carry into their neighbours.
        if phase.add is not None or shape.down_codes:
            return self._sum_in_two_shots(phase)
        if shape.has_codes and len(phase.payloads) >= self.workers > 1:
            return self._sum_in_two_shots(phase)
        lanes = lane_values(phase.op, phase.payloads, self.codec.lookup, self.codec.code_group)
        words = pack_words(phase.op, lanes, self._has_or)
        operation = _operation(phase.op, self._has_or)
        on_device = torch.from_numpy(words).to(self._device)
        self._run(phase.op.name, lambda: dist.all_reduce(on_device, op=operation, group=self._group))
        results = unpack_words(phase.op, on_device.cpu().numpy(), lanes, self._has_or)
        everybody = np.full(len(results), (1 << self.workers) - 1, np.uint64)
        return Summed(results, everybody, words.nbytes)

    def _sum_in_two_shots(self, phase: CollectivePhase) -> Summed:
        """Sum codes: each rank adds the chunks that it owns, a run of them."""
        chunks, up = phase.payloads.shape
        # all_to_all takes parts of one size, so the last ranks' parts may be padding.
        each = -(-chunks // self.workers)
        codes = phase.payloads
        if chunks < self.workers * each:
            codes = np.zeros((self.workers * each, up), np.uint8)  # padding is summed and dropped
            codes[:chunks] = phase.payloads
        sent = torch.from_numpy(codes).to(self._device)
        received = torch.empty_like(sent)
        name = phase.op.name if phase.add is None else self.codec.name
        self._run(f"{name} codes", lambda: dist.all_to_all_single(received, sent, group=self._group))
        shares = received.cpu().numpy().reshape(self.workers, each, up)
        if phase.add is None:
            owned, _ = simulate_switch(phase.op, list(shares), self.codec.lookup, code_group=self.codec.code_group)
        else:
            owned = phase.add(shares)
        own = torch.from_numpy(owned).to(self._device)
        gathered = torch.empty((self.workers, *owned.shape), dtype=torch.uint8, device=self._device)
        self._run(f"{name} sums", lambda: dist.all_gather(list(gathered), own, group=self._group))
        everybody = np.full(chunks, (1 << self.workers) - 1, np.uint64)
        results = gathered.cpu().numpy().reshape(self.workers * each, -1)[:chunks]
        return Summed(results, everybody, codes.nbytes + owned.nbytes)

    def _interrupt(self) -> None:
        """Do nothing: torch has no way to end an operation early that leaves the process group usable."""

    def _leave(self, why: BaseException | None) -> None:
        group, self._group = self._group, None
        if group is not None and self._owned and dist.is_initialized():
            dist.destroy_process_group(group)

    def _run(self, what: str, operation: Callable[[], object]) -> None:
        """Run a collective. Raises AllReduceError where torch fails."""
        try:
            operation()
        except (RuntimeError, ValueError) as error:
            raise AllReduceError(
                f"{self.name}: {what} failed on rank {self.rank} of {self.workers}: {error}. Another rank has failed "
                "or left, or did not come to this all-reduce in time; see what it says"
            ) from error


def _gather(group: dist.ProcessGroup | None, own: bytes, size: int) -> list[bytes]:
    """All-gather the bytes of all ranks, cut or filled up to `size` bytes. Return them by rank."""
    on_gpu = dist.get_backend(group) == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    mine = torch.frombuffer(bytearray(own[:size].ljust(size)), dtype=torch.uint8).to(device)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    return [row.cpu().numpy().tobytes() for row in rows]


def _operation(op: int, has_or: bool) -> dist.ReduceOp.RedOpType:
    if op == Op.OR:
        return dist.ReduceOp.BOR if has_or else dist.ReduceOp.MAX
    if op == Op.MAX32:
        return dist.ReduceOp.MAX
    # A collective would add the lanes of an operation that is not named here, and the mean would be silently wrong.
    if op in (Op.LOOKUP_ADD8, Op.LOOKUP_ADD16, Op.ADD8, Op.ADD16, Op.ADD32):
        return dist.ReduceOp.SUM
    raise AssertionError(f"no collective has the arithmetic of {Op(op).name}")


def pack_words(op: int, lanes: NDArray[Any], has_or: bool) -> NDArray[Any]:
    """Return a new array of the words that a collective operation combines in place of lanes: int32, or uint8 for OR.

    Args:
        op: of the switch program.
        lanes: [chunks, lanes], of the op's lane type.
        has_or: whether the collective has OR. If not, each bit becomes a byte, for MAX.
    """
    native = np.array(lanes, lanes.dtype.newbyteorder("="), order="C")
    if op == Op.OR:
        return native.reshape(-1) if has_or else np.unpackbits(native.reshape(-1))
    return native.reshape(-1).view(np.int32)


def unpack_words(op: int, words: NDArray[Any], lanes: NDArray[Any], has_or: bool) -> Bytes:
    """Undo `pack_words`: return the sums of the lanes as RESULT payloads, uint8[chunks, bytes].

    Args:
        words: the combined words.
        lanes: the argument of `pack_words`. Only its shape and type are used.
    """
    if op == Op.OR and not has_or:
        words = np.packbits(words)
    return words.view(lanes.dtype.newbyteorder("=")).astype(lanes.dtype).reshape(lanes.shape).view(np.uint8)
