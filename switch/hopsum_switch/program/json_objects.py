# SPDX-License-Identifier: Apache-2.0
"""Header stacks, header unions, field lists, learn lists and meters of the JSON as typed objects, and their readers."""

from __future__ import annotations

from dataclasses import dataclass

from .json_model import Operand
from .json_node import Node, integer
from .json_operands import field_operand, operand
from .source import SourceInfo


@dataclass(frozen=True, slots=True)
class HeaderStackJson:
    """Entry of ``header_stacks``. Its elements are the ids of their headers."""

    name: str
    header_type: str
    header_ids: tuple[int, ...]
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class HeaderUnionJson:
    """Entry of ``header_unions``. Its members are the ids of their headers."""

    name: str
    union_type: str
    header_ids: tuple[int, ...]
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class FieldListJson:
    """Entry of ``field_lists``: metadata that goes with a packet that is copied or comes round."""

    id: int
    name: str
    elements: tuple[Operand, ...]
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class LearnListJson:
    """Entry of ``learn_lists``: the members of a digest."""

    id: int
    name: str
    elements: tuple[Operand, ...]
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class MeterJson:
    """Entry of ``meter_arrays``. A direct meter has the table, and the field for the colour."""

    name: str
    id: int
    type: str
    rate_count: int
    size: int
    binding: str | None
    target: Operand | None
    source: SourceInfo | None


def read_stack(node: Node) -> HeaderStackJson:
    """Return a header stack. Raises: ProgramError (wrong shape)."""
    ids = tuple(integer(item, f"{node.path}.header_ids") for item in node.array("header_ids"))
    return HeaderStackJson(node.text("name"), node.text("header_type"), ids, node.source())


def read_union(node: Node) -> HeaderUnionJson:
    """Return a header union. Raises: ProgramError (wrong shape)."""
    ids = tuple(integer(item, f"{node.path}.header_ids") for item in node.array("header_ids"))
    return HeaderUnionJson(node.text("name"), node.text("union_type"), ids, node.source())


def read_field_list(node: Node) -> FieldListJson:
    """Return a field list. Raises: ProgramError (wrong shape)."""
    elements = tuple(operand(item, f"{node.path}.elements") for item in node.array("elements"))
    return FieldListJson(node.number("id"), node.optional_text("name") or "", elements, node.source())


def read_learn_list(node: Node) -> LearnListJson:
    """Return a learn list. Raises: ProgramError (wrong shape)."""
    elements = tuple(operand(item, f"{node.path}.elements") for item in node.array("elements"))
    return LearnListJson(node.number("id"), node.text("name"), elements, node.source())


def read_meter(node: Node) -> MeterJson:
    """Return a meter array. Raises: ProgramError (wrong shape)."""
    direct = node.flag("is_direct")
    return MeterJson(
        name=node.text("name"),
        id=node.number("id"),
        type=node.text("type"),
        rate_count=node.number("rate_count"),
        size=node.number("size") if node.has("size") else 0,
        binding=node.text("binding") if direct else None,
        target=field_operand(node.array("result_target"), node.path) if direct else None,
        source=node.source(),
    )
