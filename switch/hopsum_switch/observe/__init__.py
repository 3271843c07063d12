# SPDX-License-Identifier: Apache-2.0
"""Observation of a running switch: traces, snapshots of state, metrics. It changes no packet and no state."""
