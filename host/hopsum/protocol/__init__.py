# SPDX-License-Identifier: Apache-2.0
"""The worker's side of the slot protocol, without I/O.

Nothing here opens a socket, reads a clock or draws a random number: datagrams and `now` are arguments. A host runs
`worker`. `hopsum_oracle` is the switch's side in Python, to which tests compare data planes.
"""
