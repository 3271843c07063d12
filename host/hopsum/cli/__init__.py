# SPDX-License-Identifier: Apache-2.0
"""The `hopsum` command: it composes the parts and holds no logic of its own."""
