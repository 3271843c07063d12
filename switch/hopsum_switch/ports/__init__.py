# SPDX-License-Identifier: Apache-2.0
"""Ports: where frames enter and leave the switch, and the loop that moves them through the engine."""

from __future__ import annotations
