# SPDX-License-Identifier: Apache-2.0
"""Messages between workers over TCP on loopback, and what happens to everything that is none."""

from __future__ import annotations

import gc
import hashlib
import queue
import random
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

import pytest

from hopsum.protocol.peer_messages import (
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    PEER_VERSION,
    PeerKind,
    PeerMessage,
    PeerMessageError,
)
from hopsum.protocol.state_transfer import StateOffers
from hopsum.transport import side_channel, side_incoming, side_outgoing
from hopsum.transport.side_channel import Address, GenerationKey, SideChannel
from hopsum.transport.side_proof import HELLO_BYTES, MAC_BYTES, REPLY_BYTES, Seal, check_reply, make_hello, make_reply
from hopsum_wire import Op

from ...support.processes import await_that

LOCAL = ("127.0.0.1", 0)
GENERATION = 7
KEY, NEXT = GenerationKey(GENERATION, bytes(range(32))), GenerationKey(8, bytes(range(1, 33)))
WAIT_S = 60.0


SAID = "78c9522774b04ca46c55d5b818a2b31790e50521fb1a47376ebc203909c4b784"
"""SHA-256 of what a worker of PEER_VERSION 3 says, where all that is random is zero."""


def test_other_bytes_need_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller admits workers of one job whose versions agree: these bytes must not change without it."""
    monkeypatch.setattr(secrets, "token_bytes", bytes)
    hello = make_hello(1, 0, KEY)
    reply, seal = make_reply(hello, KEY)
    messages = [
        PeerMessage(kind, 1, GENERATION, 2, 3, Op.ADD32 if kind is PeerKind.FOUND else 0, 5, shard=6)
        for kind in PeerKind
    ]
    offers = StateOffers(1)
    offers.offer(b"state", hashlib.sha256(b"state").digest(), GENERATION, {0: GENERATION})
    messages += offers.answer(PeerMessage(PeerKind.STATE_ASK, 0, GENERATION, round=GENERATION), GENERATION)
    said = [
        hello,
        reply,
        *(part for each in messages for part in (each.kind.name.encode(), each.pack(), seal.mac(each.pack()))),
    ]
    assert (PEER_VERSION, hashlib.sha256(b"".join(said)).hexdigest()) == (3, SAID)


class Ends:
    """Channels of one job, each with a queue of what it heard."""

    def __init__(self, stack: ExitStack, ranks: int) -> None:
        self.channels = [SideChannel(rank, KEY, LOCAL) for rank in range(ranks)]
        self.heard: list[queue.Queue[PeerMessage]] = [queue.Queue() for _ in self.channels]
        peers = {rank: channel.address for rank, channel in enumerate(self.channels)}
        for channel, heard in zip(self.channels, self.heard, strict=True):
            stack.callback(channel.close)
            channel.start(peers, heard.put)


def found(sender: int, round_: int) -> PeerMessage:
    return PeerMessage(PeerKind.FOUND, sender, GENERATION, 3, round_, Op.ADD32, 0b11, bytes([round_ & 255]) * 1024)


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


class Member:
    """A peer of its own: proves itself to a channel as a rank, and then says what the test wants."""

    def __init__(self, channel: SideChannel, rank: int = 1, *, to: int = 0, key: GenerationKey = KEY) -> None:
        self.connection = socket.create_connection(channel.address, timeout=WAIT_S)
        self.key, self.hello = key, make_hello(rank, to, key)

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def read(self, size: int) -> bytes:
        """Return so many bytes, less where the channel has closed."""
        data = b""
        with suppress(ConnectionResetError):
            while len(data) < size and (more := self.connection.recv(size - len(data))):
                data += more
        return data

    def prove(self) -> Seal:
        self.connection.sendall(self.hello)
        return check_reply(self.read(REPLY_BYTES), self.hello, self.key)

    def is_closed(self) -> bool:
        return self.read(1) == b""


def sealed(seal: Seal, data: bytes) -> bytes:
    return framed(data) + seal.mac(data)


def test_messages_arrive_whole_and_in_order(stack: ExitStack) -> None:
    ends = Ends(stack, 3)
    for round_ in range(1, 400):
        ends.channels[0].send_all([(1, found(0, round_))])
        ends.channels[2].send_all([(1, found(2, round_))])
    heard = [ends.heard[1].get(timeout=WAIT_S) for _ in range(798)]
    for sender in (0, 2):
        assert [message for message in heard if message.sender == sender] == [found(sender, r) for r in range(1, 400)]
    statistics = ends.channels[1].statistics
    assert statistics.messages_received == 798
    assert not statistics.closed


def test_answers_from_the_channels_own_thread(stack: ExitStack) -> None:
    first, second = SideChannel(0, KEY, LOCAL), SideChannel(1, KEY, LOCAL)
    stack.callback(first.close)
    stack.callback(second.close)
    peers, heard = {0: first.address, 1: second.address}, queue.Queue[PeerMessage]()
    first.start(peers, heard.put)
    second.start(peers, lambda message: second.send_all([(0, found(1, message.round))]))
    first.send_all([(1, PeerMessage(PeerKind.FETCH, 0, GENERATION, 3, 9))])
    assert heard.get(timeout=WAIT_S) == found(1, 9)


def test_a_peer_that_listens_later(stack: ExitStack) -> None:
    with socket.socket() as probe:
        probe.bind(LOCAL)
        address: Address = probe.getsockname()
    early = SideChannel(0, KEY, LOCAL)
    stack.callback(early.close)
    early.start({1: address}, lambda message: None)
    early.send_all([(1, found(0, 1))])
    await_that(lambda: early.statistics.unreachable > 1, "other try")
    late, heard = SideChannel(1, KEY, address), queue.Queue[PeerMessage]()
    stack.callback(late.close)
    late.start({0: early.address}, heard.put)
    assert heard.get(timeout=WAIT_S) == found(0, 1)


def test_a_peer_that_goes_and_comes_back(stack: ExitStack) -> None:
    first = SideChannel(0, KEY, LOCAL)
    stack.callback(first.close)
    second = SideChannel(1, KEY, LOCAL)
    address, heard = second.address, queue.Queue[PeerMessage]()
    first.start({1: address}, lambda message: None)
    second.start({0: first.address}, heard.put)
    first.send_all([(1, found(0, 1))])
    assert heard.get(timeout=WAIT_S) == found(0, 1)
    second.close()
    again = SideChannel(1, KEY, address)
    stack.callback(again.close)
    again.start({0: first.address}, heard.put)
    await_that(lambda: _says(first, heard), "later word")


def _says(channel: SideChannel, heard: queue.Queue[PeerMessage], to: int = 1, sender: int = 0) -> bool:
    channel.send_all([(to, found(sender, 2))])
    return not heard.empty()


def test_what_is_said_last_arrives(stack: ExitStack) -> None:
    ends = Ends(stack, 2)
    ends.channels[0].send_all([(1, found(0, 1))])
    ends.heard[1].get(timeout=WAIT_S)
    for round_ in range(2, 50):
        ends.channels[0].send_all([(1, found(0, round_))])
    ends.channels[0].close()
    assert [ends.heard[1].get(timeout=WAIT_S).round for _ in range(48)] == list(range(2, 50))


def test_what_is_said_last_may_be_the_first(stack: ExitStack) -> None:
    ends = Ends(stack, 2)
    ends.channels[0].send_all([(1, found(0, 1))])
    ends.channels[0].close()
    assert ends.heard[1].get(timeout=WAIT_S) == found(0, 1)


def test_a_connection_that_is_renewed_leaves_no_error(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    """asyncio logs the errors that nobody has asked for."""
    ends = Ends(stack, 2)
    ends.channels[0].send_all([(1, found(0, 1))])
    assert ends.heard[1].get(timeout=WAIT_S) == found(0, 1)
    ends.channels[0].move(NEXT, {1: ends.channels[1].address})
    ends.channels[0].close()
    gc.collect()
    assert caplog.text == ""


def done(sender: int, position: int, generation: int = GENERATION) -> PeerMessage:
    return PeerMessage(PeerKind.DONE, sender, generation, value=position)


def test_of_many_news_all_peers_hear_some_and_the_last(stack: ExitStack) -> None:
    ends = Ends(stack, 3)
    begin = time.monotonic()
    for position in range(1, 2001):
        ends.channels[0].broadcast(done(0, position))
    for heard in ends.heard[1:]:
        positions = []
        while positions[-1:] != [2000]:
            positions.append(heard.get(timeout=WAIT_S).value)
        turns = (time.monotonic() - begin) / side_channel.TELL_EVERY_S
        assert len(positions) <= turns + 1
        assert positions == sorted(set(positions))


def test_shards_have_one_channel_and_hear_what_is_about_them(stack: ExitStack) -> None:
    ends = Ends(stack, 2)
    further = queue.Queue[PeerMessage]()
    here, there = ends.channels
    there.start({0: here.address}, further.put, shard=3)
    stack.callback(there.close, 3)
    here.send_all([(1, found(0, 1)._replace(shard=shard)) for shard in (3, 4, 0)])
    for position in (1, 2):
        for shard in (0, 3):
            here.broadcast(done(0, position)._replace(shard=shard))
    assert ends.heard[1].get(timeout=WAIT_S) == found(0, 1)
    assert further.get(timeout=WAIT_S) == found(0, 1)._replace(shard=3)
    assert ends.heard[1].get(timeout=WAIT_S) == done(0, 2)
    assert further.get(timeout=WAIT_S) == done(0, 2)._replace(shard=3)
    assert len(there._incoming._proved) == 1
    there.close()
    here.send_all([(1, found(0, 2)._replace(shard=shard)) for shard in (0, 3)])
    assert further.get(timeout=WAIT_S) == found(0, 2)._replace(shard=3)
    assert ends.heard[1].empty()
    assert not there.statistics.closed


def test_all_shards_move_and_the_first_one_moves_the_channel(stack: ExitStack) -> None:
    ends = Ends(stack, 2)
    here, there = ends.channels
    peers = {rank: channel.address for rank, channel in enumerate(ends.channels)}
    for channel in ends.channels:
        channel.move(NEXT, peers)
    here.send_all([(1, found(0, 1)._replace(generation=8))])
    assert ends.heard[1].get(timeout=WAIT_S).generation == 8
    proved = dict(there._incoming._proved)
    for channel in ends.channels:
        channel.move(NEXT, peers)
    here.send_all([(1, found(0, 2)._replace(generation=8))])
    assert ends.heard[1].get(timeout=WAIT_S).round == 2
    assert there._incoming._proved == proved
    here.move(GenerationKey(9, bytes(32)), {})
    here.send_all([(1, found(0, 3))])  # of a shard that is still in the generation before, whose rank 1 is lost


def test_news_after_a_long_silence(stack: ExitStack) -> None:
    """The thread waits without any timer then, and has to be woken."""
    ends = Ends(stack, 2)
    for position in (1, 2):
        await_that(lambda: not ends.channels[0]._has_news.is_set(), "the end of an interval without news")
        ends.channels[0].broadcast(done(0, position))
        assert ends.heard[1].get(timeout=WAIT_S) == done(0, position)


def test_news_are_told_before_the_end_and_not_in_another_generation(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends(stack, 2)
    here, there = ends.channels
    here.send_all([(1, found(0, 1))])
    ends.heard[1].get(timeout=WAIT_S)
    monkeypatch.setattr(side_channel, "TELL_EVERY_S", 10 * WAIT_S)
    here.broadcast(done(0, 5, generation=6))
    await_that(here._has_news.is_set, "wait for the end of the interval")
    here._do(here._put_news)
    here.broadcast(done(0, 6))
    here.close()
    assert ends.heard[1].get(timeout=WAIT_S) == done(0, 6)
    assert here.statistics.messages_sent == 2
    assert there.statistics.other_generations == 0


def test_what_is_said_to_all_wakes_the_thread_once(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(stack, 4)
    calls = []
    do = ends.channels[0]._do
    monkeypatch.setattr(ends.channels[0], "_do", lambda *work: (calls.append(1), do(*work)))
    ends.channels[0].send_all([(rank, found(0, rank)) for rank in (1, 2, 3)])
    ends.channels[0].send_all([])
    assert [ends.heard[rank].get(timeout=WAIT_S).round for rank in (1, 2, 3)] == [1, 2, 3]
    assert len(calls) == 1


def reason_of(stack: ExitStack, data: Callable[[Seal], bytes], *, ends: Ends | None = None) -> str:
    """Prove membership, send bytes and end; return why the channel closed the connection."""
    ends = ends or Ends(stack, 2)
    channel = ends.channels[0]
    with Member(channel) as intruder:
        with suppress(OSError):  # closed already
            intruder.connection.sendall(data(intruder.prove()))
            intruder.connection.shutdown(socket.SHUT_WR)
        await_that(lambda: bool(channel.statistics.closed), "refusal")
    ((reason, count),) = channel.statistics.closed.items()
    assert count == 1
    return reason


GOOD = found(1, 5)
HELLO = make_hello(1, 0, KEY)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "length"),
        (bytes(64), "length"),
        (b"\xff" * 64, "length"),
        ((HEADER_BYTES - 1).to_bytes(4, "big") + bytes(64), "length"),
        ((MESSAGE_BYTES_MAX + 1).to_bytes(4, "big") + bytes(64), "length"),
        (framed(GOOD.pack()) + bytes(MAC_BYTES), "forged"),
        (framed(GOOD.pack()), "truncated"),
        (b"\0\0", "truncated"),
    ],
)
def test_hostile_input_without_a_mac(stack: ExitStack, data: bytes, reason: str) -> None:
    assert reason_of(stack, lambda seal: data) == reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (GOOD.pack()[:-1], "length"),
        (b"\x55" * 24, "kind"),
        (GOOD._replace(sender=0).pack(), "sender"),
        (GOOD._replace(sender=2).pack(), "sender"),
        (GOOD._replace(sender=64).pack(), "sender"),
        (GOOD._replace(op=99).pack(), "value"),
    ],
)
def test_hostile_input_of_a_member(stack: ExitStack, data: bytes, reason: str) -> None:
    assert reason_of(stack, lambda seal: sealed(seal, data)) == reason


def test_what_came_before_was_heard(stack: ExitStack) -> None:
    ends = Ends(stack, 2)
    assert reason_of(stack, lambda seal: sealed(seal, GOOD.pack()) + b"garbage!", ends=ends) == "length"
    assert ends.heard[0].get(timeout=WAIT_S) == GOOD
    ends.channels[1].send_all([(0, found(1, 6))])
    assert ends.heard[0].get(timeout=WAIT_S) == found(1, 6), "and others are still heard"


def test_nothing_of_another_generation_is_heard(stack: ExitStack) -> None:
    """At a change of generation some are earlier than others: what they say is lost, and they are heard afterwards."""
    ends = Ends(stack, 2)
    here, there = ends.channels
    for generation in (6, 7, 8):
        there.send_all([(0, found(1, generation)._replace(generation=generation))])
    assert ends.heard[0].get(timeout=WAIT_S) == found(1, 7)
    peers = {rank: channel.address for rank, channel in enumerate(ends.channels)}
    await_that(lambda: here.statistics.other_generations == 2, "two messages of other generations")
    here.move(NEXT, peers)
    await_that(
        lambda: _dials(there) and here.statistics.other_generations > 2, "end of the connection that is not made again"
    )
    await_that(lambda: there.statistics.refused > 0, "refusal")
    there.move(NEXT, peers)
    there.send_all([(0, found(1, 10)._replace(generation=8))])
    assert ends.heard[0].get(timeout=WAIT_S) == found(1, 10)._replace(generation=8)
    here.send_all([(1, found(0, 10)._replace(generation=8))])
    assert ends.heard[1].get(timeout=WAIT_S).round == 10
    assert not here.statistics.closed
    assert there.statistics.unreachable == 0


def _dials(channel: SideChannel) -> bool:
    """Have something to say again and again, still in the generation before."""
    channel.send_all([(0, found(1, 9))])
    return True


def test_a_peer_that_is_replaced_elsewhere(stack: ExitStack) -> None:
    """The one that stays keeps its listening socket and its other connections."""
    ends = Ends(stack, 3)
    stays, leaves, other = ends.channels
    for sender, channel in ((1, leaves), (2, other)):
        channel.send_all([(0, found(sender, 1))])
        stays.send_all([(sender, found(0, 1))])
        ends.heard[0].get(timeout=WAIT_S)
        ends.heard[sender].get(timeout=WAIT_S)
    address = stays.address
    leaves.close()
    comes, heard = SideChannel(1, NEXT, LOCAL), queue.Queue[PeerMessage]()
    stack.callback(comes.close)
    peers = {0: address, 1: comes.address, 2: other.address}
    comes.start(peers, heard.put)
    for channel in (stays, other):
        channel.move(NEXT, peers)
    stays.send_all([(1, found(0, 2)._replace(generation=8))])
    assert heard.get(timeout=WAIT_S).round == 2
    comes.send_all([(0, found(1, 3)._replace(generation=8))])
    other.send_all([(0, found(2, 3)._replace(generation=8))])
    assert {ends.heard[0].get(timeout=WAIT_S).sender for _ in range(2)} == {1, 2}
    assert stays.address == address
    assert other.statistics.unreachable == 0


def test_connections_from_where_nobody_lives_any_more_end(stack: ExitStack) -> None:
    ends = Ends(stack, 2)
    channel = ends.channels[0]
    ends.channels[1].send_all([(0, GOOD)])
    assert ends.heard[0].get(timeout=WAIT_S) == GOOD
    assert set(channel._incoming._proved) == {1}
    channel.move(NEXT, {1: ("127.0.0.9", 1)})
    await_that(lambda: not channel._incoming._proved, "end of the connection")
    assert not channel.statistics.closed


# ---- who is no member -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (make_hello(1, 1, KEY), "hello"),
        (b"X" + HELLO[1:], "hello"),
        (HELLO[:4] + b"\1" + HELLO[5:], "hello"),
        (framed(GOOD.pack()), "hello"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(32), "hello"),
        (make_hello(0, 0, KEY), "sender"),
        (make_hello(9, 0, KEY), "sender"),
        (HELLO + framed(GOOD.pack()) + bytes(MAC_BYTES), "forged"),
        (HELLO + bytes(64), "length"),
        (b"hops", "truncated"),
    ],
    # A HELLO is random: its bytes would name another test in each process.
    ids=range(10),
)
def test_a_handshake_that_is_none(stack: ExitStack, hello: bytes, reason: str) -> None:
    ends = Ends(stack, 2)
    channel = ends.channels[0]
    with socket.create_connection(channel.address, timeout=WAIT_S) as intruder:
        with suppress(OSError):
            intruder.sendall(hello)
            intruder.shutdown(socket.SHUT_WR)
        await_that(lambda: bool(channel.statistics.closed), "refusal")
    assert channel.statistics.closed == {reason: 1}
    ends.channels[1].send_all([(0, GOOD)])
    assert ends.heard[0].get(timeout=WAIT_S) == GOOD, "and others are heard"


@pytest.mark.parametrize("kind", [PeerKind.FOUND, PeerKind.STATE_PIECE])
def test_who_does_not_know_the_key_says_nothing(stack: ExitStack, kind: PeerKind) -> None:
    """Everything else is known: generation, ranks, addresses, format. The REPLY tells it nothing that is of use."""
    ends = Ends(stack, 2)
    channel = ends.channels[0]
    evil = GOOD if kind is PeerKind.FOUND else PeerMessage(kind, 1, GENERATION, round=GENERATION, payload=bytes(80))
    stranger = GenerationKey(GENERATION, bytes(32))
    for _ in range(3):
        with Member(channel, key=stranger) as intruder:
            intruder.connection.sendall(intruder.hello)
            reply = intruder.read(REPLY_BYTES)
            assert len(reply) == REPLY_BYTES
            with pytest.raises(PeerMessageError, match="does not know the generation's key"):
                check_reply(reply, intruder.hello, stranger)
            with suppress(OSError):
                intruder.connection.sendall(sealed(Seal(reply[16:]), evil.pack()))
            assert intruder.is_closed()
    assert channel.statistics.closed == {"forged": 3}
    assert channel.statistics.messages_received == 0
    assert ends.heard[0].empty()


def test_a_key_of_another_generation_is_of_no_use(stack: ExitStack) -> None:
    channel = Ends(stack, 2).channels[0]
    for key, count in ((NEXT, {}), (GenerationKey(GENERATION, NEXT.key), {"forged": 1})):
        with Member(channel, key=key) as intruder:
            intruder.connection.sendall(intruder.hello)
            if intruder.read(REPLY_BYTES):
                intruder.connection.sendall(framed(GOOD.pack()) + bytes(MAC_BYTES))
            assert intruder.is_closed()
        assert channel.statistics.closed == count
    assert channel.statistics.other_generations == 1


def test_what_was_recorded_is_of_no_use(stack: ExitStack) -> None:
    """The same bytes on another connection, to the same rank or to another one."""
    ends = Ends(stack, 3)
    with Member(ends.channels[0]) as member:
        message = sealed(member.prove(), GOOD.pack())
        member.connection.sendall(message)
        assert ends.heard[0].get(timeout=WAIT_S) == GOOD
    for channel in (ends.channels[0], ends.channels[2]):
        before = channel.statistics.closed.total()
        with socket.create_connection(channel.address, timeout=WAIT_S) as intruder, suppress(OSError):
            intruder.sendall(member.hello + message)
            while intruder.recv(100):
                pass
        await_that(lambda c=channel, b=before: c.statistics.closed.total() == b + 1, "refusal")  # type: ignore[misc]
    assert ends.channels[0].statistics.closed == {"forged": 1}
    assert ends.channels[2].statistics.closed == {"hello": 1}
    assert ends.heard[0].empty()
    assert ends.heard[2].empty()


@pytest.mark.parametrize("order", [(0, 0), (1, 0), (0, 2), (0, 1, 1), (0, 1, 0)])
def test_messages_come_once_and_in_their_order(stack: ExitStack, order: tuple[int, ...]) -> None:
    """Somebody between two members repeats, leaves out or moves what they say: the connection ends there."""
    ends = Ends(stack, 2)
    with Member(ends.channels[0]) as member:
        seal = member.prove()
        said = [sealed(seal, found(1, round_).pack()) for round_ in range(3)]
        with suppress(OSError):
            member.connection.sendall(b"".join(said[number] for number in order))
        assert member.is_closed()
    right = next((at for at, number in enumerate(order) if at != number), len(order))
    assert [ends.heard[0].get(timeout=WAIT_S).round for _ in range(right)] == list(range(right))
    assert ends.heard[0].empty()
    assert ends.channels[0].statistics.closed == {"forged": 1}


def test_a_channel_says_nothing_to_an_impostor(stack: ExitStack) -> None:
    """Somebody else listens where the peer should: it gets HELLO, and never a message."""
    impostor = stack.enter_context(socket.create_server(LOCAL))
    impostor.settimeout(WAIT_S)
    channel = SideChannel(0, KEY, LOCAL)
    stack.callback(channel.close)
    channel.start({1: impostor.getsockname()}, lambda message: None)
    channel.send_all([(1, found(0, 1))])
    for reply in (bytes(REPLY_BYTES), b""):
        connection, _ = impostor.accept()
        with connection:
            connection.settimeout(WAIT_S)
            got = connection.recv(1000)
            assert len(got) == HELLO_BYTES
            connection.sendall(reply)
            if reply:
                with suppress(ConnectionResetError):
                    assert connection.recv(1000) == b""
    await_that(lambda: channel.statistics.refused >= 2, "end of both")
    assert channel.statistics.closed == {"forged": 1}
    assert channel.statistics.messages_sent == 0


def test_fuzzed_streams(stack: ExitStack) -> None:
    """Mutated streams of a member: every connection ends, the channel lives, and only what was said is delivered."""
    rng, ends = random.Random(5), Ends(stack, 2)
    channel = ends.channels[0]
    said = set()
    for number in range(150):
        with Member(channel) as intruder, suppress(OSError):
            seal = intruder.prove()
            messages = [found(1, number * 4 + each) for each in range(rng.randrange(3))]
            said |= {message.round for message in messages}
            stream = bytearray(b"".join(sealed(seal, message.pack()) for message in messages))
            stream += rng.randbytes(rng.randrange(64))
            for _ in range(rng.randrange(4) if stream else 0):
                stream[rng.randrange(len(stream))] = rng.randrange(256)
            for at in range(0, len(stream), 300):
                intruder.connection.sendall(stream[at : at + 300])
            intruder.connection.shutdown(socket.SHUT_WR)
            assert intruder.is_closed()
    ends.channels[1].send_all([(0, found(1, 10_000))])
    heard: list[PeerMessage] = []
    while not heard or heard[-1] != found(1, 10_000):
        heard.append(ends.heard[0].get(timeout=WAIT_S))
    assert all(message == found(1, message.round) for message in heard)
    assert {message.round for message in heard[:-1]} <= said
    assert {"length", "truncated", "forged"} == set(channel.statistics.closed)
    assert channel.failure is None


def test_fuzzed_handshakes(stack: ExitStack) -> None:
    rng, ends = random.Random(6), Ends(stack, 2)
    channel = ends.channels[0]
    for _ in range(150):
        with Member(channel) as intruder, suppress(OSError):
            data = bytearray(intruder.hello + framed(rng.randbytes(HEADER_BYTES + rng.randrange(200))))
            for _ in range(rng.randrange(4)):
                data[rng.randrange(HELLO_BYTES)] = rng.randrange(256)
            intruder.connection.sendall(data[: rng.randrange(len(data))])
            intruder.connection.shutdown(socket.SHUT_WR)
            while intruder.connection.recv(100):
                pass
    ends.channels[1].send_all([(0, GOOD)])
    assert ends.heard[0].get(timeout=WAIT_S) == GOOD
    assert channel.statistics.messages_received == 1
    assert set(channel.statistics.closed) <= {"hello", "sender", "forged", "truncated"}
    assert channel.failure is None


def test_strangers(stack: ExitStack) -> None:
    lonely = SideChannel(0, KEY, LOCAL)
    stack.callback(lonely.close)
    lonely.start({1: ("127.0.0.9", 1)}, lambda message: None)
    with socket.create_connection(lonely.address, timeout=WAIT_S) as stranger:
        assert stranger.recv(1) == b""
    assert lonely.statistics.closed == {"stranger": 1}


def test_a_peer_is_heard_from_its_own_address(stack: ExitStack) -> None:
    """Not from the address that the kernel would choose, which is 127.0.0.1 on the way to any of loopback."""
    channels = [SideChannel(rank, KEY, (f"127.0.0.{rank + 2}", 0)) for rank in range(2)]
    peers, heard = {rank: channel.address for rank, channel in enumerate(channels)}, queue.Queue[PeerMessage]()
    for channel in channels:
        stack.callback(channel.close)
        channel.start(peers, heard.put)
    channels[0].send_all([(1, found(0, 1))])
    await_that(lambda: heard.qsize() or channels[1].statistics.closed, "connection")
    assert not channels[1].statistics.closed
    assert heard.get(timeout=WAIT_S) == found(0, 1)


def test_strangers_that_come_again_and_again_are_told_once(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    lonely = SideChannel(0, KEY, LOCAL)
    stack.callback(lonely.close)
    lonely.start({1: ("127.0.0.9", 1)}, lambda message: None)
    for count in range(1, 3 * side_incoming.STRANGERS_TOLD):
        with socket.create_connection(lonely.address, timeout=WAIT_S) as stranger, suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        await_that(lambda count=count: lonely.statistics.closed["stranger"] == count, "refusal")
        assert len(caplog.records) == (count >= side_incoming.STRANGERS_TOLD)
    assert "the last from 127.0.0.1: its peers live at 127.0.0.9 (rank 1)" in caplog.text


def test_idle_connections_shut_nobody_out(stack: ExitStack) -> None:
    """The oldest that proved nothing makes room; who proved itself stays."""
    ends = Ends(stack, 2)
    channel = ends.channels[0]
    ends.channels[1].send_all([(0, found(1, 1))])
    assert ends.heard[0].get(timeout=WAIT_S) == found(1, 1)
    idle = [
        stack.enter_context(socket.create_connection(channel.address, timeout=WAIT_S))
        for _ in range(side_incoming.UNPROVED_MAX + 3)
    ]
    await_that(lambda: channel.statistics.closed["crowd"] == 3, "three ends that make room")
    assert [each.recv(1) for each in idle[:3]] == [b""] * 3, "the oldest"
    with Member(channel) as member:
        member.connection.sendall(sealed(member.prove(), found(1, 2).pack()))
        assert ends.heard[0].get(timeout=WAIT_S) == found(1, 2), "a newcomer is heard"
    await_that(lambda: not channel._incoming._proved, "connection in the place of the older one of its rank")
    ends.channels[1].send_all([(0, found(1, 3))])
    await_that(lambda: _says(ends.channels[1], ends.heard[0], 0, 1), "new connection of the one that says something")


def test_silent_connections_end(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_incoming, "PROVE_S", 0.05)
    channel = Ends(stack, 2).channels[0]
    for data in (b"", HELLO, HELLO + framed(GOOD.pack())):
        with socket.create_connection(channel.address, timeout=WAIT_S) as idle:
            idle.sendall(data)
            assert idle.recv(REPLY_BYTES) == b"" or idle.recv(1) == b""
    await_that(lambda: channel.statistics.closed == {"silent": 3}, "count of all")


def test_a_peer_that_vanished_is_noticed_by_the_kernel(stack: ExitStack) -> None:
    """Both ends have keepalive, with a limit in seconds."""
    ends = Ends(stack, 2)
    ends.channels[1].send_all([(0, GOOD)])
    assert ends.heard[0].get(timeout=WAIT_S) == GOOD
    for writer in (ends.channels[0]._incoming._proved[1], ends.channels[1]._outgoing[0].writer):
        assert writer is not None
        connection = writer.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 10
        assert 0 < connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 20_000


def test_memory_is_bounded_towards_a_peer_that_does_not_read(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_outgoing, "QUEUE_BYTES_MAX", 100_000)
    channel = SideChannel(0, KEY, LOCAL)
    stack.callback(channel.close)
    deaf = stack.enter_context(socket.create_server(LOCAL))
    channel.start({1: deaf.getsockname()}, lambda message: None)
    await_that(partial(_floods, channel), "drop")
    assert channel._outgoing[1].queued_bytes <= 100_000


def _floods(channel: SideChannel) -> bool:
    for round_ in range(1, 50):
        channel.send_all([(1, found(0, round_))])
    return channel.statistics.closed["slow"] > 0


def test_a_failure_of_the_receiver_is_kept(stack: ExitStack) -> None:
    channel = SideChannel(0, KEY, LOCAL)
    stack.callback(channel.close)

    def fail(message: PeerMessage) -> None:
        raise ArithmeticError(f"round {message.round}")

    channel.start({1: (LOCAL[0], 1)}, fail)
    with Member(channel) as peer:
        peer.connection.sendall(sealed(peer.prove(), GOOD.pack()))
        await_that(lambda: channel.failure is not None, "end")
    assert isinstance(channel.failure, ArithmeticError)


def test_closing_twice_and_unstarted() -> None:
    channel = SideChannel(0, KEY, LOCAL)
    channel.close()
    channel.close()
