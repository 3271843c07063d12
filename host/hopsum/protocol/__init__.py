# SPDX-License-Identifier: Apache-2.0
"""The worker's side of the slot protocol, without I/O.

Nothing here opens a socket, reads a clock or draws a random number: datagrams and `now` are arguments.
A host runs `worker`. The switch's side in Python is `hopsum_oracle`, the oracle that data planes are tested against.
"""
