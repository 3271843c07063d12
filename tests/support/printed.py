# SPDX-License-Identifier: Apache-2.0
"""What commands and ranks printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

Values = dict[str, float]


def parse_printed(printed: str) -> Any:
    """Return the JSON value that ranks printed. Gloo of torch 2.8 tells of its connections on stdout too, in pieces."""
    for begin in re.finditer(r"^[\[{](?!Gloo)", printed, re.MULTILINE):
        try:
            return json.JSONDecoder().raw_decode(printed, begin.start())[0]
        except ValueError:
            continue
    raise ValueError(f"no JSON in {printed!r}")


def usage_error(capsys: pytest.CaptureFixture[str], main: Callable[[Sequence[str]], object], *arguments: str) -> str:
    """Run a command that has to refuse its arguments as wrong usage. Return what it wrote to stderr."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


def parse_metrics(text: str, order: Mapping[str, Sequence[str]] | None = None) -> Values:
    """Return the values of metrics by name with labels, those of a family in `order` in that order.

    Fails where the text is not as the format says, or has a family or a value twice.
    """
    values: Values = {}
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")
            declared = sample.labels if order is None else (*order.get(family.name, ()), "le")
            names = [each for each in declared if each in sample.labels]
            assert len(names) == len(sample.labels), sample
            shown = ",".join(f'{each}="{sample.labels[each]}"' for each in names)
            name = sample.name + (f"{{{shown}}}" if shown else "")
            assert name not in values, f"{name} twice"
            values[name] = sample.value
    return values
