# SPDX-License-Identifier: Apache-2.0
"""Random headers and paths."""

from __future__ import annotations

from hypothesis import strategies as st

from hopsum_wire import Header
from hopsum_wire._layout import HOPSUM_FIELDS
from hopsum_wire.frames import FramePath


def bits(width: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << width) - 1)


HEADERS = st.builds(Header, **{field.name: bits(field.bits) for field in HOPSUM_FIELDS})
PATHS = st.builds(FramePath, src_mac=bits(48), dst_mac=bits(48), src_ip=bits(32), dst_ip=bits(32), src_port=bits(16))
