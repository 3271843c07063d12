# SPDX-License-Identifier: Apache-2.0
"""All-reduces of tensors on the device where they lie: only ranges, codes and sums cross the bus.

    streams     the streams of a device, and the order between them
    staging     what crosses the bus: pinned memory, counts of bytes and of waits
    feedback    error feedback on the device, whose last all-reduce can be undone
    reduction   one all-reduce as a codec's reduction, with the bytes of hopsum.codec
    vector      what a communicator is handed
    choice      the codec of a device, made after a communicator's; or the reason why there is none
    tensors     tensors of hopsum.allreduce

The CPU is a device as well: there everything runs at once, in the same order.
"""

from __future__ import annotations

from hopsum.torch.device.choice import DeviceCodecs, device_codec
from hopsum.torch.device.feedback import DeviceFeedback
from hopsum.torch.device.vector import DeviceVector

__all__ = ["DeviceCodecs", "DeviceFeedback", "DeviceVector", "device_codec"]
