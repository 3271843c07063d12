# SPDX-License-Identifier: Apache-2.0
"""Frames through bmv2's packet stream, whose other end is played here."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from hopsum_base.quiet_grpc import grpc
from hopsum_topologies.bmv2_stream import PacketStream


def test_a_frame_before_the_ports_are_open_is_sent_again() -> None:
    refused = 0

    def answer(frames: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        nonlocal refused
        refused += 1
        if refused < 3:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not ready")
        yield from frames

    server = grpc.server(ThreadPoolExecutor(1))
    service = {"PacketStream": grpc.stream_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("p4.bm.DataplaneInterface", service)])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with closing(PacketStream(address, 1)) as stream:
        assert stream.process(7, b"frame") == [(7, b"frame")]
    server.stop(None).wait()
