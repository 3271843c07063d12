# SPDX-License-Identifier: Apache-2.0
"""The switch in Python: every data plane is held to it. Nothing here does input or output.

decision      what an UPDATE, FLUSH or PROBE does to one slot copy; leaf: what a packet of the parent does
admission     which packets are let in
registers     the cells of all copies, and the arithmetic on lanes
aggregator    one datagram after the other; frame_aggregator: whole frames
switch_config the switch's jobs, workers and place in a tree, as values
"""
