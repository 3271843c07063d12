# SPDX-License-Identifier: Apache-2.0
"""The values of a scrape of the controller, read by Prometheus's own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from hopsum_controlplane.prometheus_metrics import FAMILIES, PREFIX

Values = dict[str, float]
_LABELS = {PREFIX + name.removesuffix("_total"): labels for name, _, _, labels in FAMILIES}


def parse(text: str) -> Values:
    """Return the values by name with labels in the order of their declaration, without the prefix.

    Fails where the text is not as the format says, or has a family or a value twice.
    """
    values: Values = {}
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")
            names = [each for each in (*_LABELS.get(family.name, ()), "le") if each in sample.labels]
            assert len(names) == len(sample.labels), sample
            shown = ",".join(f'{each}="{sample.labels[each]}"' for each in names)
            name = sample.name.removeprefix(PREFIX) + (f"{{{shown}}}" if shown else "")
            assert name not in values, f"{name} twice"
            values[name] = sample.value
    return values
