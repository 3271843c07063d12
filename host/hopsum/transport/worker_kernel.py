# SPDX-License-Identifier: Apache-2.0
"""The worker's loop for numba: receive RESULTs of all shards, take plain ones, send, without the interpreter lock.

`worker_loop` fills the records of `worker_layout` and calls `serve`; nothing else imports this module. The Python
worker (`hopsum.protocol`) is the reference: each part below names the function whose effect it has. Whatever is not
plain ends the call, and the Python worker continues from there.

A RESULT is plain if it is for this worker, of an all-reduce in progress and with its operation, and the result that its
slot waits for.

The kernel's calls take a msghdr as Linux has it on 64 bits: recvmsg(2), sendmsg(2), ppoll(2), and udp(7) for UDP_GRO
and UDP_SEGMENT. Words are little-endian, and numbers on the wire are not.
"""

from __future__ import annotations

import errno
import select
from math import inf

from hopsum.codec.backends.jit import call_at, i16, i32, i64, inner, kernel, u64
from hopsum.codec.backends.stream_kernels import ChunkRun
from hopsum.transport.worker_layout import (
    DEVIATIONS,
    FINGERPRINT,
    GAIN,
    GSO_BYTES_MAX,
    HEADER_WORDS,
    HOPSUM_BYTES,
    NO_POSITION,
    NO_ROW,
    SEGMENTS_MAX,
    STOP_DONE,
    STOP_RECEIVE,
    STOP_REST,
    STOP_SEND,
    STOP_STALE,
    STOP_TIME,
    STOP_WOKEN,
    VARIANCE_GAIN,
    LoopState,
    ReduceState,
    ShardPolls,
    ShardState,
    VectorState,
)
from hopsum_base.kernel_structs import IoVector
from hopsum_base.record_kernels import Numbers, bits_at, doubles_at, integers_at, octets_at, record_at, record_in, types

_MSG_DONTWAIT, _CLOCK_MONOTONIC = 0x40, 1
_EAGAIN, _EINTR = errno.EAGAIN, errno.EINTR
_POLLIN, _POLLOUT = select.POLLIN, select.POLLOUT
_CONTROL_BYTES = 24

_recvmsg = types.ExternalFunction("recvmsg", types.intp(types.intc, types.intp, types.intc))
_sendmsg = types.ExternalFunction("sendmsg", types.intp(types.intc, types.intp, types.intc))
_ppoll = types.ExternalFunction("ppoll", types.intc(types.intp, types.intp, types.intp, types.intp))
_memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))
_clock_gettime = types.ExternalFunction("clock_gettime", types.intc(types.intc, types.intp))
_errno = types.ExternalFunction("__errno_location", types.CPointer(types.int32)())

# Records and pointers, not arrays: numba counts the references of an array at each call of a part, which takes longer
# than the part.
loop_at, _run_at = record_at(LoopState), record_at(ChunkRun)
shard_in, _polls_in, _vector_in = record_in(ShardState), record_in(ShardPolls), record_in(VectorState)
_reduce_in, _iovector_in = record_in(ReduceState), record_in(IoVector)


@inner
def _swapped32(value: int) -> int:
    """Return 32 bits in the other order of bytes."""
    # LLVM recognises the pattern and emits one bswap.
    low = ((value & u64(0xFF)) << u64(24)) | ((value & u64(0xFF00)) << u64(8))
    return low | ((value >> u64(8)) & u64(0xFF00)) | ((value >> u64(24)) & u64(0xFF))


@inner
def _find(shard: ShardState, position: int) -> int:
    """Return the row of the all-reduce that has a position, -1 if none has (`StreamState.find`)."""
    for row in range(shard.reduce_count):
        reduce = _reduce_in(shard.reduces, row)
        if reduce.first <= position < reduce.end:
            return row
    return -1


@inner
def _is_held(loop: LoopState, shard: ShardState, position: int) -> bool:
    """Say whether a result is here (`StreamState.is_held`, nothing being early)."""
    row = _find(shard, position)
    if row < 0:
        return position < shard.stream_end
    reduce = _reduce_in(shard.reduces, row)
    return octets_at(reduce.held)[(position - reduce.first) * loop.shard_count] != 0


@inner
def _update_rtt(shard: ShardState, round_trip_s: float) -> None:
    """Update the estimates by a round trip (`RttEstimator.update`)."""
    # Same operations in the same order as in Python, so that both leave equal bits.
    if shard.srtt_s == inf:
        shard.srtt_s, shard.rttvar_s = round_trip_s, round_trip_s / 2
    else:
        shard.rttvar_s += VARIANCE_GAIN * (abs(shard.srtt_s - round_trip_s) - shard.rttvar_s)
        shard.srtt_s += GAIN * (round_trip_s - shard.srtt_s)
    shard.rto_s = min(max(shard.srtt_s + DEVIATIONS * shard.rttvar_s, shard.rto_min_s), shard.rto_max_s)


@inner
def _on_ack(shard: ShardState, once: bool, first_sent_at: float) -> None:
    """Let the window know of one result (`CongestionWindow.on_ack`)."""
    if once and first_sent_at >= shard.halved_at:
        shard.halved_at = inf
    shard.window_results += 1
    if shard.window_results >= shard.window:
        shard.window_results = 0
        shard.window = min(shard.window + 1, shard.slots)


@inner
def _mark_acked(shard: ShardState, slot: int, position: int) -> None:
    """Forget an open position that has its result (`RetransmitQueue.mark_acked`)."""
    if integers_at(shard.open)[slot] != position:
        return
    integers_at(shard.open)[slot] = NO_POSITION
    doubles_at(shard.due_at)[slot] = inf
    sent = integers_at(shard.sent)[slot]
    if sent == 0:
        return
    shard.in_flight -= 1
    once, first_sent_at = sent == 1, doubles_at(shard.first_sent_at)[slot]
    # One measurement for all results of a batch.
    if once and shard.now != shard.measured_at:
        shard.measured_at = shard.now
        _update_rtt(shard, shard.now - first_sent_at)
    _on_ack(shard, once, first_sent_at)


@inner
def _open(shard: ShardState, slot: int, position: int) -> None:
    """Let a position be sent (`RetransmitQueue.open`)."""
    integers_at(shard.open)[slot] = position
    integers_at(shard.sent)[slot] = 0
    doubles_at(shard.due_at)[slot] = inf
    integers_at(shard.fresh)[shard.fresh_count] = position
    shard.fresh_count += 1


@inner
def _open_next(loop: LoopState, shard: ShardState, slot: int, position: int) -> None:
    """Open what a slot may send after a position (`StreamState.next_open`)."""
    position += shard.slots
    while _is_held(loop, shard, position):
        position += shard.slots
    integers_at(shard.open_position)[slot] = position
    if position < shard.open_end and integers_at(shard.open)[slot] != position:
        _open(shard, slot, position)


@inner
def _receive_result(loop: LoopState, shard: ShardState, offset: int, size: int) -> int:
    """Take the datagram at an offset of the buffer if it is plain (W3); return its all-reduce's row, or -1."""
    headers = bits_at(shard.buffer + offset)
    w0, w1, w2, w3 = headers[0], headers[1], headers[2], headers[3]
    # Numbers on the wire are big-endian, the words were loaded little-endian: the slot is the last two bytes of the
    # first word.
    slot = i64(((w0 >> u64(40)) & u64(0xFF00)) | (w0 >> u64(56)))
    round_ = i64(_swapped32(w1 >> u64(32)))
    if slot >= shard.slots or round_ < 1:
        return -1
    position = shard.base + (round_ - 1) * shard.slots + slot
    row = _find(shard, position)
    # Only the result that its slot waits for is plain. Early ones and copies go to the Python worker.
    if row < 0 or integers_at(shard.open_position)[slot] != position:
        return -1
    reduce = _reduce_in(shard.reduces, row)
    if size != reduce.result_bytes + HOPSUM_BYTES:
        return -1
    pattern = bits_at(shard.patterns + row * 16 * HEADER_WORDS)
    for word in range(HEADER_WORDS):
        # One exclusive-or per word compares all header fields that a RESULT of this all-reduce has fixed.
        if (headers[word] ^ pattern[word]) & pattern[HEADER_WORDS + word] != u64(0):
            return -1
    contributors = (_swapped32(w2 >> u64(32)) << u64(32)) | _swapped32(w3 & u64(0xFFFFFFFF))
    if contributors == u64(0) or contributors > shard.everybody:
        return -1
    # The arrays have the results of all shards: the chunks of one lie `shard_count` apart.
    index = (position - reduce.first) * loop.shard_count
    # Straight from the receive buffer into the caller's results: the only copy in user space.
    source = shard.buffer + offset + HOPSUM_BYTES
    _memcpy(reduce.results + index * reduce.result_bytes, source, reduce.result_bytes)
    bits_at(reduce.contributors)[index] = contributors
    octets_at(reduce.held)[index] = 1
    reduce.missing -= 1
    _vector_in(loop.vectors, reduce.vector).missing -= 1
    shard.results += 1
    _mark_acked(shard, slot, position)
    _open_next(loop, shard, slot, position)
    return row


@inner
def _sort(positions: Numbers[int], count: int) -> None:
    """Sort positions, which are nearly in order."""
    # Insertion sort: RESULTs come nearly in order, so it is linear, and it needs no memory.
    for number in range(1, count):
        value, place = positions[number], number
        while place > 0 and positions[place - 1] > value:
            positions[place] = positions[place - 1]
            place -= 1
        positions[place] = value


@inner
def _gather(shard: ShardState) -> int:
    """Fill `fresh` with all that waits to be sent for the first time; return the room that the window has for it."""
    opened, sent, fresh = integers_at(shard.open), integers_at(shard.sent), integers_at(shard.fresh)
    slots, oldest, count = shard.slots, i64(NO_POSITION), i64(0)
    for slot in range(slots):
        oldest = min(oldest, opened[slot])
    # From the slot of the oldest on, the open positions are almost sorted already.
    start = oldest % slots
    for step in range(slots):
        slot = start + step if start + step < slots else start + step - slots
        if sent[slot] == 0 and opened[slot] != NO_POSITION:
            fresh[count] = opened[slot]
            count += 1
    _sort(fresh, count)
    shard.fresh_count = count
    room = shard.window - shard.in_flight
    if room <= 0 and count > 0 and fresh[0] == oldest:
        return 1
    return max(room, 0)


@inner
def choose(shard: ShardState) -> None:
    """Append the new positions that the window permits to `pending`, in stream order, and start their timers.

    Positions whose results have come are removed from `pending`. The appended ones count as in flight and as updates.
    `limit_at` moves to the earliest new timer. Retransmissions are left to the caller.
    """
    opened, fresh, pending = integers_at(shard.open), integers_at(shard.fresh), integers_at(shard.pending)
    # With a full window all that was opened may go: no pass over all slots is needed.
    if shard.window < shard.slots or shard.window_held:
        room = _gather(shard)
        shard.window_held = shard.fresh_count > room
        shard.fresh_count = min(shard.fresh_count, room)
    else:
        _sort(fresh, shard.fresh_count)
    left = 0
    for number in range(shard.pending_first, shard.pending_end):
        position = pending[number]
        if opened[position % shard.slots] == position:  # else its result came first
            pending[left] = position
            left += 1
    now, timeout_at = shard.now, shard.now + min(shard.rto_s, shard.retransmit_max_s)
    due_at = min(timeout_at, now + shard.flush_after_s)
    for number in range(shard.fresh_count):
        position = fresh[number]
        slot = position % shard.slots
        if opened[slot] != position:  # its result came in the same batch
            continue
        pending[left] = position
        left += 1
        integers_at(shard.sent)[slot] = 1
        doubles_at(shard.first_sent_at)[slot] = now
        doubles_at(shard.timeout_at)[slot] = timeout_at
        doubles_at(shard.due_at)[slot] = due_at
        # The caller reckoned with what was on the way when the call began.
        shard.limit_at = min(shard.limit_at, due_at)
        shard.in_flight += 1
        shard.updates += 1
    shard.pending_first, shard.pending_end, shard.fresh_count = 0, left, 0


@inner
def _collect(shard: ShardState) -> int:
    """Point `vectors` at the datagrams of the next send. Return their number, 0 if nothing is pending.

    Datagrams of a send have one size. Neighbours in memory share a vector.
    """
    count, used, size, end_at = i64(0), i64(0), i64(0), i64(0)
    while shard.pending_first < shard.pending_end:
        position = integers_at(shard.pending)[shard.pending_first]
        row = _find(shard, position)
        # Else its result came first.
        if row < 0 or integers_at(shard.open)[position % shard.slots] != position:
            shard.pending_first += 1
            continue
        reduce = _reduce_in(shard.reduces, row)
        # The kernel takes 64 segments and 64 KB in one send with UDP_SEGMENT.
        most = min(SEGMENTS_MAX, GSO_BYTES_MAX // reduce.update_bytes) if shard.gso else 1
        if count > 0 and (reduce.update_bytes != size or count >= most):
            break
        size = reduce.update_bytes
        address = reduce.datagrams + (position - reduce.first) * size
        # Neighbours in the stream are neighbours in memory: a batch is mostly one vector.
        if count > 0 and end_at == address:
            _iovector_in(shard.vectors, used - 1).bytes += size
        else:
            vector = _iovector_in(shard.vectors, used)
            vector.address, vector.bytes = address, size
            used += 1
        end_at = address + size
        count += 1
        shard.pending_first += 1
    shard.send.vector_count = used
    shard.send_control.value = i32(size)
    shard.send.control_bytes = _CONTROL_BYTES if shard.gso else 0
    return count


@inner
def _send_pending(loop: LoopState, shard: ShardState) -> None:
    """Give the kernel what is pending, as far as it has room."""
    while True:
        first = shard.pending_first
        count = _collect(shard)
        if count == 0:
            return
        if _sendmsg(i32(shard.fd), shard.send_address, _MSG_DONTWAIT) < 0:
            # Nothing of it was sent: sendmsg with segments is all or nothing.
            shard.pending_first = first
            shard.is_blocked = True
            if _errno()[0] != _EAGAIN:
                shard.errno = i64(_errno()[0])
                shard.ended = loop.stop = STOP_SEND
            return
        shard.sends += 1
        shard.datagrams_sent += count
        shard.bytes_sent += count * i64(shard.send_control.value)


@inner
def _open_ready(shard: ShardState) -> None:
    """Open the chunks that got payloads, in the order of the stream (`StreamState.release`)."""
    for row in range(shard.reduce_count):
        reduce = _reduce_in(shard.reduces, row)
        ready = reduce.first + reduce.ready
        if shard.open_end < ready:
            if not reduce.may_open:  # R2
                return
            for position in range(shard.open_end, ready):
                slot = position % shard.slots
                # W1: a slot whose earlier round is not held opens this position when it is (`_open_next`).
                if integers_at(shard.open_position)[slot] == position:
                    _open(shard, slot, position)
            shard.open_end = ready
        if ready < reduce.end:
            return


@inner
def _hand_out(loop: LoopState, number: int, made: int, end: int) -> None:
    """Put the payloads of a vector's chunks from `made` on into the datagrams of their shards, and open them."""
    shards, vector = loop.shard_count, _vector_in(loop.vectors, number)
    for index in range(shards):
        shard = shard_in(loop.shards, index)
        row = integers_at(loop.rows)[number * shards + index]
        if row == NO_ROW:
            continue
        reduce = _reduce_in(shard.reduces, row)
        payload_bytes = reduce.update_bytes - HOPSUM_BYTES
        # Chunk c of the vector is chunk c // shards of shard c mod shards.
        for place in range((made - index + shards - 1) // shards, (end - index + shards - 1) // shards):
            target = reduce.datagrams + place * reduce.update_bytes + HOPSUM_BYTES
            _memcpy(target, vector.payloads + (place * shards + index) * payload_bytes, payload_bytes)
        reduce.ready = (end - index + shards - 1) // shards
        _open_ready(shard)
        shard.has_work = True


@inner
def _begin(loop: LoopState, vector: VectorState) -> bool:
    """Begin the codes of a vector if its ranges are summed. Say whether they have begun."""
    if vector.begin == 0:
        return True
    for row in range(vector.ranges_first, vector.ranges_end):
        if _vector_in(loop.vectors, row).missing > 0:
            return False
    sums = (vector.first_sums, vector.rest_sums)
    call_at(vector.begin, (vector.codec, vector.ranges_sent, vector.lanes_before, *sums))
    if not _run_at(vector.codec).has_fault:
        vector.begin = 0
        return True
    # The ranks skip, or differ in something: Python has the words for it.
    vector.codec = 0
    loop.stop = STOP_DONE
    return False


@inner
def encode_batch(loop: LoopState) -> bool:
    """Make the next payloads of a vector, unless the network has enough of them. Say whether any were made."""
    for number in range(loop.vector_count):
        vector = _vector_in(loop.vectors, number)
        made = vector.encoded
        if made < vector.chunks:
            # A window ahead of what is here keeps the network busy. More would keep the caller from its messages.
            ahead = made - (vector.chunks - vector.missing)
            if vector.codec == 0 or ahead >= loop.window_all + 2 * loop.batch_chunks:
                return False
            if not _begin(loop, vector):
                return False
            # R2 holds the vector back. One batch of it lets the workers see that.
            if not vector.may_open and made > 0:
                return False
            end = min(made + loop.batch_chunks, vector.chunks)
            call_at(vector.encode, (vector.codec, made, end))
            _hand_out(loop, number, made, end)
            vector.encoded = end
            if not vector.may_open:
                # The caller has to ask peers for what opens it, and to hear them.
                loop.stop = STOP_TIME
            return True
        if not vector.may_open:
            return False
    return False


@inner
def _decode_batch(loop: LoopState, vector: VectorState) -> bool:
    """Decode the next sums of a vector that are here in order. Say whether there were any."""
    # With a quorum, sums may come before this rank's codes begin.
    if vector.decode == 0 or vector.begin != 0:
        return False
    taken, held = vector.taken, octets_at(vector.held)
    # The mean may overwrite the vector, so a chunk is encoded before its sum is decoded.
    end = min(taken + loop.batch_chunks, vector.encoded)
    here = taken
    while here < end and held[here] != 0:
        here += 1
    if here == taken:
        return False
    call_at(vector.decode, (vector.codec, taken, here, vector.results, vector.contributors))
    if _run_at(vector.codec).has_fault:
        # The codec words the error when it gets all sums.
        vector.decode = 0
        return False
    vector.taken = here
    return True


@inner
def decode_any(loop: LoopState) -> bool:
    """Decode a batch of some vector. Say whether there was one."""
    for number in range(loop.vector_count):  # noqa: SIM110  (numba compiles no generator here)
        if _decode_batch(loop, _vector_in(loop.vectors, number)):
            return True
    return False


@inner
def _receive_results(loop: LoopState, shard: ShardState) -> None:
    """Take the datagrams in the buffer from `rest` on, until one is not plain, or an all-reduce is complete."""
    size = shard.segment
    while shard.rest < shard.received:
        given = min(size, shard.received - shard.rest)
        # The buffer is read by words of 8 bytes.
        plain = size % 8 == 0 and given > HOPSUM_BYTES
        row = _receive_result(loop, shard, shard.rest, given) if plain else -1
        if row < 0:
            shard.ended = loop.stop = STOP_REST
            return
        shard.rest += given
        reduce = _reduce_in(shard.reduces, row)
        vector = _vector_in(loop.vectors, reduce.vector)
        if vector.missing == 0 and not vector.is_ranges:
            loop.stop = STOP_DONE
            return


@inner
def _receive(shard: ShardState) -> bool:
    """Let one call of the kernel fill the buffer. Return whether it did."""
    shard.receive.control_bytes = _CONTROL_BYTES if shard.gro else 0
    size = _recvmsg(i32(shard.fd), shard.receive_address, _MSG_DONTWAIT)
    if size < 0:
        return False
    # The kernel has set control_bytes, and nothing but UDP_GRO's message was asked for.
    joined = shard.receive.control_bytes > 0
    segment = max(i64(shard.receive_control.value), 1) if joined else max(size, 1)
    shard.rest, shard.received, shard.segment = 0, size, segment
    shard.receives += 1
    shard.datagrams_received += max((size + segment - 1) // segment, 1)
    shard.bytes_received += size
    return True


@inner
def handle_batch(loop: LoopState, shard: ShardState) -> None:
    """Take the shard's datagrams from `rest` on, at its time `now`, and append what may be sent then to `pending`.

    Ends early, with `loop.stop`, before a datagram that is not plain (STOP_REST), or when an all-reduce is complete
    (STOP_DONE). Then `rest` is the place of the next datagram.
    """
    _receive_results(loop, shard)
    choose(shard)


@inner
def _now(shard: ShardState) -> float:
    """Return the time as `time.monotonic` has it."""
    # The clock of time.monotonic, so that times of both worlds compare.
    _clock_gettime(_CLOCK_MONOTONIC, shard.clock_address)
    return shard.clock.seconds + shard.clock.nanoseconds * 1e-9


@inner
def _wait(loop: LoopState) -> None:
    """Wait for datagrams, for room where the kernel had none, for a waker, and for the limit.

    Encode or decode a batch in the place of waiting.
    """
    limit_at, in_flight, window = inf, i64(0), i64(0)
    for index in range(loop.shard_count):
        shard, polls = shard_in(loop.shards, index), _polls_in(loop.polls, index)
        limit_at = min(limit_at, shard.limit_at)
        in_flight += shard.in_flight
        window += shard.window
        polls.socket.fd, polls.waker.fd = i32(shard.fd), i32(shard.waker)
        polls.socket.events = i16(_POLLIN | _POLLOUT if shard.is_blocked else _POLLIN)
        polls.waker.events = i16(_POLLIN)
        polls.socket.revents = polls.waker.revents = i16(0)
    first = shard_in(loop.shards, 0)
    left_s = limit_at - _now(first)
    # An idle network costs more than a caller who has to wait for a batch.
    may_work = left_s > 0 or in_flight < min(loop.batch_chunks, window)
    has_worked = may_work and (encode_batch(loop) or decode_any(loop))
    if has_worked:
        # There may be more to do: only look whether somebody wants the caller.
        left_s = 0.0
    elif loop.stop != 0:
        # The codes of a vector cannot begin here: nothing will come that ends the wait.
        return
    left_s = max(left_s, 0.0)
    loop.wait.seconds = i64(left_s)
    loop.wait.nanoseconds = i64((left_s - i64(left_s)) * 1e9)
    ready = _ppoll(loop.polls, 2 * loop.shard_count, loop.wait_address, 0)
    # A signal ends the call, so that Python can handle it.
    if ready < 0:
        loop.stop = STOP_WOKEN
    # The limit counts here only, so that no timer fires while its result lies unread in a socket.
    elif ready == 0 and not has_worked and limit_at <= _now(first):
        loop.stop = STOP_TIME
    for index in range(loop.shard_count):
        shard, polls = shard_in(loop.shards, index), _polls_in(loop.polls, index)
        if polls.waker.revents != 0:
            loop.stop = STOP_WOKEN
        if polls.socket.revents & _POLLOUT:
            shard.is_blocked = False
        # Readable, or the socket has an error to tell.
        if polls.socket.revents & ~_POLLOUT:
            shard.is_empty = False


@inner
def _turn(loop: LoopState, shard: ShardState) -> bool:
    """Take, send or receive one batch of a shard. Say whether there was anything to do."""
    if shard.has_work:
        shard.now = _now(shard)
        shard.has_work = False
        handle_batch(loop, shard)
    elif shard.pending_first < shard.pending_end and not shard.is_blocked:
        _send_pending(loop, shard)
    elif shard.is_empty:
        return False
    # Receive until the socket is empty before waiting: ppoll costs as much as a batch of results.
    elif _receive(shard):
        shard.has_work = True
    elif _errno()[0] == _EAGAIN:
        shard.is_empty = True
        return False
    elif _errno()[0] != _EINTR:
        shard.errno = i64(_errno()[0])
        shard.ended = loop.stop = STOP_RECEIVE
    return True


@inner
def reset(loop: LoopState) -> None:
    """Forget what the last call has left behind."""
    loop.stop = 0
    for index in range(loop.shard_count):
        shard = shard_in(loop.shards, index)
        shard.ended = shard.errno = 0
        shard.is_blocked = shard.is_empty = False
        shard.fresh_count = shard.pending_first = shard.pending_end = 0
        shard.results = shard.updates = 0
        shard.receives = shard.datagrams_received = shard.bytes_received = 0
        shard.sends = shard.datagrams_sent = shard.bytes_sent = 0
        # Datagrams that the last call left behind one that was not plain.
        shard.has_work = True
        # What Python opened since the last call is not in `fresh`: look at all slots once.
        shard.window_held = True


@inner
def _serve(loop: LoopState) -> None:
    reset(loop)
    while loop.stop == 0:
        has_done = False
        for index in range(loop.shard_count):
            if loop.stop == 0 and _turn(loop, shard_in(loop.shards, index)):
                has_done = True
        if not has_done and loop.stop == 0:
            _wait(loop)
    for index in range(loop.shard_count):
        shard = shard_in(loop.shards, index)
        # What was made in the last moment, or let out by the last batch, does not wait for the caller.
        if shard.has_work and shard.rest == shard.received:
            shard.now = _now(shard)
            choose(shard)
        if not shard.is_blocked and shard.ended != STOP_RECEIVE:
            _send_pending(loop, shard)
    # Nor does a vector whose last sum is here for another call.
    for number in range(loop.vector_count):
        vector = _vector_in(loop.vectors, number)
        if vector.missing == 0:
            while _decode_batch(loop, vector):
                pass


@kernel(types.int64)
def serve(address: int) -> None:
    """Receive, take and send at all shards until `stop`. `address`: of the `LoopState`.

    Afterwards datagrams of a buffer from `rest` on are left to the caller or to the next call, and the positions of
    `pending` to the caller: their timers are set, and they are not sent.
    """
    loop = loop_at(address)
    # numba knows machine code by this file's date or content, whatever the layout was. So a change of worker_layout.py
    # needs a change here.
    if loop.layout == FINGERPRINT:
        _serve(loop)
    else:
        loop.stop = STOP_STALE
