# SPDX-License-Identifier: Apache-2.0
"""`hosts://`: aggregation that is spread over the ranks' own hosts, with nothing to start beforehand.

meeting.py   the ranks tell each other values, and end together where one cannot go on
address.py   the address by which a rank is reached
reach.py     datagrams and connections between all addresses, tried before anything is started
children.py  processes that end with this one
opening.py   the steps: addresses -> reachability -> a switch on every host -> a controller -> the job

embedded_switch.py  one switch as a child
worker_switch.py    the same without `hosts://`: a switch that registers with a controller that runs elsewhere
"""

from __future__ import annotations

from hopsum.hosts.meeting import KeyValueStore, Meeting
from hopsum.hosts.opening import open_hosts

__all__ = ["KeyValueStore", "Meeting", "open_hosts"]
