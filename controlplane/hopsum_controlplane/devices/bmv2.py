# SPDX-License-Identifier: Apache-2.0
"""simple_switch_grpc: it takes the compiler's JSON as it is, without the wrapper of old versions."""

from __future__ import annotations

from hopsum_controlplane.devices.device import Capabilities, PipelineConfig
from hopsum_controlplane.devices.p4runtime_device import P4RuntimeDevice
from hopsum_controlplane.entries import Delete


class Bmv2Device(P4RuntimeDevice):
    """A bmv2 switch.

    Its egress queues hold 64 packets and drop the rest in silence, hence the window. A frame has room for 512 bytes
    more than it came with. `simple_switch` does not check, and a Release build writes over its memory and dies.
    """

    capabilities = Capabilities("bmv2", max_window=32, max_growth_bytes=512)

    def set_pipeline_config(self, pipeline: PipelineConfig) -> None:
        """Make the switch run `pipeline`, starting from nothing."""
        if self.read_cookie() is not None:
            # With the old program its P4Runtime server forgets the groups, but its replication engine continues
            # sending to their members: a job in a group of the same number would get every result twice.
            self.write([Delete(group) for group in self.read_groups()])
        super().set_pipeline_config(pipeline)
