# SPDX-License-Identifier: Apache-2.0
"""Sum compressed gradients in the network.

Subpackages are imported by name; this module loads none of them, so that a training process pays only for
what it uses.
"""
