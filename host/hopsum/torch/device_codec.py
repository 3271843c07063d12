# SPDX-License-Identifier: Apache-2.0
"""The codec of a device, made after a communicator's own; or the reason why there is none."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import numpy as np
import torch

from hopsum.agent import Communicator
from hopsum.codec import Codec, CodecError, ErrorFeedback, ReductionContext
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import Thc
from hopsum.config import CODEC_ON, CodecOn
from hopsum.torch.codec import TorchThc
from hopsum.torch.device_reduction import DeviceFeedback, DeviceVector
from hopsum.torch.streams import Staging, streams_of
from hopsum_wire import Op

_CHECKED_ELEMENTS: Final = 5 * 1024 + 5
_log: Final = logging.getLogger(__name__)


class DeviceCodec(NamedTuple):
    """A codec on a device, with the transfers between its tensors and the host."""

    codec: TorchThc
    staging: Staging

    @property
    def device(self) -> torch.device:
        """Return the device."""
        return self.codec.device

    def vector(self, x: torch.Tensor, feedback: DeviceFeedback | None, out: torch.Tensor) -> DeviceVector:
        """Return a vector of this device to submit. See `DeviceVector`."""
        return DeviceVector(x, self.codec, self.staging, feedback, out=out)


class DeviceCodecs:
    """The codecs of all devices for one communicator. They are made, and checked, when a device is first asked for.

    Args:
        comm: the communicator.
        codec_on: see `CodecOn`.

    Raises:
        ValueError: another word for `codec_on`.
    """

    def __init__(self, comm: Communicator, codec_on: CodecOn) -> None:
        require_codec_on(codec_on)
        self._codec, self._on_host_only, self._codec_on = comm.codec, comm.on_host_only, codec_on
        self._made: dict[torch.device, DeviceCodec | None] = {}

    def codec_for(self, device: torch.device) -> DeviceCodec | None:
        """Return the codec for tensors of a device; None: they go to the host.

        The first call for a device compiles and checks the codec. If that fails with "auto", a warning says why.

        Raises:
            CodecError: there is none, and codec_on is "device".
        """
        # Made when a device is first asked for: kernels are compiled and checked then, which takes seconds.
        if device not in self._made:
            self._made[device] = self._make(device)
        return self._made[device]

    @property
    def bytes_to_host(self) -> int:
        """Return the bytes that crossed the bus to the host so far."""
        return sum(each.staging.bytes_to_host for each in self._made.values() if each is not None)

    @property
    def bytes_to_device(self) -> int:
        """Return the bytes that crossed the bus to devices so far."""
        return sum(each.staging.bytes_to_device for each in self._made.values() if each is not None)

    def _make(self, device: torch.device) -> DeviceCodec | None:
        # On the CPU the host's own codec is faster than plain torch operations.
        if self._codec_on == "host" or (self._codec_on == "auto" and device.type == "cpu"):
            return None
        try:
            if self._on_host_only:
                raise CodecError("this communicator sums in the host's memory")
            return device_codec(self._codec, device)
        except CodecError as error:
            if self._codec_on == "device":
                raise
            _log.warning("gradients on %s are encoded on the host, and cross the bus in float32: %s", device, error)
            return None


def require_codec_on(codec_on: str) -> None:
    """Raise ValueError for a word that is no CodecOn."""
    if codec_on not in CODEC_ON:
        raise ValueError(f"codec_on={codec_on!r}: one of {', '.join(CODEC_ON)}")


def device_codec(codec: Codec, device: torch.device | str, *, backend: str = "auto") -> DeviceCodec:
    """Return a codec on a device with the bytes of another one, which were compared on a small vector.

    Args:
        codec: a communicator's.
        backend: as for `TorchThc`.

    Raises:
        CodecError: it has no form for devices, device or backend cannot be used, or the bytes differ.
    """
    # Not isinstance: a subclass may make other bytes.
    if type(codec) is not Thc:
        raise CodecError(f"codec {codec.name} has no form for devices: thc has one")
    made = TorchThc(codec, device=device, backend=backend)
    found = DeviceCodec(made, Staging(streams_of(made.device)))
    _require_same(codec, found)
    return found


def _require_same(codec: Codec, found: DeviceCodec) -> None:
    """Compare one all-reduce phase by phase: other bytes would split the replicas of a job."""
    rng = np.random.default_rng(20230216)
    # Magnitudes over eight decades, and a last block that is not full: each branch of the kernels is taken.
    x = (rng.standard_t(3, _CHECKED_ELEMENTS) * np.exp(np.linspace(-9, 9, _CHECKED_ELEMENTS))).astype(np.float32)
    context = ReductionContext(11, 3, codec.workers - 1)
    kept, here = ErrorFeedback(x.size), DeviceFeedback(x.size, found.device)
    tensor = torch.from_numpy(x.copy()).to(found.device)
    right = codec.start(x, context, kept)
    ours = found.vector(tensor, here, tensor).start(codec, context, tensors=(), on_nonfinite="raise")
    while right.phase is not None and ours.phase is not None:
        _require_equal(codec, found, right.phase.op.name, right.phase.payloads, ours.phase.payloads)
        sums, _ = simulate_switch(right.phase.op, [right.phase.payloads], codec.lookup, code_group=codec.code_group)
        if right.phase.op == Op.MAX32:
            # One block exceeds its shared range, as if its ranges had come too late for the quorum.
            sums.view(">f4")[0, 0] /= 4
        # The highest rank, so that the top bit of the bitmap is used, and now and then all ranks: two sets.
        contributors = np.full(len(sums), 1 << codec.workers - 1, np.uint64)
        contributors[1::2] = (1 << codec.workers) - 1
        for each in (right, ours):
            each.on_results(sums, contributors)
    assert right.mean is not None
    _require_equal(codec, found, "the mean", right.mean, tensor.cpu().numpy())
    _require_equal(codec, found, "the residual", kept.residual, here.residual.cpu().numpy())


def _require_equal(codec: Codec, found: DeviceCodec, what: str, right: object, ours: object) -> None:
    if not np.array_equal(np.asarray(right).view(np.uint8), np.asarray(ours).view(np.uint8)):
        raise CodecError(
            f"codec {codec.name} on {found.device}: {what} of backend {found.codec.backend} differs from that of "
            f"{codec.backend}; remove Triton's cache if another version made it, and report this"
        )
