# SPDX-License-Identifier: Apache-2.0
"""Where what the cases share is."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ptf_tests" / "common"))
