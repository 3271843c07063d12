# SPDX-License-Identifier: Apache-2.0
"""The path of the tools."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
