# SPDX-License-Identifier: Apache-2.0
"""simple_switch_grpc: it takes the compiler's JSON as it is, without the wrapper of old versions."""

from __future__ import annotations

from hopsum_controlplane.devices.base import Capabilities
from hopsum_controlplane.devices.p4runtime import P4RuntimeDevice


class Bmv2Device(P4RuntimeDevice):
    """A bmv2 switch. Its egress queues hold 64 packets and drop the rest in silence, hence the window."""

    capabilities = Capabilities("bmv2", max_window=32)
