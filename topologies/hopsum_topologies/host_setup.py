# SPDX-License-Identifier: Apache-2.0
"""Setup of a host's interface for a switch in user space, in the network namespace of the caller.

`python -m hopsum_topologies.host_setup INTERFACE SERVICE_IP SERVICE_MAC`: finished frames, one packet each, and a
neighbour entry for the switch, so that losses delay no sum by a second, the time in which the kernel asks again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hopsum_topologies.errors import TopologyError
from hopsum_topologies.netns import add_neighbour, switch_offloads_off


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return its exit status."""
    interface, service_ip, service_mac = arguments
    try:
        switch_offloads_off(interface)
        add_neighbour(interface, service_ip, service_mac)
    except TopologyError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
