# SPDX-License-Identifier: Apache-2.0
"""The reference model of the switch in Python, with which every data plane is compared. It does no input or output.

decision          effect of an UPDATE, FLUSH or PROBE on one slot copy
leaf              effect of a packet of the parent on it
admission         admission checks of packets
registers         the cells of all copies, and the arithmetic on lanes
aggregator        one datagram after the other
frame_aggregator  whole frames
switch_config     the switch's jobs, workers and place in a tree, as values
"""
