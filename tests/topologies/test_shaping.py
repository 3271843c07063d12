# SPDX-License-Identifier: Apache-2.0
"""Delays: on this kernel's netem, and their refusal where there is none."""

from __future__ import annotations

import shutil

import pytest
from msgspec.structs import replace

from hopsum_topologies import Namespace, TopologyError
from hopsum_topologies.description import topology
from hopsum_topologies.shaping import require_shapes

pytestmark = [
    pytest.mark.system,
    pytest.mark.usefixtures("namespaces"),
    pytest.mark.skipif(shutil.which("tc") is None, reason="tc (iproute2) is not installed"),
]


def test_a_delay_is_refused_by_name_where_there_is_no_netem(monkeypatch: pytest.MonkeyPatch) -> None:
    net = topology("two_rack", 2)
    require_shapes(net)  # asks nobody
    delayed = replace(net, links=tuple(replace(link, delay_s=0.002 * ("spine" in link.ends)) for link in net.links))
    monkeypatch.setattr("hopsum_topologies.shaping.tc", _kernel_without_netem)
    with pytest.raises(TopologyError, match=r"delay of leaf1-spine .*, leaf2-spine .* needs netem, .* kind is unknown"):
        require_shapes(delayed)


def _kernel_without_netem(namespace: Namespace, *arguments: str) -> str:
    assert "netem" in arguments
    raise TopologyError("`tc qdisc add` failed: Error: Specified qdisc kind is unknown.")
