# SPDX-License-Identifier: Apache-2.0
"""Constant entries of ternary tables, as commands that say each bit of a key."""

from __future__ import annotations

from hopsum_model.chip_context import constant_entries, without_constants

TERNARY = {
    "name": "Ingress.form",
    "match_key_fields": [
        {"name": "flags", "start_bit": 0, "bit_width": 8},
        {"name": "length", "start_bit": 0, "bit_width": 4},
    ],
    "match_attributes": {
        "stage_tables": [
            {
                "stage_number": 0,
                "stage_table_type": "ternary_match",
                "size": 512,
                "memory_resource_allocation": None,
            }
        ]
    },
    "actions": [{"handle": 7, "name": "Ingress.reject"}],
    "static_entries": [
        {
            "priority": 1,
            "match_key_fields_values": [
                {"field_name": "flags", "value": "0x0", "mask": "0xfe"},
                {"field_name": "length", "value": "0x5", "mask": "0xf"},
            ],
            "action_handle": 7,
            "action_parameters_values": [{"parameter_name": "reason", "value": "0x3"}],
        }
    ],
}
EXACT = {
    "name": "Ingress.loop",
    "match_attributes": {"stage_tables": [{"stage_table_type": "hash_match", "size": 64}]},
    "static_entries": [{"priority": 0}],
}


def test_a_masked_zero_keeps_its_zeros() -> None:
    """Written without them, 0 &&& 0xfe is any value to the harness."""
    context = {"tables": [TERNARY, EXACT, {"name": "Ingress.count"}]}
    assert list(constant_entries(context)) == [
        "add Ingress.form 510 flags:0b0000000* length:0b0101 Ingress.reject(reason:0x3)"
    ]


def test_the_harness_gets_a_context_without_them() -> None:
    context = {"tables": [TERNARY, EXACT, {"name": "Ingress.count"}]}
    form, loop, count = without_constants(context)["tables"]
    assert form == {**TERNARY, "static_entries": []}
    assert (loop, count) == (EXACT, {"name": "Ingress.count"})
    assert TERNARY["static_entries"], "the context that was given stays as it is"
