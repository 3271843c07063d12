# SPDX-License-Identifier: Apache-2.0
"""The backends of tests/host/torch_codec, and with them Triton's interpreter where there is no GPU."""

from __future__ import annotations

from ..torch_codec.conftest import backend

__all__ = ["backend"]
