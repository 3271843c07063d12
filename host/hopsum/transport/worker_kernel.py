# SPDX-License-Identifier: Apache-2.0
"""The worker's loop for numba: receive RESULTs of all shards, take plain ones, send, without the interpreter lock.

`worker_loop` fills the memory of `worker_layout` and calls `serve`; nothing else imports this module. The Python worker
(`hopsum.protocol`) is the reference: each part below names the function whose effect it has. Whatever is not plain ends
the call, and the Python worker goes on from there.

A RESULT is plain if it is for this worker, of an all-reduce in progress and with its operation, and the result that its
slot waits for.

The kernel's calls take a msghdr as Linux has it on 64 bits: recvmsg(2), sendmsg(2), ppoll(2), and udp(7) for UDP_GRO
and UDP_SEGMENT. Words are little-endian, and numbers on the wire are not.
"""

from __future__ import annotations

import errno
import select
from math import inf
from typing import Any, NamedTuple

import numpy as np

from hopsum.codec.backends.jit import call_at, filled, inner, kernel, pointer, types
from hopsum.transport import worker_layout as at

i64, u64 = np.int64, np.uint64

_MSG_DONTWAIT, _CLOCK_MONOTONIC = 0x40, 1
_EAGAIN, _EINTR = errno.EAGAIN, errno.EINTR
_POLLIN, _POLLOUT = select.POLLIN, select.POLLOUT

_recvmsg = types.ExternalFunction("recvmsg", types.intp(types.intc, types.intp, types.intc))
_sendmsg = types.ExternalFunction("sendmsg", types.intp(types.intc, types.intp, types.intc))
_ppoll = types.ExternalFunction("ppoll", types.intc(types.intp, types.intp, types.intp, types.intp))
_memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))
_clock_gettime = types.ExternalFunction("clock_gettime", types.intc(types.intc, types.intp))
_errno = types.ExternalFunction("__errno_location", types.CPointer(types.int32)())


class WorkerMemory(NamedTuple):
    """Pointers to the arrays of a call. Those from `open` to `open_position` are the worker's own, [slots] each.

    Pointers, since numba counts the references of every array at every call of a part: that takes longer than the part.
    """

    job: Any
    streams: Any
    rows: Any
    """int64[REDUCES_MAX, shards]: for each of `streams`, its row in each shard's `reduces`, or NO_ROW."""
    words: Any
    clocks: Any
    reduces: Any
    patterns: Any
    """uint64[REDUCES_MAX, 2 * HEADER_WORDS]: for each of `reduces`, its RESULTs' header and which bits of it count."""
    everybody: Any
    """uint64[1]: the bitmap of all workers."""
    open: Any
    sent: Any
    first_sent_at: Any
    timeout_at: Any
    due_at: Any
    open_position: Any
    fresh: Any
    """int64[at least slots, and the datagrams of a train]"""
    pending: Any
    """int64[2 * slots]"""
    headers: Any
    """uint64, the same memory as the receive buffer"""
    socket: Any
    vectors: Any
    """int64[2 * SEGMENTS_MAX]: an iovec for each datagram of a send"""


_integers, _bits, _seconds = pointer(types.int64), pointer(types.uint64), pointer(types.float64)
_octets = pointer(types.uint8)


@inner
def memory(a: Any, shard: Any) -> Any:
    """Return the pointers of a shard; `a` has the addresses, for each shard in the order of `WorkerMemory`."""
    i = shard * at.ADDRESSES
    return WorkerMemory(
        _integers(a[i]), _integers(a[i + 1]), _integers(a[i + 2]),
        _integers(a[i + 3]), _seconds(a[i + 4]), _integers(a[i + 5]), _bits(a[i + 6]), _bits(a[i + 7]),
        _integers(a[i + 8]), _integers(a[i + 9]), _seconds(a[i + 10]), _seconds(a[i + 11]), _seconds(a[i + 12]),
        _integers(a[i + 13]), _integers(a[i + 14]), _integers(a[i + 15]), _bits(a[i + 16]), _integers(a[i + 17]),
        _integers(a[i + 18]),
    )  # fmt: skip


@inner
def _swapped32(value: Any) -> Any:
    """Return 32 bits in the other order of bytes."""
    # LLVM recognises the pattern and emits one bswap.
    low = ((value & u64(0xFF)) << u64(24)) | ((value & u64(0xFF00)) << u64(8))
    return low | ((value >> u64(8)) & u64(0xFF00)) | ((value >> u64(24)) & u64(0xFF))


@inner
def _find(m: Any, position: Any) -> Any:
    """Return the row of the all-reduce that has a position, -1 if none has (`StreamState.find`)."""
    for row in range(m.words[at.REDUCES]):
        if m.reduces[row * at.REDUCE_WORDS + at.FIRST] <= position < m.reduces[row * at.REDUCE_WORDS + at.END]:
            return row
    return -1


@inner
def _is_held(m: Any, position: Any) -> Any:
    """Say whether a result is here (`StreamState.is_held`, nothing being early)."""
    row = _find(m, position)
    if row < 0:
        return position < m.words[at.STREAM_END]
    reduce = row * at.REDUCE_WORDS
    place = (position - m.reduces[reduce + at.FIRST]) * m.job[at.SHARDS]
    return _octets(m.reduces[reduce + at.HELD_AT])[place] != 0


@inner
def _measure(m: Any, round_trip_s: Any) -> None:
    """Take a round trip (`RttEstimator.update`)."""
    clocks = m.clocks
    # Same operations in the same order as in Python, so that both leave equal bits.
    if m.words[at.MEASURES] == 0:
        m.words[at.MEASURES] = 1
        clocks[at.SRTT], clocks[at.RTTVAR] = round_trip_s, round_trip_s / 2
    else:
        clocks[at.RTTVAR] += 0.25 * (abs(clocks[at.SRTT] - round_trip_s) - clocks[at.RTTVAR])
        clocks[at.SRTT] += 0.125 * (round_trip_s - clocks[at.SRTT])
    clocks[at.RTO] = min(max(clocks[at.SRTT] + 4 * clocks[at.RTTVAR], clocks[at.RTO_MIN]), clocks[at.RTO_MAX])


@inner
def _widen(m: Any, once: Any, first_sent_at: Any) -> None:
    """Let the window know of one result (`CongestionWindow.on_ack`)."""
    words = m.words
    if once and first_sent_at >= m.clocks[at.HALVED_AT]:
        m.clocks[at.HALVED_AT] = inf
    words[at.WINDOW_RESULTS] += 1
    if words[at.WINDOW_RESULTS] >= words[at.WINDOW]:
        words[at.WINDOW_RESULTS] -= words[at.WINDOW]
        if words[at.WINDOW] == words[at.SLOTS]:
            words[at.WINDOW_RESULTS] %= words[at.WINDOW]
        else:
            words[at.WINDOW] += 1


@inner
def _settle(m: Any, slot: Any, position: Any) -> None:
    """Forget an open position that has its result (`RetransmitQueue.settle`)."""
    if m.open[slot] != position:
        return
    m.open[slot], m.due_at[slot] = at.NO_POSITION, inf
    sent = m.sent[slot]
    if sent == 0:
        return
    m.words[at.ON_THE_WAY] -= 1
    once, first_sent_at, now = sent == 1, m.first_sent_at[slot], m.clocks[at.NOW]
    # `instant`: one measurement for all results of a train.
    if once and now != m.clocks[at.MEASURED_AT]:
        m.clocks[at.MEASURED_AT] = now
        _measure(m, now - first_sent_at)
    _widen(m, once, first_sent_at)


@inner
def _open_next(m: Any, slot: Any, position: Any) -> None:
    """Open what a slot may send after a position (`StreamState.next_open`)."""
    words = m.words
    position += words[at.SLOTS]
    while _is_held(m, position):
        position += words[at.SLOTS]
    m.open_position[slot] = position
    if position < words[at.OPEN_END] and m.open[slot] != position:
        m.open[slot], m.sent[slot], m.due_at[slot] = position, 0, inf
        m.fresh[words[at.NEW]] = position
        words[at.NEW] += 1


@inner
def _take(m: Any, offset: Any, size: Any) -> Any:
    """Take the datagram at an offset of the buffer if it is plain; return its all-reduce's row, or -1."""
    first, words = offset >> 3, m.words
    w0, w1, w2, w3 = m.headers[first], m.headers[first + 1], m.headers[first + 2], m.headers[first + 3]
    # Numbers on the wire are big-endian, the words were loaded little-endian: the slot is the last two bytes of the
    # first word.
    slot = i64(((w0 >> u64(40)) & u64(0xFF00)) | (w0 >> u64(56)))
    round_ = i64(_swapped32(w1 >> u64(32)))
    if slot >= words[at.SLOTS] or round_ < 1:
        return -1
    position = words[at.BASE] + (round_ - 1) * words[at.SLOTS] + slot
    row = _find(m, position)
    # Only the result that its slot waits for is plain. Early ones and copies go to the Python worker.
    if row < 0 or m.open_position[slot] != position:
        return -1
    reduce, pattern = row * at.REDUCE_WORDS, row * 2 * at.HEADER_WORDS
    result_bytes = m.reduces[reduce + at.RESULT_BYTES]
    if size != result_bytes + at.HOPSUM_BYTES:
        return -1
    for word in range(at.HEADER_WORDS):
        # One exclusive-or per word compares all header fields that a RESULT of this all-reduce has fixed.
        differing = m.headers[first + word] ^ m.patterns[pattern + word]
        if differing & m.patterns[pattern + at.HEADER_WORDS + word] != u64(0):
            return -1
    contributors = (_swapped32(w2 >> u64(32)) << u64(32)) | _swapped32(w3 & u64(0xFFFFFFFF))
    if contributors == u64(0) or contributors > m.everybody[0]:
        return -1
    # The arrays have the results of all shards: the chunks of one lie `shards` apart.
    index = (position - m.reduces[reduce + at.FIRST]) * m.job[at.SHARDS]
    result_at = m.reduces[reduce + at.RESULTS_AT] + index * result_bytes
    # Straight from the receive buffer into the caller's results: the only copy in user space.
    _memcpy(result_at, words[at.BUFFER_AT] + offset + at.HOPSUM_BYTES, result_bytes)
    _bits(m.reduces[reduce + at.CONTRIBUTORS_AT])[index] = contributors
    _octets(m.reduces[reduce + at.HELD_AT])[index] = 1
    m.reduces[reduce + at.MISSING] -= 1
    m.streams[m.reduces[reduce + at.STREAM] * at.STREAM_WORDS + at.LEFT] -= 1
    words[at.RESULTS] += 1
    _settle(m, slot, position)
    _open_next(m, slot, position)
    return row


@inner
def _sort(positions: Any, count: Any) -> None:
    """Sort positions, which are nearly in order."""
    # Insertion sort: RESULTs come nearly in order, so it is linear, and it needs no memory.
    for number in range(1, count):
        value, place = positions[number], number
        while place > 0 and positions[place - 1] > value:
            positions[place] = positions[place - 1]
            place -= 1
        positions[place] = value


@inner
def _gather(m: Any) -> Any:
    """Fill `fresh` with all that waits to be sent for the first time; return the room that the window has for it."""
    words, oldest = m.words, i64(at.NO_POSITION)
    for slot in range(words[at.SLOTS]):
        oldest = min(oldest, m.open[slot])
    words[at.NEW] = 0
    # From the slot of the oldest on, the open positions are almost sorted already.
    start = oldest % words[at.SLOTS]
    for step in range(words[at.SLOTS]):
        slot = start + step if start + step < words[at.SLOTS] else start + step - words[at.SLOTS]
        if m.sent[slot] == 0 and m.open[slot] != at.NO_POSITION:
            m.fresh[words[at.NEW]] = m.open[slot]
            words[at.NEW] += 1
    _sort(m.fresh, words[at.NEW])
    room = words[at.WINDOW] - words[at.ON_THE_WAY]
    if room <= 0 and words[at.NEW] > 0 and m.fresh[0] == oldest:
        return 1
    return max(room, 0)


@inner
def _choose(m: Any) -> None:
    """Put what is to be sent now behind `pending`, and set its timers (`RetransmitQueue.take`)."""
    words, clocks = m.words, m.clocks
    # With a full window all that was opened may go: no pass over all slots is needed.
    if words[at.WINDOW] < words[at.SLOTS] or words[at.NARROW] == 1:
        room = _gather(m)
        words[at.NARROW] = 1 if words[at.NEW] > room else 0
        words[at.NEW] = min(words[at.NEW], room)
    else:
        _sort(m.fresh, words[at.NEW])
    left = 0
    for number in range(words[at.PENDING], words[at.PENDING_END]):
        position = m.pending[number]
        if m.open[position % words[at.SLOTS]] == position:  # else its result came first
            m.pending[left] = position
            left += 1
    now, wait_s = clocks[at.NOW], min(clocks[at.RTO], clocks[at.RETRANSMIT_MAX])
    for number in range(words[at.NEW]):
        position = m.fresh[number]
        slot = position % words[at.SLOTS]
        if m.open[slot] != position:  # its result came in the same train
            continue
        m.pending[left] = position
        left += 1
        m.sent[slot], m.first_sent_at[slot], m.timeout_at[slot] = 1, now, now + wait_s
        m.due_at[slot] = min(now + wait_s, now + clocks[at.FLUSH_AFTER])
        # The caller reckoned with what was on the way when the call began.
        clocks[at.LIMIT_AT] = min(clocks[at.LIMIT_AT], m.due_at[slot])
        words[at.ON_THE_WAY] += 1
        words[at.UPDATES] += 1
    words[at.PENDING], words[at.PENDING_END], words[at.NEW] = 0, left, 0


@inner
def _collect(m: Any) -> Any:
    """Point `vectors` at the datagrams of the next send. Return their number, 0 if nothing is pending.

    Datagrams of a send have one size. Neighbours in memory share a vector.
    """
    words, count, used, size = m.words, 0, 0, i64(0)
    while words[at.PENDING] < words[at.PENDING_END]:
        position = m.pending[words[at.PENDING]]
        row = _find(m, position)
        if row < 0 or m.open[position % words[at.SLOTS]] != position:  # its result came first
            words[at.PENDING] += 1
            continue
        reduce = row * at.REDUCE_WORDS
        update_bytes = m.reduces[reduce + at.UPDATE_BYTES]
        # The kernel takes 64 segments and 64 KB in one send with UDP_SEGMENT.
        most = min(at.SEGMENTS_MAX, at.GSO_BYTES_MAX // update_bytes) if words[at.CUTS] == 1 else 1
        if count > 0 and (update_bytes != size or count >= most):
            break
        address = m.reduces[reduce + at.UPDATES_AT] + (position - m.reduces[reduce + at.FIRST]) * update_bytes
        # Neighbours in the stream are neighbours in memory: a train is mostly one vector.
        if count > 0 and m.vectors[2 * used - 2] + m.vectors[2 * used - 1] == address:
            m.vectors[2 * used - 1] += update_bytes
        else:
            m.vectors[2 * used], m.vectors[2 * used + 1] = address, update_bytes
            used += 1
        size, count, words[at.PENDING] = update_bytes, count + 1, words[at.PENDING] + 1
    m.socket[at.TX + 3] = used
    m.socket[at.TX_CONTROL + 2] = size
    m.socket[at.TX + 5] = 24 if words[at.CUTS] == 1 else 0
    return count


@inner
def _send_pending(m: Any) -> None:
    """Give the kernel what is pending, as far as it has room."""
    words = m.words
    while True:
        first = words[at.PENDING]
        count = _collect(m)
        if count == 0:
            return
        if _sendmsg(words[at.FD], words[at.SOCKET_AT] + 8 * at.TX, _MSG_DONTWAIT) < 0:
            # Nothing of it was sent: sendmsg with segments is all or nothing.
            words[at.PENDING] = first
            words[at.BLOCKED] = 1
            if _errno()[0] != _EAGAIN:
                words[at.ENDED] = m.job[at.STOP] = at.STOP_SEND
                words[at.ERRNO] = _errno()[0]
            return
        words[at.SENDS] += 1
        words[at.DATAGRAMS_SENT] += count
        words[at.BYTES_SENT] += count * m.socket[at.TX_CONTROL + 2]


@inner
def _open_ready(m: Any) -> None:
    """Open the chunks that got payloads, in the order of the stream (`StreamState.release`)."""
    words = m.words
    for row in range(words[at.REDUCES]):
        reduce = row * at.REDUCE_WORDS
        first, end = m.reduces[reduce + at.FIRST], m.reduces[reduce + at.END]
        ready = first + m.reduces[reduce + at.READY]
        if words[at.OPEN_END] < ready:
            if m.reduces[reduce + at.OPENS] == 0:  # R2
                return
            for position in range(words[at.OPEN_END], ready):
                slot = position % words[at.SLOTS]
                # W1: a slot whose earlier round is not held opens this position when it is (`_open_next`).
                if m.open_position[slot] == position:
                    m.open[slot], m.sent[slot], m.due_at[slot] = position, 0, inf
                    m.fresh[words[at.NEW]] = position
                    words[at.NEW] += 1
            words[at.OPEN_END] = ready
        if ready < end:
            return


@inner
def _hand_out(a: Any, number: Any, made: Any, end: Any) -> None:
    """Put the payloads of a vector's chunks from `made` on into the datagrams of their shards, and open them."""
    first = memory(a, i64(0))
    shards, stream = first.job[at.SHARDS], number * at.STREAM_WORDS
    for shard in range(shards):
        m, row = memory(a, shard), first.rows[number * shards + shard]
        if row == at.NO_ROW:
            continue
        reduce = row * at.REDUCE_WORDS
        size = m.reduces[reduce + at.UPDATE_BYTES]
        payload_bytes = size - at.HOPSUM_BYTES
        # Chunk c of the vector is chunk c // shards of shard c mod shards.
        for place in range((made - shard + shards - 1) // shards, (end - shard + shards - 1) // shards):
            target = m.reduces[reduce + at.UPDATES_AT] + place * size + at.HOPSUM_BYTES
            source = first.streams[stream + at.PAYLOADS_AT] + (place * shards + shard) * payload_bytes
            _memcpy(target, source, payload_bytes)
        m.reduces[reduce + at.READY] = (end - shard + shards - 1) // shards
        _open_ready(m)
        m.words[at.CAME] = 1


@inner
def _begin(m: Any, number: Any) -> Any:
    """Begin the codes of a vector if its ranges are summed. Say whether they have begun."""
    streams, stream = m.streams, number * at.STREAM_WORDS
    if streams[stream + at.BEGIN_AT] == 0:
        return True
    for row in range(streams[stream + at.RANGES], streams[stream + at.RANGES_END]):
        if streams[row * at.STREAM_WORDS + at.LEFT] > 0:
            return False
    codes = streams[stream + at.CODES_AT]
    sums = (streams[stream + at.FIRST_AT], streams[stream + at.REST_AT])
    call_at(streams[stream + at.BEGIN_AT], (codes, streams[stream + at.SENT_AT], streams[stream + at.BEFORE], *sums))
    if _integers(codes)[0] == 0:
        streams[stream + at.BEGIN_AT] = 0
        return True
    # The ranks skip, or differ in something: Python has the words for it.
    streams[stream + at.CODES_AT] = 0
    m.job[at.STOP] = at.STOP_DONE
    return False


@inner
def _encode_train(a: Any) -> Any:
    """Make the next payloads of a vector, unless the network has enough of them. Say whether any were made."""
    m = memory(a, i64(0))
    job, streams = m.job, m.streams
    for number in range(job[at.STREAMS]):
        stream = number * at.STREAM_WORDS
        made, chunks = streams[stream + at.MADE], streams[stream + at.CHUNKS]
        if made < chunks:
            # A window ahead of what is here keeps the network busy. More would keep the caller from its messages.
            ahead = made - (chunks - streams[stream + at.LEFT])
            if streams[stream + at.CODES_AT] == 0 or ahead >= job[at.WINDOW_ALL] + 2 * job[at.TRAIN]:
                return False
            if not _begin(m, number):
                return False
            # R2 holds the vector back. One train of it lets the workers see that.
            if streams[stream + at.BEGINS] == 0 and made > 0:
                return False
            end = min(made + job[at.TRAIN], chunks)
            call_at(streams[stream + at.ENCODE_AT], (streams[stream + at.CODES_AT], made, end))
            _hand_out(a, number, made, end)
            streams[stream + at.MADE] = end
            if streams[stream + at.BEGINS] == 0:
                # The caller has to ask peers for what opens it, and to hear them.
                job[at.STOP] = at.STOP_TIME
            return True
        if streams[stream + at.BEGINS] == 0:
            return False
    return False


@inner
def _decode_train(m: Any, number: Any) -> Any:
    """Decode the next sums of a vector that are here in order. Say whether there were any."""
    streams, stream = m.streams, number * at.STREAM_WORDS
    # With a quorum, sums may come before this rank's codes begin.
    if streams[stream + at.DECODE_AT] == 0 or streams[stream + at.BEGIN_AT] != 0:
        return False
    taken, held = streams[stream + at.TAKEN], _octets(streams[stream + at.HERE_AT])
    # The mean may overwrite the vector, so a chunk is encoded before its sum is decoded.
    end = min(taken + m.job[at.TRAIN], streams[stream + at.MADE])
    here = taken
    while here < end and held[here] != 0:
        here += 1
    if here == taken:
        return False
    codes = streams[stream + at.CODES_AT]
    given = (codes, taken, here, streams[stream + at.SUMS_AT], streams[stream + at.WHOSE_AT])
    call_at(streams[stream + at.DECODE_AT], given)
    if _integers(codes)[0] != 0:
        # The codec words the error when it gets all sums.
        streams[stream + at.DECODE_AT] = 0
        return False
    streams[stream + at.TAKEN] = here
    return True


@inner
def _decode_any(m: Any) -> Any:
    """Decode a train of some vector. Say whether there was one."""
    for number in range(m.job[at.STREAMS]):  # noqa: SIM110  (numba compiles no generator here)
        if _decode_train(m, number):
            return True
    return False


@inner
def _take_rows(m: Any) -> None:
    """Take the datagrams in the buffer from REST on, until one is not plain, or an all-reduce is complete."""
    words = m.words
    size = words[at.SEGMENT]
    while words[at.REST] < words[at.RECEIVED]:
        given = min(size, words[at.RECEIVED] - words[at.REST])
        # The buffer is read by words of 8 bytes.
        row = _take(m, words[at.REST], given) if size % 8 == 0 and given > at.HOPSUM_BYTES else -1
        if row < 0:
            words[at.ENDED] = m.job[at.STOP] = at.STOP_REST
            return
        words[at.REST] += given
        stream = m.reduces[row * at.REDUCE_WORDS + at.STREAM] * at.STREAM_WORDS
        if m.streams[stream + at.LEFT] == 0 and m.streams[stream + at.QUIET] == 0:
            m.job[at.STOP] = at.STOP_DONE
            return


@inner
def _receive(m: Any) -> Any:
    """Let one call of the kernel fill the buffer. Return whether it did."""
    words, socket = m.words, m.socket
    socket[at.RX + 5] = 24 if words[at.JOINED] == 1 else 0
    size = _recvmsg(words[at.FD], words[at.SOCKET_AT] + 8 * at.RX, _MSG_DONTWAIT)
    if size < 0:
        return False
    # msg_controllen after the call.
    joined = socket[at.RX + 5] > 0  # nothing but UDP_GRO's message was asked for
    segment = max(socket[at.RX_CONTROL + 2] & 0xFFFFFFFF, 1) if joined else max(size, 1)
    words[at.REST], words[at.RECEIVED], words[at.SEGMENT] = 0, size, segment
    words[at.RECEIVES] += 1
    words[at.DATAGRAMS_RECEIVED] += max((size + segment - 1) // segment, 1)
    words[at.BYTES_RECEIVED] += size
    return True


@inner
def take_train(m: Any) -> None:
    """Take the datagrams in the buffer from REST on, at the time NOW, and choose what is to be sent then."""
    _take_rows(m)
    _choose(m)


@inner
def _now_s(m: Any) -> Any:
    """Return the time as `time.monotonic` has it."""
    # The clock of time.monotonic, so that times of both worlds compare.
    _clock_gettime(_CLOCK_MONOTONIC, m.words[at.SOCKET_AT] + 8 * at.TIME)
    return m.socket[at.TIME] + m.socket[at.TIME + 1] * 1e-9


@inner
def _wait(a: Any) -> None:
    """Wait for datagrams, for room where the kernel had none, for a waker, and for the limit.

    Encode or decode a train in the place of waiting.
    """
    first = memory(a, i64(0))
    job, polls = first.job, _integers(first.job[at.POLLS_AT])
    limit_at, on_the_way, window = inf, i64(0), i64(0)
    for shard in range(job[at.SHARDS]):
        m = memory(a, shard)
        limit_at = min(limit_at, m.clocks[at.LIMIT_AT])
        on_the_way += m.words[at.ON_THE_WAY]
        window += m.words[at.WINDOW]
        wanted = _POLLIN | _POLLOUT if m.words[at.BLOCKED] == 1 else _POLLIN
        polls[2 * shard] = m.words[at.FD] | wanted << 32
        polls[2 * shard + 1] = m.words[at.WAKER] | _POLLIN << 32
    left_s = limit_at - _now_s(first)
    # An idle network costs more than a caller who has to wait for a train.
    may_work = left_s > 0 or on_the_way < min(job[at.TRAIN], window)
    has_worked = may_work and (_encode_train(a) or _decode_any(first))
    if has_worked:
        # There may be more to do: only look whether somebody wants the caller.
        left_s = 0.0
    elif job[at.STOP] != 0:
        # The codes of a vector cannot begin here: nothing will come that ends the wait.
        return
    left_s = max(left_s, 0.0)
    time = _integers(job[at.TIME_AT])
    time[0] = i64(left_s)
    time[1] = i64((left_s - i64(left_s)) * 1e9)
    ready = _ppoll(job[at.POLLS_AT], 2 * job[at.SHARDS], job[at.TIME_AT], 0)
    # A signal ends the call, so that Python can handle it.
    if ready < 0:
        job[at.STOP] = at.STOP_WOKEN
    # The limit counts here only, so that no timer fires while its result lies unread in a socket.
    elif ready == 0 and not has_worked and limit_at <= _now_s(first):
        job[at.STOP] = at.STOP_TIME
    # revents are the upper 16 bits of a pollfd as one little-endian word.
    for shard in range(job[at.SHARDS]):
        if polls[2 * shard + 1] >> 48 != 0:
            job[at.STOP] = at.STOP_WOKEN
        words, found = memory(a, shard).words, polls[2 * shard] >> 48
        if found & _POLLOUT:
            words[at.BLOCKED] = 0
        # Readable, or the socket has an error to tell.
        if found & ~_POLLOUT:
            words[at.EMPTY] = 0


@inner
def _turn(m: Any) -> Any:
    """Take, send or receive one train of a shard. Say whether there was anything to do."""
    words = m.words
    if words[at.CAME] == 1:
        m.clocks[at.NOW] = _now_s(m)
        words[at.CAME] = 0
        take_train(m)
    elif words[at.PENDING] < words[at.PENDING_END] and words[at.BLOCKED] == 0:
        _send_pending(m)
    elif words[at.EMPTY] == 1:
        return False
    # Receive until the socket is empty before waiting: ppoll costs as much as a train of results.
    elif _receive(m):
        words[at.CAME] = 1
    elif _errno()[0] == _EAGAIN:
        words[at.EMPTY] = 1
        return False
    elif _errno()[0] != _EINTR:
        words[at.ENDED] = m.job[at.STOP] = at.STOP_RECEIVE
        words[at.ERRNO] = _errno()[0]
    return True


@inner
def _serve(a: Any) -> None:
    first = memory(a, i64(0))
    job = first.job
    job[at.STOP] = 0
    for shard in range(job[at.SHARDS]):
        words = memory(a, shard).words
        words[at.ENDED] = words[at.ERRNO] = words[at.BLOCKED] = words[at.EMPTY] = 0
        words[at.NEW] = words[at.PENDING] = words[at.PENDING_END] = 0
        # Datagrams that the last call left behind one that was not plain.
        words[at.CAME] = 1
    while job[at.STOP] == 0:
        has_done = False
        for shard in range(job[at.SHARDS]):
            if job[at.STOP] == 0 and _turn(memory(a, shard)):
                has_done = True
        if not has_done and job[at.STOP] == 0:
            _wait(a)
    for shard in range(job[at.SHARDS]):
        m = memory(a, shard)
        # What was made in the last moment, or let out by the last train, does not wait for the caller.
        if m.words[at.CAME] == 1 and m.words[at.REST] == m.words[at.RECEIVED]:
            m.clocks[at.NOW] = _now_s(m)
            _choose(m)
        if m.words[at.BLOCKED] == 0 and m.words[at.ENDED] != at.STOP_RECEIVE:
            _send_pending(m)
    # Nor does a vector whose last sum is here for another call.
    for number in range(job[at.STREAMS]):
        if first.streams[number * at.STREAM_WORDS + at.LEFT] == 0:
            while _decode_train(first, number):
                pass


@kernel(filled(types.int64, 1))
def serve(addresses: Any) -> None:
    """Receive, take and send at all shards until STOP. `addresses` are those of each shard's `WorkerMemory`.

    Afterwards datagrams of a buffer from REST on are left to the caller or to the next call, and the positions of
    `pending` to the caller: their timers are set, and they are not sent.
    """
    job = memory(addresses, i64(0)).job
    # numba knows machine code by this file's date or content, whatever the layout was. So a change of worker_layout.py
    # needs a change here.
    if job[at.LAYOUT] == at.FINGERPRINT:
        _serve(addresses)
    else:
        job[at.STOP] = at.STOP_STALE
