# SPDX-License-Identifier: Apache-2.0
"""Half of a pass: ingress or egress, from bytes to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hopsum_tna.dump import Node, TnaError
from hopsum_tna.externs import Undefined
from hopsum_tna.record_layout import PIPE, VALID, Fields, Record, Truth, Types, flat_fields, headers
from hopsum_tna.statements import ExitError
from hopsum_tna.tna_block import AT, DATA, OUT, Block, BlockState, TooShortError, compile_states

_NO_MATCH, _PARTIAL_HEADER = 1, 2
_TEMPLATES = 16
# The paths that the architecture sets to 0 at the start. Other unwritten fields are undefined.
_ZERO = ("tm", "deparser", "port")


@dataclass
class PassResult:
    """A packet after a control: its fields, and the frame that the deparser makes of it."""

    fields: Fields
    frame: bytes


class Half:
    """Parser, control and deparser of one direction."""

    def __init__(self, nodes: Sequence[Node], types: Types, state: BlockState, undefined: Undefined) -> None:
        parser, control, deparser = nodes
        self.name = control["name"]
        parsing, main, writing = (Block(node, types, state, undefined) for node in nodes)
        self._states = compile_states(parsing, parser["states"])
        self._main = main.statements.compile(main.scope, control["body"])
        self._write = writing.statements.compile(writing.scope, deparser["body"])
        self._roots = {**parsing.roots, **main.roots, **writing.roots}
        self._handles_errors = '"parser_err"' in repr(control).replace("'", '"')
        self._undefined = undefined
        self._templates = [self._template() for _ in range(_TEMPLATES)]
        self._next = 0
        intrinsic = self._roots["in"]
        assert isinstance(intrinsic, Record)
        self.intrinsic = intrinsic

    def run(self, frame: bytes, port_metadata: bytes, known: dict[str, int], pipe: int = 0) -> PassResult | None:
        """Run a frame through parser, control and deparser in `pipe`. Return None when the parser dropped the frame.

        `port_metadata` are the bytes between intrinsic metadata and frame. `known` are fields of the intrinsic
        metadata. The others are undefined. Raises TnaError for an unknown field. A drop by the program is in the
        fields.
        """
        # Undefined fields have other values from packet to packet, without drawing hundreds for each one.
        self._next = (self._next + 1) % _TEMPLATES
        fields = dict(self._templates[self._next])
        fields[DATA] = self._intrinsic(fields, known) + port_metadata + frame
        fields[AT], fields[OUT], fields[PIPE] = 0, [], pipe
        if not self._parse(fields):
            return None
        # exit ends the control that it is in. The deparser runs all the same.
        for step in (self._main, self._write):
            try:
                step(fields)
            except ExitError:
                continue
        return PassResult(fields, b"".join(fields[OUT]) + fields[DATA][fields[AT] :])

    def _parse(self, fields: Fields) -> bool:
        name, error = "start", 0
        try:
            while name in self._states:
                do, follow = self._states[name]
                do(fields)
                name = follow(fields)
        except TooShortError:
            error = _PARTIAL_HEADER
        if name == "$no match":
            error = _NO_MATCH
        fields["parser.parser_err"] = error
        # A program that reads parser_err gets the packet. Otherwise the hardware drops it.
        return name != "reject" and (not error or self._handles_errors)

    def _intrinsic(self, fields: Fields, known: dict[str, int]) -> bytes:
        whole = 0
        for name, kind in self.intrinsic.fields:
            width = kind.width  # type: ignore[union-attr]
            value = known[name] if name in known else fields[f"in.{name}"]
            whole = (whole << width) | (value & ((1 << width) - 1))
        unknown = set(known) - {name for name, _ in self.intrinsic.fields}
        if unknown or self.intrinsic.bits % 8:
            raise TnaError(f"intrinsic metadata of {self.name}: {unknown or self.intrinsic.bits}")
        return whole.to_bytes(self.intrinsic.bits // 8, "big")

    def _template(self) -> Fields:
        fields: dict[str, Any] = {}
        for root, kind in self._roots.items():
            for path, leaf in flat_fields(root, kind):
                fields[path] = self._undefined.draw(leaf)
                if root in _ZERO:
                    fields[path] = False if isinstance(leaf, Truth) else 0
            for path, _ in headers(root, kind):
                fields[path + VALID] = False
        if "tm.ucast_egress_port" in fields:
            fields["tm.ucast_egress_port"] = None
        return fields
