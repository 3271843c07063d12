# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration: MyST pages, warnings are errors (make docs)."""

project = "hopsum"
author = "The hopsum authors"
copyright = "2026, the hopsum authors"
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist", "fieldlist"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "hopsum"
