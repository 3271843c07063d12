# SPDX-License-Identifier: Apache-2.0
"""The operator's service."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from hopsum_controlplane.service.access import AdminAuth
from hopsum_controlplane.service.gate import Gate
from hopsum_controlplane.service.handlers import Answer, Call, Lane
from hopsum_controlplane.service.messages import _given, created_message, job_message, job_request, switch_message
from hopsum_wire.control import control_pb2 as pb

if TYPE_CHECKING:
    from hopsum_controlplane.cluster.cluster_controller import ClusterController


_CALLS_MAX: Final = 64
PART_BYTES: Final = 1 << 18
"""Of a backup, in one message."""
_log: Final = logging.getLogger(__name__)


class Jobs:
    """Answers the calls of who is the administrator, in threads of `lane`."""

    def __init__(self, controller: ClusterController, administrator: AdminAuth, gate: Gate, lane: Lane) -> None:
        self._controller = controller
        self._admin_auth = administrator
        self._gate = gate
        self._lane = lane

    def answers(self) -> Mapping[str, Answer]:
        """Return an answer for each method."""
        answers: Mapping[str, Callable[[Any, Call], Any]] = {
            "CreateJob": self._create_job,
            "ListJobs": self._list_jobs,
            "GetJob": self._get_job,
            "DeleteJob": self._delete_job,
            "ListSwitches": self._list_switches,
            "MoveJob": self._move_job,
        }
        return {**{name: self._lane.answer(answer) for name, answer in answers.items()}, "Backup": self._backup}

    @contextmanager
    def admit(self, name: str, call: Call) -> Iterator[None]:
        """Let a call of the administrator pass for the block, and GetJob with the job's own token, as `_get_job` finds.

        Raises UnauthenticatedError, and TooManyClientsError, see Gate.
        """
        if not (name == "GetJob" and self._controller.knows(call.token)):
            self._admin_auth.require(call.token)
        with self._gate.known(call.token if self._admin_auth.required else "", _CALLS_MAX):
            yield

    def _create_job(self, request: Any, call: Call) -> Any:
        made = self._controller.create_job(job_request(request))
        _log.info("job %s: made at the order of %s", made.name, call.peer, extra={"job": made.name, "peer": call.peer})
        return created_message(made)

    def _list_jobs(self, request: Any, call: Call) -> Any:
        return pb.ListJobsResponse(jobs=map(job_message, self._controller.jobs()))

    def _get_job(self, request: Any, call: Call) -> Any:
        if self._controller.knows(call.token):
            self._controller.locate(request.name, call.token)  # refuses another job's token
        return job_message(self._controller.job(request.name))

    def _delete_job(self, request: Any, call: Call) -> Any:
        name = request.name
        self._controller.delete_job(name, by=call.peer)
        _log.info("job %s: deleted at the order of %s", name, call.peer, extra={"job": name, "peer": call.peer})
        return pb.DeleteJobResponse()

    def _move_job(self, request: Any, call: Call) -> Any:
        from_switch, to_switch = (_given(request, name) for name in ("from_switch", "to_switch"))
        made = self._controller.mover.move(request.name, from_switch, to_switch)
        what = "job %s: moved from %s to %s at the order of %s"
        _log.info(what, request.name, made.from_switch, made.to_switch, call.peer, extra={"job": request.name})
        return pb.MoveJobResponse(
            from_switch=made.from_switch, to_switch=made.to_switch, slot_base=made.region.base, slots=made.region.size
        )

    async def _backup(self, request: Any, call: Call) -> AsyncGenerator[bytes, None]:
        content = await self._lane.run(self._controller.backup)
        _log.info("a backup of %d bytes goes to %s", len(content), call.peer, extra={"peer": call.peer})
        for begin in range(0, len(content), PART_BYTES):
            part = pb.BackupPart(content=content[begin : begin + PART_BYTES], total_bytes=len(content))
            yield bytes(part.SerializeToString())

    def _list_switches(self, request: Any, call: Call) -> Any:
        return pb.ListSwitchesResponse(switches=map(switch_message, self._controller.switches()))
