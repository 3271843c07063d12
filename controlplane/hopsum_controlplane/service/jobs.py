# SPDX-License-Identifier: Apache-2.0
"""The operator's service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from hopsum.rpc import control_pb2 as pb
from hopsum_controlplane.service.access import Administrator
from hopsum_controlplane.service.handlers import Answer
from hopsum_controlplane.service.messages import created_message, job_message, job_request, switch_message

if TYPE_CHECKING:
    from hopsum_controlplane.cluster.manager import Manager


class Jobs:
    """Answers the calls of who is the administrator. Thread-safe, as the manager is."""

    def __init__(self, manager: Manager, administrator: Administrator) -> None:
        self._manager = manager
        self._administrator = administrator

    def answers(self) -> Mapping[str, Answer]:
        """Return an answer for each method."""
        return {
            "Create": self._asked(self._create),
            "List": self._asked(self._list),
            "Show": self._asked(self._show),
            "Delete": self._asked(self._delete),
            "Switches": self._asked(self._switches),
        }

    def _asked(self, answer: Callable[[Any], Any]) -> Answer:
        def ask(request: Any, token: str, context: grpc.ServicerContext) -> Any:
            self._administrator.require(token)
            return answer(request)

        return ask

    def _create(self, request: Any) -> Any:
        return created_message(self._manager.create_job(job_request(request)))

    def _list(self, request: Any) -> Any:
        return pb.ListReply(jobs=map(job_message, self._manager.jobs()))

    def _show(self, request: Any) -> Any:
        return job_message(self._manager.job(request.name))

    def _delete(self, request: Any) -> Any:
        self._manager.delete_job(request.name)
        return pb.DeleteReply()

    def _switches(self, request: Any) -> Any:
        return pb.SwitchesReply(switches=map(switch_message, self._manager.switches()))
