# SPDX-License-Identifier: Apache-2.0
"""Ask a controller as its operator: the connection that the arguments name, and snapshots of the controller."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hopsum.errors import HopsumError
from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_base.token_files import read_admin_tokens
from hopsum_cli.context import complete
from hopsum_wire.control.values import message_to_dict
from hopsum_wire.watch.snapshots import ControllerSnapshot


def address_of(options: argparse.Namespace) -> ControllerAddress:
    """Return the address of the controller that the parsed arguments name, or else the environment. Sends nothing.

    Raises TlsError for files that do not fit, ContextError for a variable that does not.
    """
    found = complete(options)
    return ControllerAddress.of(
        found.controller,
        tls=found.tls,
        ca_file=found.ca_file or "",
        certificate_file=found.certificate_file or "",
        key_file=found.key_file or "",
    )


@contextmanager
def operator_client(options: argparse.Namespace) -> Iterator[JobsClient]:
    """Yield a client of the controller that the parsed arguments name, or else the environment, for the block.

    The client's first call connects. Raises HopsumError when a file cannot be read, when others can read the token's
    file, or for a variable that does not fit.
    """
    # Without a token file the call has no token: a controller on loopback may need none.
    token_file = complete(options).admin_token_file
    token = "" if not token_file else read_admin_tokens(Path(token_file), HopsumError)[0].token
    with Channel(address_of(options)) as channel:
        yield JobsClient(channel, token)


def take_snapshot(client: JobsClient, clock: Callable[[], float] = time.monotonic) -> ControllerSnapshot:
    """Ask the controller for its switches, and for each job with its counters. Return them as one snapshot.

    A job that is deleted meanwhile is left out. `clock` gives seconds. Raises ControllerError.
    """
    cluster = message_to_dict(client.cluster())
    jobs = []
    # The list has no counters of the switches, which only a call for one job reads. Jobs may end in between.
    for listed in client.jobs():
        try:
            jobs.append((clock(), message_to_dict(client.job(listed.name))))
        except ControllerError as error:
            # Deleted meanwhile.
            if error.code != "NOT_FOUND":
                raise
    now_s = clock()
    # Each job was asked at a moment of its own: ages are brought to the moment of the snapshot.
    for at_s, job in jobs:
        for member in job["members"]:
            if member["heartbeat_age_s"] is not None:
                member["heartbeat_age_s"] += now_s - at_s
    return ControllerSnapshot(now_s, cluster["switches"], [job for _, job in jobs], cluster["notices"])
