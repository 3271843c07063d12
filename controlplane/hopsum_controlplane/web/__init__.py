# SPDX-License-Identifier: Apache-2.0
"""Pages of the controller over HTTP, to be read only: a page for people, its values as JSON, metrics for Prometheus.

http_server  the server, its limits on clients, and the answer at each path
page_state   the page's values: what `hopsum top` shows
page.html    the page: markup, style and script in one file
"""

from __future__ import annotations

from hopsum_controlplane.web.http_server import WebServer

__all__ = ["WebServer"]
