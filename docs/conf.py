# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration: MyST pages, the Python reference from docstrings, warnings are errors (make docs)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

project = "hopsum"
author = "The hopsum authors"
copyright = "2026, the hopsum authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference_parts"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Docstrings write `name` for code, as Markdown does.
default_role = "code"
python_maximum_signature_line_length = 100
myst_enable_extensions = ["deflist", "fieldlist"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "hopsum"
html_static_path = ["_static"]
html_css_files = ["code.css"]
