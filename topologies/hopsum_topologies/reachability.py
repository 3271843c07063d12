# SPDX-License-Identifier: Apache-2.0
"""Check of reachability: ICMP echo requests until each address has answered once.

`python -m hopsum_topologies.reachability DEADLINE_S IP [IP ...]`. Exit status 0 if all addresses have
answered. Else the exit status is 1, and stderr names the other addresses.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Final

_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_AGAIN_S: Final = 0.2
# Type, code, checksum, identifier, sequence number: RFC 792.
_HEADER = struct.Struct("!BBHHH")


def find_unreachable(addresses: Sequence[str], deadline_s: float) -> list[str]:
    """Return those of the IPv4 addresses that do not answer in time. Raises OSError without CAP_NET_RAW."""
    missing = dict.fromkeys(addresses)
    request = _request(os.getpid() & 0xFFFF)
    give_up = time.monotonic() + deadline_s
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as echo:
        while missing and (now := time.monotonic()) < give_up:
            for address in missing:
                try:
                    echo.sendto(request, (address, 0))
                except OSError:
                    # No neighbour entry yet, or no route. The deadline bounds both.
                    continue
            # Replies may be lost, so the requests are repeated after _AGAIN_S.
            again = min(give_up, now + _AGAIN_S)
            while missing and (left_s := again - time.monotonic()) > 0:
                echo.settimeout(left_s)
                try:
                    packet, (address, _) = echo.recvfrom(2048)
                except OSError:
                    continue
                if _is_reply(packet, request):
                    missing.pop(address, None)
    return list(missing)


def _request(identifier: int) -> bytes:
    header = _HEADER.pack(_ECHO_REQUEST, 0, 0, identifier, 1)
    # The internet checksum: the ones' complement of the ones' complement sum of 16-bit words.
    total = sum(struct.unpack("!4H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return _HEADER.pack(_ECHO_REQUEST, 0, ~total & 0xFFFF, identifier, 1)


def _is_reply(packet: bytes, request: bytes) -> bool:
    """Check that an IPv4 packet answers our request: same identifier and number."""
    # A raw socket receives the IPv4 header too, and all ICMP of the namespace.
    icmp = packet[(packet[0] & 15) * 4 :]
    return icmp[:1] == bytes([_ECHO_REPLY]) and icmp[4:8] == request[4:8]


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return 0 if all addresses have answered, else print the others on stderr and return 1."""
    deadline_s, *addresses = arguments
    missing = find_unreachable(addresses, float(deadline_s))
    if missing:
        print(f"no answer from {', '.join(missing)} in {deadline_s} s", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
