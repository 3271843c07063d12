# SPDX-License-Identifier: Apache-2.0
"""The bindings of P4Runtime, first of all: without them protobuf refuses the stubs of the name `p4`."""

from __future__ import annotations

import hopsum_base.p4runtime  # noqa: F401
