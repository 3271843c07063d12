# SPDX-License-Identifier: Apache-2.0
"""The typed mirror to IR: everything resolved, everything unsupported refused."""

from __future__ import annotations

from ..errors import ProgramError
from .ir import DeparserIR, PipelineIR, ProgramIR, TableIR
from .ir_parser import ParserIR
from .lower_actions import lower_action
from .lower_parser import lower_parser
from .lower_pipeline import lower_pipeline
from .lower_state import (
    declare_digests,
    declare_field_lists,
    declare_headers,
    declare_meters,
    declare_stacks,
    declare_state,
    declare_unions,
    lower_checksum,
)
from .p4c_json import ProgramJson
from .scope import ProgramScope
from .unsupported import refuse

# Sections of the file that are refused whole, if they list anything.
_REFUSED_SECTIONS = {
    "header_union_stacks": "header union",
    "parse_vsets": "value set",
    "extern_instances": "extern",
}


def lower(program: ProgramJson, digest: str) -> ProgramIR:
    """Return the program with all names resolved. Raises: ProgramError."""
    for section, construct in _REFUSED_SECTIONS.items():
        for item in getattr(program, section):
            raise refuse(construct, item.name or section, item.source)
    scope = ProgramScope()
    declare_headers(program, scope)
    declare_stacks(program, scope)
    declare_unions(program, scope)
    declare_field_lists(program, scope)
    declare_digests(program, scope)
    declare_meters(program, scope)
    declare_state(program, scope)
    for action in program.actions:
        scope.actions_by_id[action.id] = lower_action(action, scope)
    pipelines = {p.name: lower_pipeline(p, scope) for p in program.pipelines}
    return ProgramIR(
        name=program.program or "",
        digest=digest,
        headers=scope.headers,
        fields=tuple(scope.fields.values()),
        errors=dict(program.errors),
        parser=_parser(program, scope),
        ingress=_pipeline(pipelines, "ingress"),
        egress=_pipeline(pipelines, "egress"),
        deparser=_deparser(program, scope),
        tables=_tables(pipelines),
        actions={a.name: a for a in reversed(scope.actions_by_id.values())},
        stacks=scope.stacks,
        unions=scope.unions,
        counters=scope.counters,
        digests={digest.name: digest for digest in scope.digests.values()},
        meters=scope.meters,
        registers=scope.registers,
        calculations=scope.calculations,
        checksums=tuple(lower_checksum(c, scope) for c in program.checksums),
        standard=scope.standard,
    )


def _pipeline(pipelines: dict[str, PipelineIR], name: str) -> PipelineIR:
    if name not in pipelines:
        raise ProgramError(f"the program has no {name} control; compile it with --arch v1model")
    return pipelines[name]


def _parser(program: ProgramJson, scope: ProgramScope) -> ParserIR:
    if len(program.parsers) != 1:
        raise ProgramError(f"the program has {len(program.parsers)} parsers, 1 needed; use --arch v1model")
    return lower_parser(program.parsers[0], scope)


def _deparser(program: ProgramJson, scope: ProgramScope) -> DeparserIR:
    if len(program.deparsers) != 1:
        raise ProgramError(f"the program has {len(program.deparsers)} deparsers, 1 needed; use --arch v1model")
    deparser = program.deparsers[0]
    for primitive in deparser.primitives:
        raise refuse("primitive", f"{primitive.op} in the deparser", primitive.source)
    return DeparserIR(tuple(scope.header(name, None) for name in deparser.order))


def _tables(pipelines: dict[str, PipelineIR]) -> dict[str, TableIR]:
    nodes = [node for pipeline in pipelines.values() for node in pipeline.nodes.values()]
    return {node.name: node for node in nodes if isinstance(node, TableIR)}
