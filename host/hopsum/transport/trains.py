# SPDX-License-Identifier: Apache-2.0
"""Runs of datagrams that the kernel hands over as one where it does not say where to cut: at raw and packet sockets."""

from __future__ import annotations

from hopsum_wire import HOPSUM_BYTES, Header


def cut_train(train: memoryview) -> list[memoryview]:
    """Return the datagrams of a run, views into it.

    All but the last of a run have the same size (that is what UDP_SEGMENT and UDP_GRO make), so the first one's own
    header says where to cut. What is no whole hopsum packet stays in one piece, for its receiver to refuse.
    """
    if len(train) <= HOPSUM_BYTES:
        return [train]
    each = HOPSUM_BYTES + Header.unpack(train).length
    return [train[at : at + each] for at in range(0, len(train), each)]
