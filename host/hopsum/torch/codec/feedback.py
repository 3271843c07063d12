# SPDX-License-Identifier: Apache-2.0
"""Error feedback on tensors: what hopsum.codec's `ErrorFeedback` does, without passes of its own over the vector.

    own      = feedback.compensate(codec, x)           x + residual, and its ranges, in one pass
    payloads = codec.encode(feedback.pending, own, shared, context)
    feedback.commit(codec, payloads, shared, context, included)        codes back to what they add, and subtracted

It changes when an all-reduce is committed and at no other time.
"""

from __future__ import annotations

import torch

from hopsum.codec.interface import CodecError, ReductionContext
from hopsum.torch.codec.checks import require_device, require_vector
from hopsum.torch.codec.codec import TorchThc, bounded


class TorchFeedback:
    """The undelivered part of one vector's all-reduces. One all-reduce at a time."""

    def __init__(self, elements: int, device: torch.device | str = "cpu") -> None:
        self.residual = torch.zeros(elements, dtype=torch.float32, device=device)
        """float32[elements]; set it to restore a checkpoint, between all-reduces."""
        self._spare = torch.empty_like(self.residual)
        self._pending: torch.Tensor | None = None

    @property
    def pending(self) -> torch.Tensor:
        """Return the compensated vector, float32[elements], which is to be encoded; this object's.

        Raises:
            CodecError: no vector was compensated.
        """
        if self._pending is None:
            raise CodecError("nothing to encode or commit: no vector was compensated")
        return self._pending

    def compensate(self, codec: TorchThc, x: torch.Tensor) -> torch.Tensor:
        """Take a vector, float32[elements], to be sent with the residual; return the ranges of both together.

        Raises:
            CodecError: another length or device, or an earlier vector is neither committed nor rolled back.
        """
        require_vector(x, codec.device)
        require_device(self.residual, codec.device, "the error feedback")
        if x.shape != self.residual.shape:
            raise CodecError(f"vector of {x.numel()} elements for an error feedback of {self.residual.numel()}")
        if self._pending is not None:
            raise CodecError("the vector before is neither committed nor rolled back; finish its all-reduce first")
        whole, rest = divmod(x.numel(), codec.block_elements)
        rows = [
            each[: whole * codec.block_elements].view(whole, codec.block_elements)
            for each in (x, self.residual, self._spare)
        ]
        parts = [codec.kernels.compensate(*rows)]
        if rest:
            torch.add(x[-rest:], self.residual[-rest:], out=self._spare[-rest:])
            parts.append(codec.ranges(self._spare[-rest:]))
        self._pending = self._spare
        return bounded(torch.cat(parts))

    def commit(
        self,
        codec: TorchThc,
        payloads: torch.Tensor | None,
        shared: torch.Tensor,
        context: ReductionContext,
        included: torch.Tensor | None = None,
    ) -> None:
        """Keep of the compensated vector what was not delivered.

        Args:
            codec: that made the payloads.
            payloads: uint8[chunks, up_bytes(op)]; None: nothing was delivered.
            shared: the ranges it encoded with.
            context: and the context.
            included: bool[blocks], which blocks are in a sum; all if left out.

        Raises:
            CodecError: no vector was compensated, or what was given does not fit it; nothing was changed.
        """
        pending = self.pending
        if payloads is not None:
            codec.subtract_contribution(payloads, shared, context, pending, included)
        self.keep()

    def keep(self) -> None:
        """Make what is left of the compensated vector the residual. Raises CodecError without one."""
        self.residual, self._spare, self._pending = self.pending, self.residual, None

    def rollback(self) -> None:
        """Drop the compensated vector: the residual stays as it was."""
        self._pending = None
