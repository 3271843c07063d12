# SPDX-License-Identifier: Apache-2.0
"""The state of a running program: table entries, multicast groups, counters, registers.

The control plane reads and writes the stores. A refused access raises a subclass of
`hopsum_switch.errors.TableError` and changes nothing.
"""
