# SPDX-License-Identifier: Apache-2.0
"""Random controls: a row of stages, each of which continues with the next or, after some actions, with a later one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.builder import Json, ProgramBuilder, assign, hexstr, primitive
from ..core.builder import field as field_json
from .shape import REPORT, ExpressionMaker, Shape, constant, is_valid
from .statements import BodyMaker, adding, operand, standard

PARAMETER_BITS = (1, 9, 16, 33, 64, 130)
RANGE_BITS = 64  # wider range keys are not compiled
MAX_SIZE = 64


@dataclass
class Code:
    """What controls share: actions, and the numbers of nodes."""

    actions: list[Json] = field(default_factory=list)
    nodes: int = 0
    direct_counters: list[Json] = field(default_factory=list)

    def action(self, params: Sequence[int], primitives: list[Json]) -> Json:
        """Declare an action with parameters of so many bits."""
        number = len(self.actions)
        runtime_data = [{"name": f"p{i}", "bitwidth": bits} for i, bits in enumerate(params)]
        action = {"name": f"act{number}", "id": number, "runtime_data": runtime_data, "primitives": primitives}
        self.actions.append(action)
        return action

    def number(self) -> int:
        """Return the next node's number."""
        self.nodes += 1
        return self.nodes


class PipelineMaker:
    """Makes one control from its end to its beginning."""

    def __init__(self, rng: random.Random, shape: Shape, code: Code, *, egress: bool) -> None:
        self._rng, self._shape, self._code, self._egress = rng, shape, code, egress
        self._tables: list[Json] = []
        self._conditionals: list[Json] = []
        self._calls: list[Json] = []
        self._stages: list[str | None] = []

    def pipeline(self, stages: int) -> Json:
        """Return a control of so many stages; egress ends with the report."""
        entry = self._report() if self._egress else None
        for _ in range(stages):
            kinds = [self._guarded, self._guarded, self._keyed_anywhere, self._headers, self._either]
            self._stages.append(entry)
            entry = self._rng.choice(kinds)(entry)
        if not self._egress:
            sent = self._code.action([], [assign(standard("egress_spec"), hexstr(1))])
            entry = self._keyless(sent, entry)
        return {
            "name": "egress" if self._egress else "ingress",
            "id": int(self._egress),
            "init_table": entry,
            "tables": self._tables,
            "action_profiles": [],
            "conditionals": self._conditionals,
            "action_calls": self._calls,
        }

    def _body(self, headers: Sequence[str], params: Sequence[int] = ()) -> list[Json]:
        maker = BodyMaker(self._rng, self._shape, headers, params, egress=self._egress)
        return maker.run(self._rng.randrange(1, 5))

    def _report(self) -> str:
        body = [primitive("add_header", {"type": "header", "value": REPORT})]
        known = {o.json["value"][1]: o.json for o in self._shape.operands(egress=True)}
        for each in self._shape.headers[REPORT]:
            value = known.get(each.name, hexstr(0))
            body.append(assign(field_json(REPORT, each.name), operand(value)))
        return self._keyless(self._code.action([], body), None)

    def _guarded(self, following: str | None) -> str:
        """`if (h.isValid())` around a table or an action that uses its fields."""
        header = self._rng.choice([*self._shape.parsed, *self._shape.parsed[:2]])
        if self._rng.random() < 0.5:
            inside = self._keyed([header], following)
        else:
            inside = self._keyless(self._code.action([], self._body([header])), following)
        return self._condition(is_valid(header), inside, following)

    def _keyed_anywhere(self, following: str | None) -> str:
        return self._keyed([], following)

    def _headers(self, following: str | None) -> str:
        header = self._rng.choice(self._shape.parsed[1:])
        body = adding(self._rng, self._shape, header, egress=self._egress)
        added = self._keyless(self._code.action([], body), following)
        removed = following
        if self._rng.random() < 0.5:
            gone = self._code.action([], [primitive("remove_header", {"type": "header", "value": header})])
            removed = self._keyless(gone, following)
        return self._condition(is_valid(header), removed, added)

    def _either(self, following: str | None) -> str:
        make = ExpressionMaker(self._rng, self._shape.operands(egress=self._egress), list(self._shape.headers))
        branches = [self._keyless(self._code.action([], self._body([])), following) for _ in range(2)]
        condition = self._rng.choice([make.condition, make.balanced])()
        return self._condition(condition, branches[0], self._rng.choice([branches[1], following]))

    def _condition(self, condition: Json, yes: str | None, no: str | None) -> str:
        number = self._code.number()
        node = {"name": f"node{number}", "id": number, "expression": condition, "true_next": yes, "false_next": no}
        self._conditionals.append(node)
        return str(node["name"])

    def _keyless(self, action: Json, following: str | None) -> str:
        number = self._code.number()
        if self._rng.random() < 0.3:
            call = {"name": f"call{number}", "id": number, "action_id": action["id"], "next_node": following}
            self._calls.append(call)
            return str(call["name"])
        table = ProgramBuilder.table(f"tbl{number}", number, action["name"])
        table["action_ids"] = [action["id"]]
        table["default_entry"]["action_id"] = action["id"]
        self._finish(table, [action], [following])
        return str(table["name"])

    def _keyed(self, headers: Sequence[str], following: str | None) -> str:
        """A table with keys, whose actions may use the fields of `headers`."""
        number, rng = self._code.number(), self._rng
        params = [rng.choices(PARAMETER_BITS, k=rng.randrange(3)) for _ in range(rng.choice([1, 2, 3]))]
        actions = [self._code.action(bits, self._body(headers, bits)) for bits in params]
        table = ProgramBuilder.table(f"t{number}", number, actions[0]["name"])
        table["key"] = self._keys(headers or self._shape.parsed[:2])
        kinds = [key["match_type"] for key in table["key"]]
        table["match_type"] = next((kind for kind in ("range", "ternary", "lpm") if kind in kinds), "exact")
        table["max_size"] = MAX_SIZE
        default = rng.choice(actions)
        table["default_entry"] = {
            "action_id": default["id"],
            "action_const": False,
            "action_data": [hex(constant(rng, p["bitwidth"])) for p in default["runtime_data"]],
            "action_entry_const": False,
        }
        if rng.random() < 0.5:
            table["with_counters"] = True
            name = f"d{number}"
            self._code.direct_counters.append({"name": name, "is_direct": True, "binding": table["name"]})
        self._finish(table, actions, [rng.choice([following, following, *self._stages]) for _ in actions])
        if rng.random() < 0.3:
            table["next_tables"] = {"__HIT__": following, "__MISS__": rng.choice(self._stages)}
        return str(table["name"])

    def _finish(self, table: Json, actions: list[Json], successors: Sequence[str | None]) -> None:
        table["action_ids"] = [action["id"] for action in actions]
        table["actions"] = [action["name"] for action in actions]
        table["next_tables"] = dict(zip(table["actions"], successors, strict=True))
        table["base_default_next"] = successors[0]
        self._tables.append(table)

    def _keys(self, headers: Sequence[str]) -> list[Json]:
        rng = self._rng
        targets = [(name, f.name, f.bits) for name in headers for f in self._shape.headers[name] if not f.signed]
        chosen = rng.sample(targets, min(len(targets), rng.choice([1, 1, 1, 2, 3])))
        if rng.random() < 0.2:
            chosen.append(rng.choice([("standard_metadata", "ingress_port", 9), ("scalars", "m8", 8)]))
        if rng.random() < 0.2:
            chosen.append((rng.choice(self._shape.parsed), "$valid$", 1))
        kinds = ["exact", "exact", "lpm", "ternary", "range"] if len(chosen) == 1 else ["exact", "ternary", "range"]
        keys = []
        for header, name, bits in chosen:
            kind = "exact" if name == "$valid$" else rng.choice(kinds)
            whole = bits % 8 == 0 or not self._shape.guarded
            if (kind == "range" and bits > RANGE_BITS) or (kind == "lpm" and not whole):
                kind = "ternary"
            keys.append({"match_type": kind, "name": f"{header}.{name}", "target": [header, name], "mask": None})
        return keys
