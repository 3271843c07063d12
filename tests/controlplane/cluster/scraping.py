# SPDX-License-Identifier: Apache-2.0
"""Metrics in Prometheus's text format, read strictly."""

from __future__ import annotations

import re

from hopsum_controlplane.metrics.collect import PREFIX

SAMPLE = re.compile(r'([a-z0-9_]+)(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(?:,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? (-?[0-9.e+-]+)')
Values = dict[str, float]


def parse(text: str) -> Values:
    """Return the values by name with labels, without the prefix; fail where the text is not as the format says."""
    values: Values = {}
    types: dict[str, str] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name} twice"
            types[name] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            family = re.sub("_(bucket|sum|count)$", "", match[1])
            kind = types[family if types.get(family) == "histogram" else match[1]]
            assert (kind == "counter") == match[1].endswith("_total")
            name = f"{match[1]}{match[2] or ''}".removeprefix(PREFIX)
            assert name not in values, f"{name} twice"
            values[name] = float(match[3])
    return values
