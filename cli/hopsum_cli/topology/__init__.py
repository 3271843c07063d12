# SPDX-License-Identifier: Apache-2.0
"""`hopsum topology`: networks on this machine.

topology_command   the words: list, show, run
drawing            a network in words
run                a network from its start to its end, with a command on every worker
own_program        the same with a P4 program and a control command of the user
worker_commands    commands of workers, their environments and their output
"""
