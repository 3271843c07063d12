# SPDX-License-Identifier: Apache-2.0
"""The slot protocol without I/O: the switch's decision table and the worker's rules.

Nothing here opens a socket, reads a clock or draws a random number: datagrams and `now` are arguments.
`worker` is what a host runs; `aggregator` is the switch in Python, the oracle that data planes are tested
against.
"""
