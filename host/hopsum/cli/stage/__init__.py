# SPDX-License-Identifier: Apache-2.0
"""What commands that run a whole system on one machine share.

targets   a switch with the program on it, and its interface counters, per target
seat      where a worker runs and how it reaches the switch
crew      worker processes and the pipes to them
"""
