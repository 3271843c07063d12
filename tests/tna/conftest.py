# SPDX-License-Identifier: Apache-2.0
"""Where what the data-plane cases share is, and the tools."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "ptf_tests" / "common"), str(_ROOT / "tools")]
