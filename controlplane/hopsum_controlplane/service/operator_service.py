# SPDX-License-Identifier: Apache-2.0
"""The operator's service."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from hopsum_controlplane.cluster.cluster_controller import ClusterController
from hopsum_controlplane.cluster.requests import printable
from hopsum_controlplane.errors import ControlPlaneError, UnauthenticatedError
from hopsum_controlplane.job_spec import JobSpec
from hopsum_controlplane.service.access import Access
from hopsum_controlplane.service.audit_log import write_audit_line
from hopsum_controlplane.service.handlers import Answer, BlockingPool, Call, CallLimiter, optional_field
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.values import enum_word
from hopsum_wire.payload import TABLE_NAMES

_CALLS_MAX: Final = 64
PART_BYTES: Final = 1 << 18
"""The bytes of a backup in one message."""
STRANGERS_S: Final = 1.0
"""The time in which one of the calls without an administrator's token has a line in the audit log."""
UNKNOWN: Final = "unknown"
"""The identity, in the audit log, of a caller without an administrator's token."""


class OperatorCalls:
    """Answers the calls of JobService, for administrators, in threads of `pool`.

    Every change and every refusal has a line in the audit log. `notices` returns the troubles of the controller itself.
    """

    def __init__(
        self,
        controller: ClusterController,
        access: Access,
        limiter: CallLimiter,
        pool: BlockingPool,
        notices: Callable[[], list[str]],
    ) -> None:
        self._controller, self._notices = controller, notices
        self._access = access
        self._limiter = limiter
        self._pool = pool
        self._strangers_at_s, self._strangers_left_out = -math.inf, 0

    def answers_by_method(self) -> Mapping[str, Answer]:
        """Return the function that answers each method of JobService, by the method's name."""
        answers: Mapping[str, Callable[[Any, Call], Any]] = {
            "CreateJob": self._create_job,
            "ListJobs": lambda _request, _call: pb.ListJobsResponse(jobs=self._controller.jobs()),
            "GetJob": self._get_job,
            "DeleteJob": self._delete_job,
            "ListSwitches": lambda _request, _call: pb.ListSwitchesResponse(
                switches=self._controller.switches(), notices=self._notices()
            ),
            "MoveJob": self._move_job,
            "RotateJobToken": self._rotate_token,
        }
        return {**{name: self._pool.answer(answer) for name, answer in answers.items()}, "Backup": self._backup}

    @contextmanager
    def admit(self, name: str, call: Call) -> Iterator[None]:
        """Count a call of method `name` while the block runs, if its token is an administrator's.

        GetJob is admitted with the token of any job too, and its answer refuses all but the job's own. Raises
        UnauthenticatedError, which is written to the audit log, and CallRefusedError, see CallLimiter.
        """
        # A worker may look at its own job with the job's token; `_get_job` checks that it is the right one.
        if not (name == "GetJob" and self._controller.member_requests.knows(call.token)):
            try:
                self._access.require_admin(call.token)
            except UnauthenticatedError as error:
                self._note_stranger(name, call, error.what)
                raise
        # Without tokens all callers are one: made-up tokens must not get bounds of their own.
        with self._limiter.known_call(call.token if self._access.safeguards.admin_tokens else "", _CALLS_MAX):
            yield

    def _create_job(self, request: Any, call: Call) -> Any:
        with self._audited("CreateJob", request.name, call):
            made = self._controller.create_job(job_spec(request), request.token)
        return made

    def _delete_job(self, request: Any, call: Call) -> Any:
        with self._audited("DeleteJob", request.name, call):
            # The workers of the job are told who deleted it.
            self._controller.delete_job(request.name, by=self._who(call))
        return pb.DeleteJobResponse()

    def _note_stranger(self, action: str, call: Call, why: str) -> None:
        """Write a line for a call without an administrator's token, but not for each of a flood. The event loop's."""
        # A flood of refused calls must not fill the audit log: the lines left out are counted in the next one.
        now_s = time.monotonic()
        if now_s < self._strangers_at_s:
            self._strangers_left_out += 1
            return
        left_out, self._strangers_left_out = self._strangers_left_out, 0
        self._strangers_at_s = now_s + STRANGERS_S
        more = {"refused_before": left_out} if left_out else {}
        write_audit_line(action, **_from(call, UNKNOWN), refused=why, **more)

    def _rotate_token(self, request: Any, call: Call) -> Any:
        action = "RevokeEarlierToken" if request.revoke_earlier else "RotateJobToken"
        with self._audited(action, request.name, call):
            if request.revoke_earlier:
                self._controller.revoke_earlier_token(request.name)
                return pb.RotateJobTokenResponse()
            return pb.RotateJobTokenResponse(token=self._controller.rotate_token(request.name, request.token))

    def _who(self, call: Call) -> str:
        """Return who makes a call, in words: for the workers of a job that is deleted."""
        return f"{self._access.require_admin(call.token)} at {call.peer}"

    @contextmanager
    def _audited(self, action: str, job: str, call: Call) -> Iterator[None]:
        """Write what the block does to a job into the audit log, also when it fails."""
        about = {**_from(call, self._access.require_admin(call.token)), "job": printable(job)}
        before = self._state(job)
        try:
            yield
        except ControlPlaneError as error:
            write_audit_line(action, **about, before=before, after=self._state(job), refused=str(error))
            raise
        write_audit_line(action, **about, before=before, after=self._state(job))

    def _state(self, job: str) -> Mapping[str, Any] | None:
        """Return a job's state and size for the audit log, None where there is no job of this name."""
        for view in self._controller.jobs():
            if view.name == job:
                size = {"workers": view.workers, "slots": view.slots, "switches": [*view.switches]}
                return {"state": enum_word(pb.JobState.DESCRIPTOR, view.state), "generation": view.generation, **size}
        return None

    def _get_job(self, request: Any, call: Call) -> Any:
        if self._controller.member_requests.knows(call.token):
            # `locate` refuses another job's token.
            self._controller.member_requests.locate(request.name, call.token)
        return self._controller.job(request.name)

    def _move_job(self, request: Any, call: Call) -> Any:
        from_switch, to_switch = (optional_field(request, name) for name in ("from_switch", "to_switch"))
        with self._audited("MoveJob", request.name, call):
            made = self._controller.mover.move(request.name, from_switch, to_switch)
        return made

    async def _backup(self, request: Any, call: Call) -> AsyncGenerator[bytes, None]:
        content = await self._pool.run(self._controller.backup)
        write_audit_line("Backup", **_from(call, self._access.require_admin(call.token)), bytes=len(content))
        # gRPC messages are bounded, and a database is not.
        for begin in range(0, len(content), PART_BYTES):
            part = pb.BackupPart(content=content[begin : begin + PART_BYTES], total_bytes=len(content))
            yield bytes(part.SerializeToString())


def _from(call: Call, identity: str) -> dict[str, str]:
    """Return who made a call, for the audit log."""
    certificate = {"certificate": call.certificate} if call.certificate else {}
    return {"identity": identity, **certificate, "peer": call.peer}


def job_spec(message: Any) -> JobSpec:
    """Return the JobSpec of a CreateJob message. Nothing is checked: the cluster refuses values out of range.

    Fields that were not sent have the defaults of JobSpec. Without `shards` there are as many as names of switches.
    """
    # What is left out has the default of JobSpec. The token is none of the job's.
    asked = {field.name: value for field, value in message.ListFields() if field.name != "token"}
    switches = tuple(asked.pop("shard_switches", ()))
    tables = {name: tuple(asked.pop(name)) for name in TABLE_NAMES.values() if name in asked}
    ranks, shards = asked.pop("workers", 0), asked.pop("shards", len(switches) or 1)
    return JobSpec(**{"name": "", **asked}, ranks=ranks, tables=tables, shards=shards, shard_switches=switches)
