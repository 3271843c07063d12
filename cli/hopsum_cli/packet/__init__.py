# SPDX-License-Identifier: Apache-2.0
"""`hopsum packet`: one packet by hand.

packet_exchange   key=value arguments to a packet, one packet to a switch, and its answers
packet_command    the word send: as text and as JSON
"""
