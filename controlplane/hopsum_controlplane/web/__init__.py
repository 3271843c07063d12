# SPDX-License-Identifier: Apache-2.0
"""Pages of the controller over HTTP, to be read only: a page for people, its values as JSON, metrics for Prometheus.

server     the HTTP server, and which path has what     state     the page's values: what `hopsum top` shows
page       page.html and the headers that it needs      page.html the page: markup, style and script in one file
clients    how many are connected, and for how long
"""

from __future__ import annotations

from hopsum_controlplane.web.server import WebServer

__all__ = ["WebServer"]
