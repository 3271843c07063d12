# SPDX-License-Identifier: Apache-2.0
"""Metrics of the controller, for Prometheus: what a ClusterController answers, as families of prometheus_client."""

from __future__ import annotations

from hopsum_controlplane.metrics.collect import FAMILIES, collect

__all__ = ["FAMILIES", "collect"]
