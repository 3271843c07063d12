# SPDX-License-Identifier: Apache-2.0
"""The forms of codec thc that devices have, by their names."""

from __future__ import annotations

from typing import Final

FORMS: Final = ("thc", "thc:bits=3", "thc:bits=2", "thc:result_bits=8", "thc:rounding=stochastic")
