# SPDX-License-Identifier: Apache-2.0
"""The worker's side of `hopsum doctor` for a controller's job: the controller is asked as the worker asks it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from hopsum.config import Config, ConfigError
from hopsum.connection.controller_url import controller_at
from hopsum.diagnosis.controller_side import apart_s
from hopsum.diagnosis.joining_side import Admission, examine_admission, not_admitted
from hopsum.diagnosis.rows import DiagnosisReport
from hopsum.diagnosis.worker_side import Patience
from hopsum.errors import HopsumError
from hopsum.rpc.channel import CALL_S, Channel
from hopsum.rpc.errors import ControllerError, ControllerUnreachableError
from hopsum.rpc.interfaces import source_towards
from hopsum.rpc.jobs import JobsClient
from hopsum.rpc.member import MemberClient
from hopsum.rpc.source import leaf_of
from hopsum_cli.operator import job_snapshot
from hopsum_wire.membership import Endpoint

SCHEME: Final = "hopsum://"
_REFUSED: Final = {
    "NOT_FOUND": ("job", "make it (hopsum job create), or give the name of one that is there (hopsum job list)"),
    "UNAUTHENTICATED": ("token", "give the token that hopsum job create printed; a job made again has another one"),
}


def url_report(config: Config, patience: Patience, settle_s: float | None) -> DiagnosisReport:
    """Ask the controller of the settings' URL for its job, and examine this host's way into it."""
    url = config.url
    try:
        place, job, token = controller_at(config)
        channel = Channel(place)
    except HopsumError as error:
        return not_admitted(
            url, "url", str(error), "a URL of a controller's job is hopsum://HOST:PORT/JOB?token_file=PATH"
        )
    with channel:
        try:
            found = _admission(channel, config, job, token, settle_s)
        except ControllerUnreachableError as error:
            fix = "start it (hopsum controller), give the address where it listens, and ask with TLS where it has TLS"
            return not_admitted(url, "controller", str(error), fix)
        except ControllerError as error:
            check, fix = _REFUSED.get(error.code, ("controller", "see the controller's log"))
            return not_admitted(url, check, str(error), fix)
        except ConfigError as error:  # at none of a tree's leaves
            return not_admitted(url, "url", str(error), "set HOPSUM_IP to the address that this worker is to have")
    return examine_admission(url, found, config.rank, patience)


def _admission(channel: Channel, config: Config, job: str, token: str, settle_s: float | None) -> Admission:
    located = MemberClient(channel, job, token).locate(CALL_S)
    send_to = leaf_of(located, config.ip)
    how = "with TLS" if channel.address.tls else "without TLS"
    found = Admission(
        controller=f"{channel.address.target}, {how},",
        job=job,
        workers=located.workers,
        send_to=Endpoint(*send_to),
        own_ip=source_towards(send_to, config.ip),
        further=tuple((Endpoint(*place), source_towards(place, config.ip)) for place in located.further),
    )
    client = JobsClient(channel, token)
    try:
        before = job_snapshot(client, job)
        time.sleep(apart_s(before) if settle_s is None else settle_s)
        return replace(found, before=before, after=job_snapshot(client, job))
    except ControllerUnreachableError:
        raise
    except ControllerError as error:
        return replace(found, refusal=f"the controller does not show the job: {error}")
