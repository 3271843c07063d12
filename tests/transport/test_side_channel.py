# SPDX-License-Identifier: Apache-2.0
"""Messages between workers over TCP on loopback, and what happens to everything that is none."""

from __future__ import annotations

import queue
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial

import pytest

from hopsum.protocol.peer_messages import HEADER_BYTES, MESSAGE_BYTES_MAX, PeerKind, PeerMessage
from hopsum.transport import side_channel
from hopsum.transport.side_channel import Address, SideChannel
from hopsum.wire import Op

LOCAL = ("127.0.0.1", 0)
EPOCH = 7
WAIT_S = 60.0


class Ends:
    """Channels of one job, each with a queue of what it heard."""

    def __init__(self, stack: ExitStack, ranks: int) -> None:
        self.channels = [SideChannel(rank, EPOCH, LOCAL) for rank in range(ranks)]
        self.heard: list[queue.Queue[PeerMessage]] = [queue.Queue() for _ in self.channels]
        peers = {rank: channel.address for rank, channel in enumerate(self.channels)}
        for channel, heard in zip(self.channels, self.heard, strict=True):
            stack.callback(channel.close)
            channel.start(peers, heard.put)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def found(sender: int, round_: int) -> PeerMessage:
    return PeerMessage(PeerKind.FOUND, sender, EPOCH, 3, round_, Op.ADD32, 0b11, bytes([round_ & 255]) * 1024)


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that another thread does."""
    ticks: queue.Queue[None] = queue.Queue()
    for _ in range(int(WAIT_S / 0.005)):
        if holds():
            return
        with suppress(queue.Empty):
            ticks.get(timeout=0.005)
    pytest.fail(f"not within {WAIT_S} s: {what}")


def sent_is(channel: SideChannel, messages: int) -> None:
    """Exactly so many were sent; the channel counts a message just after the peer may have it."""
    until(lambda: channel.statistics.messages_sent >= messages, f"{messages} messages sent")
    assert channel.statistics.messages_sent == messages


def test_messages_arrive_whole_and_in_order(stack: ExitStack) -> None:
    ends = Ends(stack, 3)
    for round_ in range(1, 400):
        ends.channels[0].send(1, found(0, round_))
        ends.channels[2].send(1, found(2, round_))
    heard = [ends.heard[1].get(timeout=WAIT_S) for _ in range(798)]
    for sender in (0, 2):
        assert [message for message in heard if message.sender == sender] == [found(sender, r) for r in range(1, 400)]
    statistics = ends.channels[1].statistics
    assert statistics.messages_received == 798
    assert statistics.bytes_received == 798 * (4 + 24 + 1024)
    assert not statistics.closed


def test_answers_from_the_channels_own_thread(stack: ExitStack) -> None:
    first, second = SideChannel(0, EPOCH, LOCAL), SideChannel(1, EPOCH, LOCAL)
    stack.callback(first.close)
    stack.callback(second.close)
    peers, heard = {0: first.address, 1: second.address}, queue.Queue[PeerMessage]()
    first.start(peers, heard.put)
    second.start(peers, lambda message: second.send(0, found(1, message.round)))
    first.send(1, PeerMessage(PeerKind.FETCH, 0, EPOCH, 3, 9))
    assert heard.get(timeout=WAIT_S) == found(1, 9)


def test_a_peer_that_listens_later(stack: ExitStack) -> None:
    with socket.socket() as probe:
        probe.bind(LOCAL)
        address: Address = probe.getsockname()
    early = SideChannel(0, EPOCH, LOCAL)
    stack.callback(early.close)
    early.start({1: address}, lambda message: None)
    early.send(1, found(0, 1))
    until(lambda: early.statistics.unreachable > 1, "it dials again")
    late, heard = SideChannel(1, EPOCH, address), queue.Queue[PeerMessage]()
    stack.callback(late.close)
    late.start({0: early.address}, heard.put)
    assert heard.get(timeout=WAIT_S) == found(0, 1)


def test_a_peer_that_goes_and_comes_back(stack: ExitStack) -> None:
    first = SideChannel(0, EPOCH, LOCAL)
    stack.callback(first.close)
    second = SideChannel(1, EPOCH, LOCAL)
    address, heard = second.address, queue.Queue[PeerMessage]()
    first.start({1: address}, lambda message: None)
    second.start({0: first.address}, heard.put)
    first.send(1, found(0, 1))
    assert heard.get(timeout=WAIT_S) == found(0, 1)
    second.close()
    again = SideChannel(1, EPOCH, address)
    stack.callback(again.close)
    again.start({0: first.address}, heard.put)
    until(lambda: _says(first, heard), "it is heard again")


def _says(channel: SideChannel, heard: queue.Queue[PeerMessage]) -> bool:
    channel.send(1, found(0, 2))
    return not heard.empty()


def test_what_is_said_last_arrives(stack: ExitStack) -> None:
    ends = Ends(stack, 2)
    ends.channels[0].send(1, found(0, 1))
    ends.heard[1].get(timeout=WAIT_S)
    for round_ in range(2, 50):
        ends.channels[0].send(1, found(0, round_))
    ends.channels[0].close()
    assert [ends.heard[1].get(timeout=WAIT_S).round for _ in range(48)] == list(range(2, 50))


def reason_of(stack: ExitStack, data: bytes, *, ends: Ends | None = None) -> str:
    """Send bytes to a channel and end; return why it closed the connection."""
    ends = ends or Ends(stack, 2)
    channel = ends.channels[0]
    with socket.create_connection(channel.address, timeout=WAIT_S) as intruder:
        with suppress(OSError):  # closed already
            intruder.sendall(data)
            intruder.shutdown(socket.SHUT_WR)
        until(lambda: bool(channel.statistics.closed), f"{data[:40]!r} is refused")
    ((reason, count),) = channel.statistics.closed.items()
    assert count == 1
    return reason


GOOD = found(1, 5)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "length"),
        (b"\0" * 64, "length"),
        (b"\xff" * 64, "length"),
        ((HEADER_BYTES - 1).to_bytes(4, "big") + bytes(64), "length"),
        ((MESSAGE_BYTES_MAX + 1).to_bytes(4, "big") + bytes(64), "length"),
        (framed(GOOD.pack()[:-1]), "length"),
        (framed(GOOD.pack())[:-1], "truncated"),
        (b"\0\0", "truncated"),
        (framed(b"\x55" * 24), "kind"),
        (framed(GOOD._replace(sender=0).pack()), "sender"),
        (framed(GOOD._replace(sender=2).pack()), "sender"),
        (framed(GOOD._replace(sender=64).pack()), "sender"),
        (framed(GOOD._replace(op=99).pack()), "value"),
    ],
)
def test_hostile_input(stack: ExitStack, data: bytes, reason: str) -> None:
    assert reason_of(stack, data) == reason


def test_what_came_before_was_heard(stack: ExitStack) -> None:
    ends = Ends(stack, 2)
    assert reason_of(stack, framed(GOOD.pack()) + b"garbage!", ends=ends) == "length"
    assert ends.heard[0].get(timeout=WAIT_S) == GOOD
    ends.channels[1].send(0, found(1, 6))
    assert ends.heard[0].get(timeout=WAIT_S) == found(1, 6), "and others are still heard"


def test_messages_of_other_epochs_are_ignored(stack: ExitStack) -> None:
    """At a change of epoch some are earlier than others: what they say is lost, not the connection."""
    ends = Ends(stack, 2)
    here, there = ends.channels
    for epoch in (6, 7, 8):
        there.send(0, found(1, epoch)._replace(epoch=epoch))
    assert ends.heard[0].get(timeout=WAIT_S) == found(1, 7)
    peers = {rank: channel.address for rank, channel in enumerate(ends.channels)}
    until(lambda: here.statistics.other_epochs == 2, "two are of other epochs")
    here.move(8, peers)
    there.send(0, found(1, 9)._replace(epoch=8))
    assert ends.heard[0].get(timeout=WAIT_S) == found(1, 9)._replace(epoch=8)
    there.move(8, peers)
    here.send(1, found(0, 10)._replace(epoch=8))
    assert ends.heard[1].get(timeout=WAIT_S).round == 10
    assert not here.statistics.closed
    sent_is(there, 4)
    assert there.statistics.unreachable == 0


def test_a_peer_that_is_replaced_elsewhere(stack: ExitStack) -> None:
    """The one that stays keeps its listening socket and its other connections."""
    ends = Ends(stack, 3)
    stays, leaves, other = ends.channels
    for sender, channel in ((1, leaves), (2, other)):
        channel.send(0, found(sender, 1))
        stays.send(sender, found(0, 1))
        ends.heard[0].get(timeout=WAIT_S)
        ends.heard[sender].get(timeout=WAIT_S)
    address = stays.address
    sent_is(other, 1)
    leaves.close()
    comes, heard = SideChannel(1, 8, LOCAL), queue.Queue[PeerMessage]()
    stack.callback(comes.close)
    peers = {0: address, 1: comes.address, 2: other.address}
    comes.start(peers, heard.put)
    for channel in (stays, other):
        channel.move(8, peers)
    stays.send(1, found(0, 2)._replace(epoch=8))
    assert heard.get(timeout=WAIT_S).round == 2
    comes.send(0, found(1, 3)._replace(epoch=8))
    other.send(0, found(2, 3)._replace(epoch=8))
    assert {ends.heard[0].get(timeout=WAIT_S).sender for _ in range(2)} == {1, 2}
    assert stays.address == address
    sent_is(other, 2)
    assert other.statistics.unreachable == 0


def test_connections_from_where_nobody_lives_any_more_end(stack: ExitStack) -> None:
    ends = Ends(stack, 2)
    channel = ends.channels[0]
    ends.channels[1].send(0, GOOD)
    assert ends.heard[0].get(timeout=WAIT_S) == GOOD
    assert len(channel._incoming) == 1
    channel.move(8, {1: ("127.0.0.9", 1)})
    until(lambda: not channel._incoming, "it is closed")
    assert not channel.statistics.closed


def test_fuzzed_input(stack: ExitStack) -> None:
    """Mutated streams: every connection ends, the channel lives, and nothing is delivered that is no message."""
    rng, ends = random.Random(5), Ends(stack, 2)
    channel = ends.channels[0]
    for _ in range(150):
        stream = bytearray(b"".join(framed(found(1, rng.randrange(1, 9)).pack()) for _ in range(rng.randrange(3))))
        stream += rng.randbytes(rng.randrange(64))
        for _ in range(rng.randrange(4) if stream else 0):
            stream[rng.randrange(min(len(stream), 40))] = rng.randrange(256)
        with socket.create_connection(channel.address, timeout=WAIT_S) as intruder, suppress(OSError):
            for at in range(0, len(stream), 300):
                intruder.sendall(stream[at : at + 300])
            intruder.shutdown(socket.SHUT_WR)
            assert intruder.recv(1) == b"", "closed by the channel"
    ends.channels[1].send(0, found(1, 77))
    heard: list[PeerMessage] = []
    while not heard or heard[-1] != found(1, 77):
        heard.append(ends.heard[0].get(timeout=WAIT_S))
    assert all((message.sender, message.epoch) == (1, EPOCH) for message in heard)
    assert {"length", "truncated"} <= set(channel.statistics.closed) <= {
        "length", "truncated", "kind", "sender", "value",
    }  # fmt: skip
    assert channel.failure is None


def test_strangers_and_crowds(stack: ExitStack) -> None:
    lonely = SideChannel(0, EPOCH, LOCAL)
    stack.callback(lonely.close)
    lonely.start({1: ("127.0.0.9", 1)}, lambda message: None)
    with socket.create_connection(lonely.address, timeout=WAIT_S) as stranger:
        assert stranger.recv(1) == b""
    assert lonely.statistics.closed == {"stranger": 1}
    channel = Ends(stack, 2).channels[0]
    for _ in range(4):
        stack.enter_context(socket.create_connection(channel.address, timeout=WAIT_S))
    with socket.create_connection(channel.address, timeout=WAIT_S) as one_more:
        assert one_more.recv(1) == b""
    assert channel.statistics.closed == {"crowd": 1}


def test_memory_is_bounded_towards_a_peer_that_does_not_read(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_channel, "QUEUE_BYTES_MAX", 100_000)
    channel = SideChannel(0, EPOCH, LOCAL)
    stack.callback(channel.close)
    deaf = stack.enter_context(socket.create_server(LOCAL))
    channel.start({1: deaf.getsockname()}, lambda message: None)
    until(partial(_floods, channel), "something is dropped")
    assert channel._outgoing[1].queued_bytes <= 100_000


def _floods(channel: SideChannel) -> bool:
    for round_ in range(1, 50):
        channel.send(1, found(0, round_))
    return channel.statistics.closed["slow"] > 0


def test_a_failure_of_the_receiver_is_kept(stack: ExitStack) -> None:
    channel = SideChannel(0, EPOCH, LOCAL)
    stack.callback(channel.close)

    def fail(message: PeerMessage) -> None:
        raise ArithmeticError(f"round {message.round}")

    channel.start({1: LOCAL}, fail)
    with socket.create_connection(channel.address, timeout=WAIT_S) as peer:
        peer.sendall(framed(GOOD.pack()))
        until(lambda: channel.failure is not None, "it ends")
    assert isinstance(channel.failure, ArithmeticError)


def test_closing_twice_and_unstarted() -> None:
    channel = SideChannel(0, EPOCH, LOCAL)
    channel.close()
    channel.close()
    with pytest.raises(KeyError):
        channel.send(1, GOOD)
