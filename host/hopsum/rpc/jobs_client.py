# SPDX-License-Identifier: Apache-2.0
"""The operator's calls: make jobs, look at them, delete them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hopsum.rpc.channel import CALL_S, Channel, ControllerUnreachableError
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.services import JOB_SERVICE

CHANGE_S: Final = 30.0
"""Deadline of a call that writes switches."""


class JobsClient:
    """The administrator's calls to a controller.

    All methods block, and raise ControllerError for a refusal, ControllerUnreachableError without an answer.

    Args:
        token: the administrator's, empty where the controller asks for none.
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
        codec_options: Mapping[str, Any] | None = None,
        shards: int | Sequence[str] = 1,
        **fields: Any,
    ) -> pb.CreateJobResponse:
        """Make a job and write it to its switches. Return the reply, which has the token for the workers.

        After a lost answer the call can be repeated if `token` was given: the reply is the same.

        Args:
            codec_options: options of the field `codec`, recorded in the job for all workers. None: none are recorded.
            shards: number of switches, each with a share of every vector, or their names.
            fields: further fields of CreateJobRequest (control.proto has their meanings): quorum, table, tree, ...
                None is as a field that is left out.
        """
        count, names = (shards, ()) if isinstance(shards, int) else (len(shards), shards)
        request = pb.CreateJobRequest(
            name=name, workers=workers, slots=slots, shards=count, shard_switches=names,
            codec_options=json.dumps(codec_options) if codec_options else "", **fields,
        )  # fmt: skip
        reply: pb.CreateJobResponse = self._call("CreateJob", request, CHANGE_S)
        return reply

    def jobs(self) -> list[pb.Job]:
        """Ask for all jobs, and return them without the counters of switches."""
        return list(self._call("ListJobs", pb.ListJobsRequest()).jobs)

    def job(self, name: str) -> pb.Job:
        """Ask for one job, with its counters, and return it. Raises ControllerError if there is no job of this name."""
        found: pb.Job = self._call("GetJob", pb.GetJobRequest(name=name))
        return found

    def delete(self, name: str) -> None:
        """Delete a job. Its workers end after their next heartbeat."""
        self._call("DeleteJob", pb.DeleteJobRequest(name=name), CHANGE_S)

    def move(self, name: str, from_switch: str | None = None, to_switch: str | None = None) -> pb.MoveJobResponse:
        """Give a job another switch from its next generation on. Its workers continue there.

        Args:
            from_switch: the switch that it leaves, by default its one switch.
            to_switch: one that has room if left out.
        """
        request = pb.MoveJobRequest(name=name, from_switch=from_switch, to_switch=to_switch)
        moved: pb.MoveJobResponse = self._call("MoveJob", request, CHANGE_S)
        return moved

    def rotate_token(self, name: str, token: str = "") -> str:
        """Give a job another token, and return it. The one before stays valid until `revoke_earlier_token`.

        Args:
            token: the new token, so that a call whose answer was lost can be repeated. Empty: the controller draws it.
        """
        request = pb.RotateJobTokenRequest(name=name, token=token)
        reply: pb.RotateJobTokenResponse = self._call("RotateJobToken", request)
        return reply.token

    def revoke_earlier_token(self, name: str) -> None:
        """Revoke the job's token from before the last `rotate_token`. Workers that joined with it stay."""
        self._call("RotateJobToken", pb.RotateJobTokenRequest(name=name, revoke_earlier=True))

    def backup(self) -> bytes:
        """Download the controller's database as it is now, and return its content.

        Raises ControllerUnreachableError if the transfer broke off.
        """
        content, total_bytes = bytearray(), 0
        for part in self._channel.stream(JOB_SERVICE, "Backup", pb.BackupRequest(), secret=self._token):
            content += part.content
            total_bytes = part.total_bytes
        # A stream that ends early looks like one that is complete: only the number of bytes tells them apart.
        if not content or len(content) != total_bytes:
            told = f"the backup broke off: {len(content)} of {total_bytes} bytes came"
            raise ControllerUnreachableError(told, "UNAVAILABLE")
        return bytes(content)

    def switches(self) -> list[pb.Switch]:
        """Ask for all switches, and return them."""
        return list(self.cluster().switches)

    def cluster(self) -> pb.ListSwitchesResponse:
        """Ask for all switches and the faults of the controller itself, and return them."""
        found: pb.ListSwitchesResponse = self._call("ListSwitches", pb.ListSwitchesRequest())
        return found

    def _call(self, name: str, request: Any, timeout_s: float = CALL_S) -> Any:
        return self._channel.call(JOB_SERVICE, name, request, secret=self._token, timeout_s=timeout_s)
