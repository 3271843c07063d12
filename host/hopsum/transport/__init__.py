# SPDX-License-Identifier: Apache-2.0
"""Ways to carry a worker's datagrams: sockets around the rules of `hopsum.protocol`."""
