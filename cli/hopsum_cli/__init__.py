# SPDX-License-Identifier: Apache-2.0
"""The `hopsum` command: arguments, output, nothing else. main has the table of all commands."""
