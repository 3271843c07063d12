# SPDX-License-Identifier: Apache-2.0
"""Pages of the controller over HTTP, for reading only: a page for people, its values as JSON, metrics for Prometheus.

http_server         the server, its limits on clients, and the answer at each path
page_state          the page's values, which `hopsum top` shows too
page.html           the page: markup, style and script in one file
prometheus_metrics  the metrics, in Prometheus's text format
"""

from __future__ import annotations

from hopsum_controlplane.web.http_server import WebServer

__all__ = ["WebServer"]
