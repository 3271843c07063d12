# SPDX-License-Identifier: Apache-2.0
"""The membership of a job: a worker's description of its job, and its JSON format::

  {"job": name, "generation": int, "slots": int, "window": int, "quorum": int, "table": [16 ints] or null,
   "table16": [16 ints] or null, "wire_version": int, "switch": {"ip": str, "udp_port": int},
   "workers": [{"rank": int, "ip": str, "udp_port": int, "send_to": {"ip": str, "udp_port": int},
                "leaf": int where the worker is below a leaf of a tree,
                "side_port": int and "side_ip": str, each where there is one}, ...],
   "table4": [31 ints], "table3": [15 ints], "table2": [7 ints], each left out where there is none,
   "ranks": int, left out where each rank has a worker in this generation,
   "code_group": int, left out where it is 512,
   "ops": [names], left out where the switch sums by all operations,
   "side_key": 64 hexadecimal digits, where workers have side channels,
   "resume": null, or left out, or {"base": int, "start": int or null, "start_generation": int, "allreduces": int or
   null,
              "replaced": [ranks], "decided": [{"first": int, "end": int, "ranks": [int, ...]}, ...]},
   "further_shards": [memberships of the same job, generation, ranks and tables], left out where there are none}

A job may have several shards, each a switch or a tree, which sums every k-th chunk of a vector. The document describes
shard 0, and `further_shards` describes shards 1 .. k - 1.

`table` has the 16 values of LOOKUP_ADD8 for 4-bit codes, each 0..255, and `table16` those of LOOKUP_ADD16, each
0..65535. A table of results that are codes, `table4`, `table3` or `table2` for codes of b bits, has 2^b values of
-128..127, then 2^b - 1 thresholds of 1..127 in ascending order, with repetitions. The code of a sum is the number of
thresholds that are at most (sum + 128) >> 1.

The control plane writes this format and workers read it, from a file or from the controller's answer. The control plane
writes a file atomically, so a file that cannot be parsed is an error at once, and workers wait only for a missing file.
The file is a secret of the job's workers: a process that knows `side_key` is a member of the generation on side
channels.
"""

from __future__ import annotations

import ipaddress
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from hopsum_base.errors import HopsumError
from hopsum_wire import CODE_GROUPS, LANE_GROUP_CODES, MAX_SLOTS, MAX_WORKERS, WIRE_VERSION, Op
from hopsum_wire.generations import MAX_SHARDS, Decided, Resume
from hopsum_wire.payload import SHAPES, TABLE_NAMES, Shape

SIDE_KEY_BYTES: Final = 32
_POLL_S: Final = 0.05
_LIMITS: Final = {
    "udp_port": (1, 65535),
    "side_port": (1, 65535),
    "generation": (1, (1 << 32) - 1),
    "slots": (1, MAX_SLOTS),
}
_ALWAYS: Final = ("table", "table16")
"""The tables that every document has, null for none."""
_POSITION_MAX: Final = (1 << 63) - 1
_RUNS_MAX: Final = 1 << 20


class MembershipError(HopsumError):
    """A membership file that is missing, malformed, or not for this worker. The message has the remedy."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An IPv4 address and a UDP port."""

    ip: str
    udp_port: int

    @property
    def address(self) -> tuple[str, int]:
        """Return the pair (IPv4 address, UDP port) of a socket address."""
        return self.ip, self.udp_port

    def __str__(self) -> str:
        return f"{self.ip}:{self.udp_port}"


@dataclass(frozen=True, slots=True)
class RankEndpoint:
    """One rank: the endpoint that the switch admits, and the endpoint to which the rank sends.

    The latter is the switch's service unless the switch listens on ordinary UDP sockets.
    """

    rank: int
    endpoint: Endpoint
    send_to: Endpoint
    side_port: int | None = None
    """TCP port at which peers fetch results that the switch no longer has, or None without a side channel.

    Shard 0's channel serves all shards of a job.
    """
    side_ip: str | None = None
    """IPv4 address of the side channel, or None for the endpoint's."""
    leaf: int | None = None
    """Number of the rank's leaf in a tree, or None at the root, where all sums are complete."""


@dataclass(frozen=True, slots=True)
class JobMembership:
    """A job in one generation, the same for all its workers."""

    job: str
    generation: int
    slots: int
    window: int
    """Most packets that a worker has in flight, 1..slots, the same on all ranks."""
    quorum: int
    """Number of workers that complete a sum."""
    tables: Mapping[str, tuple[int, ...]] = field(hash=False)
    """Lookup tables by name (`TABLE_NAMES`), see the module's format."""
    switch: Endpoint
    """The source of results."""
    workers: tuple[RankEndpoint, ...]
    """The workers of this generation, in the order of their ranks."""
    resume: Resume | None = None
    """The continuation of the stream of earlier generations, or None at the beginning of the stream."""
    code_group: int = LANE_GROUP_CODES
    """Number of 4-bit codes in a group of the switch's program (`hopsum_wire.payload`): 512 on software switches, the
    codes of half a pass on Tofino. Workers pack codes in such groups; lanes do not depend on it.
    """
    ops: frozenset[Op] = frozenset(Op)
    """Operations of the switch's program. A worker whose codec needs another operation fails before it sends."""
    side_key: bytes | None = field(default=None, repr=False)
    """The key by which workers of this generation know each other on side channels, 32 bytes. None: it was left out."""
    further_shards: tuple[JobMembership, ...] = ()
    """The memberships of the job at shards 1 .. k - 1, whose own `further_shards` are empty."""
    ranks: int = 0
    """The job's ranks are 0 .. ranks - 1, whether or not they have a worker in this generation. 0: all have one."""

    @property
    def size(self) -> int:
        """Return the number of the job's ranks, for which its tables are made."""
        return self.ranks or len(self.workers)

    @property
    def absent(self) -> frozenset[int]:
        """Return the ranks that have no worker in this generation."""
        return frozenset(range(self.size)) - {worker.rank for worker in self.workers}

    @property
    def shards(self) -> tuple[JobMembership, ...]:
        """Return the job's memberships by shard, this one first. Chunk c of a vector belongs to shard c mod k."""
        return (self, *self.further_shards)

    @property
    def side_channels(self) -> dict[int, tuple[str, int]] | None:
        """Return (IPv4 address, TCP port) by rank, or None unless all workers have a side channel."""
        found = {
            each.rank: (each.side_ip or each.endpoint.ip, each.side_port)
            for each in self.workers
            if each.side_port is not None
        }
        return found if len(found) == len(self.workers) else None

    def worker(self, rank: int) -> RankEndpoint:
        """Return the worker of a rank. Raises MembershipError if the job has no such rank, or nobody there now."""
        if not 0 <= rank < self.size:
            raise MembershipError(
                f"rank {rank} is not in job {self.job!r}: it has ranks 0 .. {self.size - 1}. "
                "Start as many workers as the job was made for, or make the job again"
            )
        found = next((worker for worker in self.workers if worker.rank == rank), None)
        if found is None:
            raise MembershipError(
                f"job {self.job!r} has no worker of rank {rank} in generation {self.generation}: connect again"
            )
        return found

    def rack(self, rank: int) -> tuple[int, ...]:
        """Return the ranks whose UPDATEs the switch of a rank collects: all, or in a tree those of the rank's leaf.

        Raises MembershipError as `worker` does.
        """
        leaf = self.worker(rank).leaf
        return tuple(each.rank for each in self.workers if leaf is None or each.leaf == leaf)


def membership_document(membership: JobMembership) -> dict[str, Any]:
    """Return a membership as the JSON object that `parse_membership` reads. See the module's format."""
    resume = None if membership.resume is None else asdict(membership.resume)
    if resume is not None:
        # The controller keeps one `resume` for all shards; a worker finds each shard's in its own object.
        del resume["further_shards"]
    # Keys of later versions are written only where they differ from the default: an older worker reads the rest.
    optional = {
        "ranks": membership.ranks if membership.absent else None,
        "code_group": None if membership.code_group == LANE_GROUP_CODES else membership.code_group,
        "ops": None if membership.ops == frozenset(Op) else [op.name for op in sorted(membership.ops)],
        "side_key": None if membership.side_key is None else membership.side_key.hex(),
        "resume": resume,
        "further_shards": [membership_document(each) for each in membership.further_shards] or None,
    }
    return {
        "job": membership.job,
        "generation": membership.generation,
        "slots": membership.slots,
        "window": membership.window,
        "quorum": membership.quorum,
        **dict.fromkeys(_ALWAYS),
        **{name: list(table) for name, table in membership.tables.items()},
        "wire_version": WIRE_VERSION,
        "switch": asdict(membership.switch),
        "workers": [_worker_document(worker) for worker in membership.workers],
        **{key: value for key, value in optional.items() if value is not None},
    }


def format_membership(membership: JobMembership, *, indent: int | None = None) -> str:
    """Return a membership as JSON text, which `parse_membership` reads."""
    return json.dumps(membership_document(membership), indent=indent)


def _worker_document(worker: RankEndpoint) -> dict[str, Any]:
    optional = {"leaf": worker.leaf, "side_port": worker.side_port, "side_ip": worker.side_ip}
    present = {key: value for key, value in optional.items() if value is not None}
    return {"rank": worker.rank, **asdict(worker.endpoint), "send_to": asdict(worker.send_to), **present}


def read_membership(path: str | Path, *, wait_s: float = 0.0) -> JobMembership:
    """Read a membership file, waiting up to `wait_s` seconds for one that is not there yet.

    Raises:
        MembershipError: no file in time, or one that is malformed. The message names the file and the key.
    """
    path, deadline = Path(path), time.monotonic() + wait_s
    while True:
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise MembershipError(
                    f"no membership file {path} within {wait_s:g} s: the controller writes it when it has made "
                    "the job; check that it runs and writes to this path"
                ) from None
            # The file appears whole, by a rename: polling for the name is enough.
            time.sleep(min(_POLL_S, left_s))
        except (OSError, UnicodeDecodeError) as error:
            raise MembershipError(f"membership file {path} cannot be read: {error}") from error
        else:
            return parse_membership(text, where=f"membership file {path}")


def parse_membership(text: str, *, where: str = "membership") -> JobMembership:
    """Return the membership that a JSON text holds. Keys that this version does not know are ignored.

    Raises:
        MembershipError: no JSON, a missing key, or a value of a wrong type or out of range. `where` is named.
    """
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise MembershipError(f"{where} is no JSON: {error}") from error
    return _membership(_Object(document, where, ""), sharded=True)


def _membership(root: _Object, *, sharded: bool) -> JobMembership:
    """Return the membership of an object. With `sharded` it may have further shards."""
    # Before everything else: the other keys may mean something else in another version.
    version = root.integer("wire_version", 0, 255)
    if version != WIRE_VERSION:
        raise MembershipError(
            f"{root.where} is for wire version {version}, this hopsum speaks {WIRE_VERSION}: "
            "install the same hopsum on the controller and on all workers"
        )
    if root.value.get("table6") is not None:
        raise MembershipError(
            f"{root.where}: table6 is of an older hopsum: its switch sends results of 6 bits (LOOKUP_ADD6), which no "
            "program has any more. Install the same hopsum on the controller and on all workers, and make the job "
            "again with a codec that has result_bits=4 in place of result_bits=6"
        )
    workers = tuple(_worker(entry) for entry in root.objects("workers", MAX_WORKERS))
    ranks = [worker.rank for worker in workers]
    size = root.integer("ranks", len(workers), MAX_WORKERS, len(workers))
    if len(set(ranks)) < len(ranks) or max(ranks) >= size:
        each = "each once" if size == len(ranks) else "each once at most"
        raise root.wrong("workers", f"has ranks {ranks}, not 0 .. {size - 1}, {each}")
    slots = root.integer("slots", *_LIMITS["slots"])
    shards = root.objects("further_shards", MAX_SHARDS - 1) if sharded and "further_shards" in root.value else []
    made = JobMembership(
        job=root.text("job"),
        generation=root.integer("generation", *_LIMITS["generation"]),
        slots=slots,
        window=root.integer("window", 1, slots),
        quorum=root.integer("quorum", 1, len(workers)),
        tables=_tables(root),
        switch=_endpoint(root.object("switch")),
        workers=tuple(sorted(workers, key=lambda worker: worker.rank)),
        resume=_resume(root, slots, size),
        code_group=_code_group(root),
        ops=_ops(root),
        side_key=_side_key(root),
        further_shards=tuple(_membership(each, sharded=False) for each in shards),
        ranks=size if size > len(workers) else 0,
    )
    sides = list((made.side_channels or {}).values())
    if len(set(sides)) < len(sides):
        raise root.wrong("workers", f"has side channels {sides}, several at the same address")
    for number, shard in enumerate(made.further_shards, 1):
        _require_same_job(root, made, shard, number)
    return made


def _require_same_job(root: _Object, first: JobMembership, shard: JobMembership, number: int) -> None:
    """Raise MembershipError unless a further shard is of the same job, and nothing of it is another shard's place."""
    for name in ("job", "generation", "quorum", "tables", "code_group"):
        here, there = getattr(first, name), getattr(shard, name)
        if here != there:
            raise root.wrong("further_shards", f"has {name} {there} at shard {number} and {here} at shard 0")
    facts = [(len(each.workers), each.side_channels is not None, each.resume is not None) for each in (first, shard)]
    if facts[0] != facts[1]:
        names = "workers, side channels, resume"
        raise root.wrong("further_shards", f"has {facts[1]} ({names}) at shard {number} and {facts[0]} at shard 0")
    for worker in first.workers:
        # Two shards over one pair of sockets could not be told apart by a worker.
        paths = [(each.worker(worker.rank).endpoint, each.worker(worker.rank).send_to) for each in first.shards]
        if len(set(paths)) < len(paths):
            twice = f"has rank {worker.rank} at {paths[number][0]} send to {paths[number][1]} in two shards"
            raise root.wrong("further_shards", twice)


def _code_group(root: _Object) -> int:
    """Return the codes of a group. What is left out is the software switches'."""
    group = int(root.integer("code_group", 1, max(CODE_GROUPS), LANE_GROUP_CODES))
    if group not in CODE_GROUPS:
        raise root.wrong("code_group", f"is {group}, none of {', '.join(map(str, CODE_GROUPS))}")
    return group


def _ops(root: _Object) -> frozenset[Op]:
    """Return the operations of the switch. Left out, they are all operations."""
    names = root.value.get("ops", list(Op.__members__))
    if not isinstance(names, list) or not names or not all(name in list(Op.__members__) for name in names):
        raise root.wrong("ops", f"is {names}, no list of some of {', '.join(Op.__members__)}")
    return frozenset(Op[name] for name in names)


def _side_key(root: _Object) -> bytes | None:
    """Return the key of the side channels, None where it is left out. No message has it."""
    if "side_key" not in root.value:
        return None
    text = root.value["side_key"]
    if not isinstance(text, str) or not re.fullmatch(f"[0-9a-f]{{{2 * SIDE_KEY_BYTES}}}", text):
        raise root.wrong("side_key", f"is no text of {2 * SIDE_KEY_BYTES} hexadecimal digits")
    return bytes.fromhex(text)


def _worker(entry: _Object) -> RankEndpoint:
    rank = entry.integer("rank", 0, MAX_WORKERS - 1)
    side_port = entry.integer("side_port", *_LIMITS["side_port"], None)
    side_ip = _ip(entry, "side_ip") if "side_ip" in entry.value else None
    leaf = entry.integer("leaf", 0, MAX_WORKERS - 1, None)
    return RankEndpoint(rank, _endpoint(entry), _endpoint(entry.object("send_to")), side_port, side_ip, leaf)


def _resume(root: _Object, slots: int, workers: int) -> Resume | None:
    """Return how a job continues, None where it begins. Raises MembershipError for what no controller decides."""
    if root.value.get("resume") is None:
        return None
    entry, window = root.object("resume"), root.integer("window", 1, slots)
    base = entry.integer("base", 0, _POSITION_MAX)
    # Slot 0 begins with round 1 at the base (rule N4).
    if base % window:
        raise entry.wrong("base", f"is {base}, no multiple of the window {window}")
    new = entry.value.get("start") is not None
    replaced = _ranks(entry, "replaced", workers)
    start_generation = entry.integer("start_generation", int(new), _LIMITS["generation"][1] if new else 0)
    if bool(replaced) != new:
        raise entry.wrong("replaced", f"is {list(replaced)} with {'a' if new else 'no'} start")
    decided = tuple(_decided(each, workers) for each in entry.objects("decided", _RUNS_MAX, least=0))
    ends = [base, *(run.end for run in decided)]
    # Sorted and disjoint, so that a worker walks the runs and its own results once.
    if any(run.first < end for run, end in zip(decided, ends, strict=False)):
        raise entry.wrong("decided", f"is not sorted, overlaps, or begins before base {base}")
    return Resume(
        base=base,
        start=entry.integer("start", base, _POSITION_MAX) if new else None,
        start_generation=start_generation,
        allreduces=entry.integer("allreduces", 0, _POSITION_MAX) if new else None,
        replaced=replaced,
        decided=decided,
    )


def _decided(entry: _Object, workers: int) -> Decided:
    first = entry.integer("first", 0, _POSITION_MAX)
    ranks = _ranks(entry, "ranks", workers)
    if not ranks:
        raise entry.wrong("ranks", "is empty")
    return Decided(first, entry.integer("end", first + 1, _POSITION_MAX), ranks)


def _ranks(entry: _Object, key: str, workers: int) -> tuple[int, ...]:
    found = entry.get(key, lambda value: isinstance(value, list), "a list")
    if not all(type(rank) is int and 0 <= rank < workers for rank in found) or len(set(found)) < len(found):
        raise entry.wrong(key, f"is {found!r:.80}, not ranks of 0 .. {workers - 1}, each once")
    return tuple(found)


def _endpoint(entry: _Object) -> Endpoint:
    return Endpoint(_ip(entry, "ip"), entry.integer("udp_port", *_LIMITS["udp_port"]))


def _ip(entry: _Object, key: str) -> str:
    ip = entry.text(key)
    try:
        ipaddress.IPv4Address(ip)
    except ipaddress.AddressValueError:
        raise entry.wrong(key, f"is {ip!r}, no IPv4 address") from None
    return ip


def _tables(root: _Object) -> dict[str, tuple[int, ...]]:
    """Return the lookup tables by name, without those that are null or left out."""
    found = {}
    for op, name in TABLE_NAMES.items():
        # No controller leaves `table` out.
        default = () if name == "table" else (None,)
        table = root.get(name, lambda value: value is None or isinstance(value, list), "a list or null", *default)
        if table is not None:
            found[name] = _table(root, name, table, SHAPES[op])
    return found


def _table(root: _Object, name: str, table: list[Any], shape: Shape) -> tuple[int, ...]:
    count = 1 << shape.code_bits
    low, high, thresholds = (-128, 127, table[count:]) if shape.down_codes else (0, (1 << shape.lane_bits) - 1, [])
    fits = (
        len(table) == (2 * count - 1 if shape.down_codes else count)
        and all(type(each) is int for each in table)
        and all(low <= value <= high for value in table[:count])
        and all(1 <= threshold <= 127 for threshold in thresholds)
        and thresholds == sorted(thresholds)
    )
    if not fits:
        then = f", then {count - 1} thresholds of 1..127 that do not fall" if shape.down_codes else ""
        raise root.wrong(name, f"is {table}, not {count} integers of {low}..{high}{then}")
    return tuple(table)


@dataclass(frozen=True, slots=True)
class _Object:
    """One JSON object: `path` is its place in the document `where`."""

    value: Any
    where: str
    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.value, dict):
            raise MembershipError(f"{self.where}: {self.path or 'the document'} is no JSON object: {self.value!r:.80}")

    def get(self, key: str, fits: Callable[[Any], bool], kind: str, *default: Any) -> Any:
        """Look a value up. A key that is missing is an error unless a default is given."""
        if key not in self.value:
            if default:
                return default[0]
            raise self.wrong(key, "is missing")
        found = self.value[key]
        if not fits(found):
            raise self.wrong(key, f"is {found!r:.80}, not {kind}")
        return found

    def integer(self, key: str, low: int, high: int, *default: int | None) -> Any:
        # `type`, not isinstance: True is no integer here.
        fits = lambda found: type(found) is int and low <= found <= high  # noqa: E731
        return self.get(key, fits, f"an integer of {low} .. {high}", *default)

    def text(self, key: str) -> str:
        return str(self.get(key, lambda found: isinstance(found, str) and bool(found), "a text"))

    def object(self, key: str) -> _Object:
        return _Object(self.get(key, lambda _: True, ""), self.where, self._at(key))

    def objects(self, key: str, most: int, *, least: int = 1) -> list[_Object]:
        fits = lambda found: isinstance(found, list) and least <= len(found) <= most  # noqa: E731
        found = self.get(key, fits, f"a list of {least} to {most} entries")
        return [_Object(entry, self.where, f"{self._at(key)}[{index}]") for index, entry in enumerate(found)]

    def wrong(self, key: str, what: str) -> MembershipError:
        return MembershipError(
            f"{self.where}: {self._at(key)} {what}. The controller writes this file: do not edit it by hand, "
            "and use the same hopsum on both sides"
        )

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key
