# SPDX-License-Identifier: Apache-2.0
"""Metrics of the controller, for Prometheus.

collect     the metrics, from what a ClusterController answers     exposition  their text format
"""

from __future__ import annotations

from hopsum_controlplane.metrics.collect import FAMILIES, collect

__all__ = ["FAMILIES", "collect"]
