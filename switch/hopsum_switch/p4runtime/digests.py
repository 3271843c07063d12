# SPDX-License-Identifier: Apache-2.0
"""Writing and reading DigestEntry, the configuration of a digest, and lists of digests as messages.

The caller holds the data plane's gate.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from p4.v1.p4data_pb2 import P4Data
from p4.v1.p4runtime_pb2 import DigestEntry, DigestListAck, StreamMessageResponse, Update

from hopsum_switch.p4runtime.p4info import DigestInfo, DigestShape
from hopsum_switch.p4runtime.pipeline import RunningPipeline
from hopsum_switch.p4runtime.translate import store_refusals
from hopsum_switch.p4runtime.values import encode
from hopsum_switch.state.digests import DigestConfig, DigestList, Sample


def write_digest(target: RunningPipeline, update: int, message: DigestEntry) -> None:
    """Switch a digest on, configure it otherwise or switch it off. Raises P4RuntimeError: nothing changed."""
    name, store = target.pipeline.p4info.digest(message.digest_id).name, target.engine.digests
    config = message.config
    with store_refusals():
        if update == Update.DELETE:
            store.delete(name)
        else:
            write = store.insert if update == Update.INSERT else store.modify
            write(name, DigestConfig(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns))


def read_digests(target: RunningPipeline, query: DigestEntry) -> Iterator[DigestEntry]:
    """Yield the DigestEntry messages that `query` selects. Raises P4RuntimeError: no such digest, or not configured."""
    info, store = target.pipeline.p4info, target.engine.digests
    if query.digest_id:
        with store_refusals():
            store.get(info.digest(query.digest_id).name)
    configs = store.configs()
    for digest in [info.digest(query.digest_id)] if query.digest_id else info.digests.values():
        if digest.name in configs:
            message = DigestEntry(digest_id=digest.id)
            config = message.config
            config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns = configs[digest.name]
            yield message


def acknowledge(target: RunningPipeline, ack: DigestListAck) -> None:
    """Note that the controller has a list, if the list is outstanding. Raises P4RuntimeError: no such digest."""
    target.engine.digests.acknowledge(target.pipeline.p4info.digest(ack.digest_id).name, ack.list_id)


def digest_message(target: RunningPipeline, complete: DigestList) -> StreamMessageResponse | None:
    """Return a list as the message for the controller, or None if P4Info does not have the digest."""
    infos = (info for info in target.pipeline.p4info.digests.values() if info.name == complete.name)
    digest = next(infos, None)
    if digest is None:
        return None
    message = StreamMessageResponse()
    message.digest.digest_id, message.digest.list_id = digest.id, complete.number
    message.digest.data.extend(_data(digest, sample) for sample in complete.samples)
    message.digest.timestamp = time.time_ns()
    return message


def _data(digest: DigestInfo, sample: Sample) -> P4Data:
    members = [P4Data(bitstring=encode(value)) for value in sample]
    if digest.shape is DigestShape.BITSTRING:
        return members[0]
    data = P4Data()
    (data.struct if digest.shape is DigestShape.STRUCT else data.tuple).members.extend(members)
    return data
