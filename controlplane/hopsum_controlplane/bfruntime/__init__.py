# SPDX-License-Identifier: Apache-2.0
"""BF Runtime: the gRPC protocol of the switch software of Tofino 1 and 2.

messages   the messages and the service, as far as the driver uses them
schema     a program's tables by name, from the bfrt.json that the switch returns
encoding   between our entities and BF Runtime's table entries
session    one client's connection with a switch
chip       facts of the two chips, and what is set up beside a program: ports, queues, loop ports
"""
