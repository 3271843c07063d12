# SPDX-License-Identifier: Apache-2.0
"""`python -m hopsum_switch`."""

from __future__ import annotations

import sys

from hopsum_switch.cli import main

sys.exit(main(prog="python -m hopsum_switch"))
