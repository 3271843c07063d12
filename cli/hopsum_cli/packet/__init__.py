# SPDX-License-Identifier: Apache-2.0
"""`hopsum packet`: one packet by hand, and the packets of captures.

packet_exchange   key=value arguments to a packet, one packet to a switch, and its answers
captured_packets  files of frames to hopsum packets
packet_command    the words send and decode: as text and as JSON
"""
