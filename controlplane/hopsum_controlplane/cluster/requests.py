# SPDX-License-Identifier: Apache-2.0
"""Requests to the cluster, checked before anything is looked up or allocated."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hopsum_base.shown import shorten
from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.cluster.cluster_config import MAX_LEASE_S, MIN_LEASE_S
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.tokens import INCARNATION_BYTES
from hopsum_controlplane.errors import ControlPlaneError, InvalidRequestError
from hopsum_controlplane.job_spec import (
    MAX_RANK,
    MAX_UDP_PORT,
    NO_TREE_HINT,
    JobSpec,
    why_no_tree,
)
from hopsum_wire import MAX_WORKERS, WIRE_VERSION
from hopsum_wire.generations import MAX_SHARDS
from hopsum_wire.payload import TABLE_NAMES

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The names of jobs, switches, settings and statistics."""
_VERSION_CHARACTERS = 64
_MAX_SETTINGS = 32
_MAX_CODEC_OPTIONS = 4096
# Other members see the settings of a worker in their errors: printable ASCII only, which no terminal obeys.
_SETTING = re.compile(r"[ -~]{0,256}")


def check_tree(spec: JobSpec) -> None:
    """Raise InvalidRequestError for options that a job over a tree of switches cannot have.

    A leaf sends its sum to the spine when all workers of its rack are in it, and a spine does not know the missing
    workers of a rack. So no switch can compare with a quorum over the workers of all racks.
    """
    who = f"job {spec.name!r} over a tree of switches"
    if spec.quorum not in (None, spec.ranks):
        hint = f"all {spec.ranks} workers complete a sum there: leave the quorum out, or use one switch"
        raise InvalidRequestError(f"{who}: quorum {spec.quorum} of {spec.ranks} workers", hint=hint)
    if spec.min_quorum != 1:
        hint = "one that asks closes the sum of its own rack there: leave it out, or use one switch"
        raise InvalidRequestError(f"{who}: min_quorum {spec.min_quorum}", hint=hint)
    if spec.min_workers is not None:
        what = f"{who}: {spec.min_workers}:{spec.ranks} workers"
        raise InvalidRequestError(what, hint="a tree has a fixed number of workers: give one, or use one switch")
    for op in spec.lookups:
        if why := why_no_tree(op):
            raise InvalidRequestError(f"{who}: {TABLE_NAMES[op]}: {why}", hint=NO_TREE_HINT)


def check_job(spec: JobSpec) -> None:
    """Raise InvalidRequestError for the first value of a new job that is wrong, with its numbers and a remedy.

    A job with endpoints of workers is wrong, because a cluster places workers when they join. No switch is looked up.
    """
    if not NAME.fullmatch(spec.name):
        hint = "a name has 1 .. 64 letters, digits, dots, dashes or underscores, and begins with a letter or digit"
        raise InvalidRequestError(f"job name {spec.name!r:.80}", hint=hint)
    if spec.lease_s is not None and not MIN_LEASE_S <= spec.lease_s <= MAX_LEASE_S:
        hint = f"it is {MIN_LEASE_S:g} .. {MAX_LEASE_S:g} seconds"
        raise InvalidRequestError(f"job {spec.name!r}: lease_s {spec.lease_s:g}", hint=hint)
    if spec.children:
        hint = "give their number as `ranks`: a cluster places workers when they join"
        raise InvalidRequestError(f"job {spec.name!r} with places of workers", hint=hint)
    _check_codec(spec)
    _check_fewest(spec)
    _check_shards(spec)
    # The same check as the switch's controller will make of the places too.
    try:
        spec.check()
    except ControlPlaneError as error:
        raise InvalidRequestError(error.what, hint=error.hint) from error


def _check_fewest(spec: JobSpec) -> None:
    who = f"job {spec.name!r}"
    if spec.min_workers is None:
        if spec.replace_s is not None:
            what = f"{who}: replace_s {spec.replace_s:g} with a fixed number of workers, {spec.ranks}"
            raise InvalidRequestError(what, hint="give MIN:MAX workers, or leave it out")
        return
    who = f"{who} of {spec.min_workers}:{spec.ranks} workers"
    if not 1 <= spec.min_workers <= spec.ranks:
        raise InvalidRequestError(who, hint=f"MIN is 1 .. MAX, and MAX at most {MAX_WORKERS}")
    # A generation of MIN workers has to be able to complete a sum.
    for what, count in (("quorum", spec.quorum), ("min_quorum", spec.min_quorum)):
        if count is not None and count > spec.min_workers:
            hint = f"it is at most {spec.min_workers}: so few workers may be there"
            raise InvalidRequestError(f"{who}: {what} {count}", hint=hint)
    if spec.replace_s is not None and not 0 <= spec.replace_s <= MAX_LEASE_S:
        hint = f"it is 0 .. {MAX_LEASE_S:g} seconds"
        raise InvalidRequestError(f"{who}: replace_s {spec.replace_s:g}", hint=hint)


def _check_shards(spec: JobSpec) -> None:
    who, names = f"job {spec.name!r}", ", ".join(spec.shard_switches)
    if not 1 <= spec.shards <= MAX_SHARDS:
        raise InvalidRequestError(f"{who}: {spec.shards} shards", hint=f"a job has 1 .. {MAX_SHARDS}")
    if spec.shard_switches and len(spec.shard_switches) != spec.shards:
        what = f"{who}: {spec.shards} shards at {len(spec.shard_switches)} switches ({names})"
        raise InvalidRequestError(what, hint="name one switch for each shard")
    if twice := [name for name, times in Counter(spec.shard_switches).items() if times > 1]:
        what = f"{who}: switch {twice[0]!r:.80} twice in its {spec.shards} shards ({names:.400})"
        raise InvalidRequestError(what, hint="name each switch once: a shard has a switch of its own")
    if spec.shards == 1:
        if spec.shard_switches:
            hint = "a job on one switch names it with `switch`"
            raise InvalidRequestError(f"{who}: one shard, at switch {names!r:.80}", hint=hint)
        return
    if spec.tree:
        hint = (
            "a shard is one switch: name switches that reach all workers. A tree gives its racks one place each, "
            "and its switches are written one after the other, which several trees of one generation are not"
        )
        raise InvalidRequestError(f"{who}: {spec.shards} shards, and a tree", hint=hint)
    if spec.switch is not None:
        what = f"{who}: {spec.shards} shards, and switch {spec.switch!r:.80}"
        raise InvalidRequestError(what, hint="name the shards' switches, or leave the shards out")


def _check_codec(spec: JobSpec) -> None:
    if spec.codec and not NAME.fullmatch(spec.codec):
        hint = "give the name by which the workers' hopsum knows it, such as thc"
        raise InvalidRequestError(f"job {spec.name!r}: codec {spec.codec!r:.80}", hint=hint)
    if not spec.codec_options:
        return
    what = f"job {spec.name!r}: codec_options {spec.codec_options!r:.80}"
    if not spec.codec:
        raise InvalidRequestError(f"{what} without a codec", hint="give the codec that they are for")
    if len(spec.codec_options) > _MAX_CODEC_OPTIONS:
        hint = f"they have at most {_MAX_CODEC_OPTIONS} characters"
        raise InvalidRequestError(f"{what}: {len(spec.codec_options)} characters", hint=hint)
    try:
        fits = isinstance(json.loads(spec.codec_options), dict) and spec.codec_options.isascii()
    except (ValueError, RecursionError):
        fits = False
    if not fits:
        raise InvalidRequestError(what, hint='they are a JSON object in ASCII, such as {"bits": 8}')


class ShardEndpoint(NamedTuple):
    """The source of a member's datagrams at the switch of one shard, and its TCP port for peers, None for none.

    `mac` is None for switches that make one up.
    """

    ip: str
    udp_port: int
    mac: str | None = None
    side_port: int | None = None


@dataclass(frozen=True)
class JoinRequest:
    """A worker's request for a rank.

    job, token: the job and its token. rank: None leaves the choice to the controller.
    ip, udp_port, mac: the source of its datagrams at the switch; no MAC for switches that make one up.
    side_port: its TCP port for peers, None for none.
    incarnation: 16 random bytes of the worker's process; another process is another worker.
    wire_version, version: of its hopsum.
    report: its results of an ended generation, which it has sealed; None from newcomers.
    settings: names and values that all workers of the job need in common; empty is not compared.
    further: its sources for the job's shards 1 .. k - 1; the fields above are for shard 0.
    caller: IPv4 address of the caller, empty for none.
    """

    job: str
    token: str = field(repr=False)
    rank: int | None
    ip: str
    udp_port: int
    mac: str | None
    side_port: int | None
    incarnation: bytes = field(repr=False)
    wire_version: int
    version: str = ""
    report: Report | None = field(default=None, repr=False)
    settings: Mapping[str, str] = field(default_factory=dict)
    further: tuple[ShardEndpoint, ...] = ()
    caller: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the caller has an address that is neither one of the member's nor a loopback address."""
        own = {place.ip for place in self.endpoints}
        return bool(self.caller) and self.caller not in own and not self.caller.startswith("127.")

    @property
    def endpoints(self) -> tuple[ShardEndpoint, ...]:
        """Return the member's sources of datagrams, by shard."""
        return (ShardEndpoint(self.ip, self.udp_port, self.mac, self.side_port), *self.further)

    def check(self) -> None:
        """Raise InvalidRequestError for the first error. The job, its token and its ranks are not looked up."""
        # First: in another wire version the other fields may have another meaning.
        if self.wire_version != WIRE_VERSION:
            what = f"wire version {self.wire_version} of hopsum {self.version!r:.40}, the switch speaks {WIRE_VERSION}"
            raise self._wrong(what, "install the same hopsum on the controller and on all workers")
        if self.rank is not None and not 0 <= self.rank <= MAX_RANK:
            raise self._wrong(f"rank {self.rank}", f"ranks are 0 .. {MAX_RANK}")
        if len(self.incarnation) != INCARNATION_BYTES:
            raise self._wrong(f"an incarnation of {len(self.incarnation)} bytes", f"it has {INCARNATION_BYTES}")
        if len(self.endpoints) > MAX_SHARDS:
            raise self._wrong(f"places at {len(self.endpoints)} shards", f"a job has at most {MAX_SHARDS}")
        for each in self.endpoints:
            for what, port in (("UDP port", each.udp_port), ("side port", each.side_port)):
                if port is not None and not 1 <= port <= MAX_UDP_PORT:
                    raise self._wrong(f"{what} {port}", f"ports are 1 .. {MAX_UDP_PORT}")
        if len(self.version) > _VERSION_CHARACTERS:
            hint = f"it has at most {_VERSION_CHARACTERS}"
            raise self._wrong(f"a version of {len(self.version)} characters", hint)
        if not self.version.isprintable():
            raise self._wrong(f"a version {self.version!r}", "send printable characters: terminals obey others")
        self._check_settings()
        try:
            for each in self.endpoints:
                ipv4_to_int(each.ip)
                if each.mac is not None:
                    mac_to_int(each.mac)
            if self.report is not None:
                self.report.check()
        except ControlPlaneError as error:
            raise self._wrong(error.what, error.hint) from error

    def _check_settings(self) -> None:
        if len(self.settings) > _MAX_SETTINGS:
            raise self._wrong(f"{len(self.settings)} settings", f"send at most {_MAX_SETTINGS}")
        for name, value in self.settings.items():
            if not NAME.fullmatch(name) or not _SETTING.fullmatch(value):
                hint = "send short names, and values of at most 256 characters of printable ASCII"
                raise self._wrong(f"setting {name!r:.80} = {value!r:.80}", hint)

    def _wrong(self, what: str, hint: str) -> InvalidRequestError:
        return InvalidRequestError(f"join of job {self.job!r:.80}: {what}", hint=hint)


def check_statistics(statistics: Mapping[str, float], most: int = 64) -> None:
    """Raise InvalidRequestError unless these are at most `most` finite numbers with short names."""
    if len(statistics) > most:
        raise InvalidRequestError(f"{len(statistics)} statistics in one heartbeat", hint=f"send at most {most}")
    for name, value in statistics.items():
        if not NAME.fullmatch(name) or not math.isfinite(value):
            raise InvalidRequestError(
                f"statistic {name!r:.80} = {value!r:.40}", hint="send short names and finite numbers"
            )


def printable(text: str, most: int = 300) -> str:
    """Return a text of a client as one line, cut to `most` characters, with spaces for unprintable characters."""
    # One character more than fits, which shows that the text was longer.
    return shorten("".join(each if each.isprintable() else " " for each in text[: most + 1]).strip(), most)
