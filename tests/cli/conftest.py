# SPDX-License-Identifier: Apache-2.0
"""Worker processes import `impostors` by name. Clusters in memory are those of the control plane's tests."""

from __future__ import annotations

import sys
from pathlib import Path

from ..controlplane.cluster.conftest import cluster, make_cluster  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parent))
