# SPDX-License-Identifier: Apache-2.0
"""Worker processes import `impostors` by name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
