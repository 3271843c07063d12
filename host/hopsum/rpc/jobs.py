# SPDX-License-Identifier: Apache-2.0
"""The operator's calls: make jobs, look at them, delete them; and what a message is as plain values."""

from __future__ import annotations

from collections.abc import MutableMapping, MutableSequence, Sequence
from typing import Any, Final

from hopsum.rpc import control_pb2 as pb
from hopsum.rpc.channel import CALL_S, Channel
from hopsum.rpc.services import JOBS

CHANGE_S: Final = 30.0
"""Deadline of a call that writes switches."""


class JobsClient:
    """The administrator at a controller. All methods raise ControllerError, ControllerUnreachable without an answer.

    Args:
        token: the administrator's; empty where the controller asks for none.
    """

    def __init__(self, channel: Channel, token: str = "") -> None:
        self._channel = channel
        self._token = token

    def create(
        self,
        name: str,
        workers: int,
        slots: int,
        *,
        table: Sequence[int] | None = None,
        table16: Sequence[int] | None = None,
        quorum: int | None = None,
        min_quorum: int | None = None,
        switch: str | None = None,
        lease_s: float | None = None,
        observers: int = 0,
        tree: bool = False,
    ) -> pb.CreateReply:
        """Make a job; the reply has the token that its workers join with, which nobody is told again.

        Args:
            table, table16: of the codec, see `hopsum.codec.job_tables`; None for codecs that look nothing up.
            quorum: workers that complete a sum; all if left out. min_quorum: that a flush completes it with; 1.
            switch: by name; the controller chooses if left out.
            lease_s: how long a silent worker is waited for; the controller's if left out.
            tree: over a spine and all leaves below it, though one switch would do; `switch` is the spine then.
        """
        request = pb.CreateRequest(
            name=name,
            workers=workers,
            slots=slots,
            table=table,
            table16=table16,
            quorum=quorum,
            min_quorum=min_quorum,
            switch=switch,
            lease_s=lease_s,
            observers=observers,
            tree=tree,
        )
        reply: pb.CreateReply = self._call("Create", request, CHANGE_S)
        return reply

    def jobs(self) -> list[pb.Job]:
        """Return all jobs."""
        return list(self._call("List", pb.ListRequest()).jobs)

    def job(self, name: str) -> pb.Job:
        """Return one job."""
        found: pb.Job = self._call("Show", pb.ShowRequest(name=name))
        return found

    def delete(self, name: str) -> None:
        """End a job; its workers hear of it with their next heartbeat."""
        self._call("Delete", pb.DeleteRequest(name=name), CHANGE_S)

    def switches(self) -> list[pb.Switch]:
        """Return all switches."""
        return list(self._call("Switches", pb.SwitchesRequest()).switches)

    def _call(self, name: str, request: Any, timeout_s: float = CALL_S) -> Any:
        return self._channel.call(JOBS, name, request, secret=self._token, timeout_s=timeout_s)


def word_of(enum: Any, number: int) -> str:
    """Return a value of an enum as a word, "running"; its number where this version has no name for it.

    Args:
        enum: its descriptor, such as `control_pb2.JobState.DESCRIPTOR`.
    """
    value = enum.values_by_number.get(number)
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return str(number) if value is None else str(value.name).removeprefix(prefix).lower()


def as_values(message: Any) -> dict[str, Any]:
    """Return a message as what JSON can hold: all its fields by name, states as words, optional ones that lack None.

    Of texts, some of which workers wrote, what a terminal may obey is escaped.
    """
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if isinstance(value, str):
            value = _escaped(value)
        elif isinstance(value, MutableMapping):
            value = {_escaped(key): each for key, each in sorted(value.items())}
        elif isinstance(value, MutableSequence):
            value = [as_values(each) if field.message_type else _escaped(each) for each in value]
        elif field.message_type is not None:
            value = as_values(value) if message.HasField(field.name) else None
        elif field.enum_type is not None:
            value = word_of(field.enum_type, value)
        elif field.containing_oneof is not None and not message.HasField(field.name):
            value = None
        values[field.name] = value
    return values


def _escaped(value: Any) -> Any:
    if not isinstance(value, str) or value.isprintable():
        return value
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in value)
