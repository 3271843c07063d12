# SPDX-License-Identifier: Apache-2.0
"""The embedded switch: it takes the compiler's JSON, and its queues are the sockets'."""

from __future__ import annotations

from hopsum_controlplane.devices.device import Capabilities
from hopsum_controlplane.devices.p4runtime_device import P4RuntimeDevice


class NativeDevice(P4RuntimeDevice):
    """A switch of the embedded engine."""

    capabilities = Capabilities("native")
