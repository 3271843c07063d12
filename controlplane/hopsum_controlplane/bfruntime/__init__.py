# SPDX-License-Identifier: Apache-2.0
"""BF Runtime: the gRPC protocol of the switch software of Tofino 1 and 2.

bfrt_messages   the messages and the service, as far as the driver uses them
bfrt_schema     a program's tables by name, from the bfrt.json that the switch returns
bfrt_encoding   between our entities and BF Runtime's table entries
bfrt_session    one client's connection with a switch
chip            facts of the two chips, and the set-up in addition to a program: ports, queues, loop ports
"""
